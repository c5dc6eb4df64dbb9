"""Chosen programs on disk: found when everything is the same, searched for when anything differs or is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq import cache
from forge_eq.capture import capture
from forge_eq.ir.text import text
from forge_eq.options import Limits, Options

pytest.importorskip("openvino", reason="segments run on OpenVINO")

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(cache.SWITCH)
    return cache.directory()


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)).eval()


class Folding(nn.Module):
    """Something to compute from weights before the first call."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.a * 2 + self.b)


def told(program: Any) -> list[str]:
    return [f"{r.kind} {r.reason}" for r in program.remarks if r.stage == "cache"]


def entries() -> list[Path]:
    return sorted(cache.directory().glob("*"))


def test_a_second_compilation_finds_the_program() -> None:
    first, again = (forge_eq.compile(model(), (X,), threads=1) for _ in range(2))
    assert told(first) == []
    assert len(entries()) == 1
    assert "was found" in told(again)[0]
    assert "saturate" in first.job.seconds
    assert "saturate" not in again.job.seconds
    assert text(again.job["extract"]) == text(first.job["extract"])
    assert torch.equal(again(X), first(X))


def test_what_was_skipped_is_there_for_whoever_asks() -> None:
    first, again = (forge_eq.compile(model(), (X,), threads=1) for _ in range(2))
    assert again.job.found
    assert again.job["chosen"].extraction.cost == first.job["chosen"].extraction.cost
    assert again.job["saturate"].saturation.matches == first.job["saturate"].saturation.matches
    assert again.report()


def test_other_weights_find_the_program_and_are_folded_anew() -> None:
    forge_eq.compile(Folding(0), (X,), threads=1)
    other = forge_eq.compile(Folding(1), (X,), threads=1)
    assert other.job.found
    folded = [t for name, t in other.job["extract"].constants.items() if name.startswith("folded")]
    assert folded
    with torch.no_grad():
        torch.testing.assert_close(other(X), Folding(1)(X), rtol=1e-4, atol=1e-4)


def test_no_weight_is_in_an_entry() -> None:
    module = Folding(0)
    with torch.no_grad():
        module.a.fill_(0.123456789)
    forge_eq.compile(module, (X,), threads=1)
    (entry,) = entries()
    assert "0.1234" not in entry.read_text()


def test_anything_that_matters_makes_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = capture(model(), (X,))
    base = Options()
    keys = [cache.key_of(graph, base)]
    for changes in (
        {"alpha": 0.5},
        {"target": "restricted-npu"},
        {"limits": Limits(nodes=10)},
        {"rules": forge_eq.rules.default.family("simplify")},
    ):
        keys.append(cache.key_of(graph, Options(**changes)))  # type: ignore[arg-type]
    keys.append(cache.key_of(capture(model(), (X[:2],)), base))
    keys.append(cache.key_of(capture(nn.Sequential(*list(model())[:-1], nn.Linear(8, 4, bias=False)), (X,)), base))
    changed = model()
    changed[2].eps = 1e-3  # type: ignore[assignment]
    keys.append(cache.key_of(capture(changed, (X,)), base))
    monkeypatch.setattr(cache, "_versions", lambda: ("other",))
    keys.append(cache.key_of(graph, base))
    assert len(set(keys)) == len(keys)
    assert None not in keys


def test_objects_of_the_user_s_are_never_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = capture(model(), (X,))
    assert cache.key_of(graph, Options(cost=lambda *a: 1.0)) is None
    assert cache.key_of(graph, Options(extractor=object())) is None
    assert cache.key_of(graph, Options(cache=False)) is None
    monkeypatch.setenv(cache.SWITCH, "0")
    assert cache.key_of(graph, Options()) is None


def test_a_compilation_without_the_cache_leaves_no_entry() -> None:
    forge_eq.compile(model(), (X,), threads=1, cache=False)
    assert entries() == []


DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "no text": lambda data: b"\xff\xfe" + data,
    "another format": lambda data: data.replace(b'"format": 1', b'"format": 99'),
    "one number": lambda data: data.replace(b"f32[3,8]", b"f32[3,9]", 1),
    "no object": lambda data: b"[1, 2]",
    "no program": lambda data: json.dumps({"format": 1, "key": json.loads(data)["key"]}).encode(),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_ignored_and_replaced(name: str) -> None:
    first = forge_eq.compile(model(), (X,), threads=1)
    (entry,) = entries()
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGE[name](whole))
    assert entry.read_bytes() != whole
    again = forge_eq.compile(model(), (X,), threads=1)
    assert "is ignored" in told(again)[0]
    assert not again.job.found
    assert entry.read_bytes() == whole
    assert torch.equal(again(X), first(X))


def test_an_entry_of_another_program_is_ignored() -> None:
    """A forger's entry: whole, and for the right key."""
    graph, other = capture(model(), (X,)), capture(Folding(0), (X,))
    key = cache.key_of(graph, Options())
    assert key is not None
    cache.keep(key, other)
    found, remark = cache.find(key, graph)
    assert found is None
    assert remark is not None
    assert "ignored" in remark.reason


def test_a_wrong_program_in_the_cache_is_found_by_values() -> None:
    """Same inputs, outputs and constants, other meaning: the comparison that every chosen program passes sees it."""
    recorded = capture(model(), (X,), how="record")
    key = cache.key_of(recorded, Options(threads=1))
    assert key is not None
    torch.manual_seed(0)
    wrong = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    cache.keep(key, capture(wrong, (X,), how="record"))
    program = forge_eq.compile(model(), (X,), threads=1)
    assert program.job.found
    assert any(r.kind == "failed" and "captured program is used" in r.reason for r in program.remarks)
    with torch.no_grad():
        torch.testing.assert_close(program(X), model()(X), rtol=1e-4, atol=1e-5)


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "nothing was kept" in told(forge_eq.compile(model(), (X,), threads=1))[0]


def test_old_entries_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT", 2)
    graph = capture(model(), (X,))
    for k, key in enumerate("abcd"):
        cache.keep(key, graph)
        os.utime(cache.directory() / f"{key}.json", (k, k))
    cache.keep("e", graph)
    assert [p.stem for p in entries()] == ["d", "e"]


def test_another_process_has_the_same_key() -> None:
    """Whatever the hash seed."""
    code = (
        "import torch; from torch import nn; from forge_eq import cache; from forge_eq.capture import capture;"
        "from forge_eq.options import Options; g = capture(nn.Linear(8, 4), (torch.zeros(3, 8),), how='record');"
        "print(cache.key_of(g, Options()))"
    )
    keys = []
    for seed in "12":
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        keys.append(done.stdout.strip())
    assert keys[0] == keys[1]
    assert len(keys[0]) == 64
