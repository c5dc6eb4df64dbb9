"""The README is true: its examples run, its stage table is the pipeline's, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from forge_eq.pipeline import STAGES

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


def stage_table() -> str:
    """The README's table of stages, generated."""
    rows = ["| stage | takes | gives |", "|---|---|---|"]
    rows += [f"| `{s.name}` | {s.takes} | {s.gives} |" for s in STAGES]
    return "\n".join([*rows, "| `run` | Schedule, Allocation | an executable, guarded |"])


def test_the_stage_table_is_the_pipeline(bless: bool) -> None:
    found = re.search(r"<!-- stages -->\n(.*?)\n?<!-- /stages -->", README, re.S)
    assert found is not None
    if bless:
        text = f"<!-- stages -->\n{stage_table()}\n<!-- /stages -->"
        (ROOT / "README.md").write_text(README.replace(found[0], text))
        pytest.skip("README.md was rewritten")
    assert found[1] == stage_table(), "run `pytest tests/test_docs.py --bless`"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python blocks of the README, in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).eval()
    names = {"torch": torch, "model": model, "example_inputs": (torch.randn(2, 8),)}
    assert len(BLOCKS) >= 2
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "model.forge").is_file()


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/decisions/README.md", "forge_eq/rules/README.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
