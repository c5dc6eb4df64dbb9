"""The command line: ``forge-eq optimize|compile|explain|tune|rules|ops|verify|bench|demo|npu``.

Takes arguments. Gives text: results on standard output, progress on standard error. Promises: every ForgeError is
told in a panel and ends with status 2, never in a traceback; a refused rule ends with status 1; without a terminal
there are no control characters and the width is that of ``$COLUMNS``. Not here: anything that the API cannot do.
"""

from __future__ import annotations

import typer

from forge_eq.cli import bench, catalogue, npu, programs
from forge_eq.cli.screen import Group

app = typer.Typer(
    name="forge-eq",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="An e-graph superoptimizer and compiler for PyTorch graphs.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
programs.enter(app)
catalogue.enter(app)
bench.enter(app)
npu.enter(app)


def main() -> None:
    """The console script."""
    app()
