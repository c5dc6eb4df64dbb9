"""egglog's compiled module alone: the same one that the package uses, whichever comes first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = "from forge_eq.egraph.native import bindings; assert 'egglog' not in sys.modules, 'the whole package'"
THEIRS = "import egglog; from egglog import bindings as theirs; egglog.EGraph().run(1)"
FIRST = "import egglog; from egglog import bindings as theirs; from forge_eq.egraph.native import bindings"


@pytest.mark.parametrize("code", [f"{OURS}; {THEIRS}", FIRST])
def test_it_is_the_packages_own(code: str) -> None:
    code = f"import sys; {code}; assert theirs is bindings; theirs.EGraph()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
