"""``python -m forge_eq`` is ``forge-eq``."""

from forge_eq.cli import main

main()
