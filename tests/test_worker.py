"""The engine's thread: compilations from any thread and after a fork, and words that are declared before a program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import forge_eq
from forge_eq.capture import capture
from forge_eq.egraph import words, worker
from forge_eq.egraph.engine import Engine
from forge_eq.egraph.text import text
from forge_eq.egraph.words import Words
from forge_eq.ir.text import parse
from forge_eq.ir.text import text as graph_text
from forge_eq.options import Limits
from forge_eq.rules import RuleSet, default

GRAPH = parse("graph @g(%x: f32[4])\n%y = mul(%x, %x)\n%z = add(%y, 0.0)\nreturn %z\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "forge_eq" / "words"


def few() -> RuleSet:
    """A rule set that no other test has an engine for."""
    return RuleSet(r for r in default if r.family in ("simplify", "arithmetic", "traits"))


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + x) * 1.0


def test_every_thread_may_compile() -> None:
    x = torch.randn(3, 4)

    def compiled(_: int) -> torch.Tensor:
        found: torch.Tensor = forge_eq.compile(Doubled(), (x,), threads=1)(x)
        return found

    compiled(0)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(compiled, range(6)):
            assert torch.equal(found, torch.relu(x + x))


@pytest.mark.parametrize("how", ["export", "auto"])
def test_one_thread_at_a_time_captures(how: str) -> None:
    """Both captures change what is the whole process's: torch's functions, filters of warnings, sys.stderr."""
    inside: list[int] = []
    together: list[int] = []

    class Slow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.append(1)
            together.append(len(inside))
            time.sleep(0.02)
            inside.pop()
            return x + 1.0

    before = sys.stderr, warnings.filters[:]
    with ThreadPoolExecutor(3) as pool:
        graphs = list(pool.map(lambda _: capture(Slow(), (torch.ones(2),), how=how), range(6)))
    assert len(together) >= 6
    assert max(together) == 1
    assert len({graph_text(g) for g in graphs}) == 1
    assert (sys.stderr, warnings.filters[:]) == before


def test_a_process_that_forked_may_compile() -> None:
    code = """
import os, torch, forge_eq
from forge_eq.egraph.worker import saturate
from forge_eq.ir.text import parse
from forge_eq.rules import default
graph = parse("graph @g(%x: f32[4])\\n%y = mul(%x, %x)\\nreturn %y\\n")
before = saturate(graph, default)
child = os.fork()
if not child:
    raise SystemExit(0 if saturate(graph, default).classes == before.classes else 1)
assert os.waitpid(child, 0)[1] == 0
assert saturate(graph, default).classes == before.classes, "the child must leave the parent's files alone"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_rule_that_saturates_on_its_own_does_not_wait_for_itself() -> None:
    found = worker.run(worker.saturate, GRAPH, default)
    assert text(found) == text(Engine(default).saturate(GRAPH, Limits()))


def test_what_is_declared_early_changes_nothing(folder: Path) -> None:
    plain, rules = Engine(default), few()
    wanted = text(plain.saturate(GRAPH, Limits()))
    early = Engine(default)
    early.prepare(plain.words)
    declared = len(early.declared), set(early.asking), set(early.firing)
    assert early.words == Words(), "no program has needed them yet"
    assert text(early.saturate(GRAPH, Limits())) == wanted
    assert early.words == plain.words
    assert (len(early.declared), early.asking, early.firing) == declared, "nothing was missing"
    other = Engine(rules)  # of which many of these words are none
    other.prepare(Words((*plain.words.constructors, ("no_such_op", 2)), (*plain.words.asking, "no/rule"), ("no/rule",)))
    assert text(other.saturate(GRAPH, Limits())) == text(Engine(rules).saturate(GRAPH, Limits()))


def test_a_first_program_keeps_its_words_for_the_next_process(folder: Path) -> None:
    rules = few()
    other = RuleSet(r for r in rules if r.family != "traits")
    worker.prepare(rules).result()
    assert not folder.exists()
    worker.saturate(GRAPH, rules)
    kept = words.read(rules.hash)
    assert ("mul", 2) in kept.constructors
    assert kept.asking
    longer = parse("graph @g(%x: f32[4])\n%y = exp(%x)\nreturn %y\n")
    worker.saturate(longer, rules)
    assert words.read(rules.hash) == kept, "only the first program's: all of a long process would be too many"
    assert words.read(other.hash) == Words()


def test_words_of_the_last_programs_are_kept_and_no_more(folder: Path) -> None:
    """A union of all would be declared, and cost every program time, for good."""
    made = [Words(((name, 1),), (f"a/{name}",), (f"b/{name}",)) for name in ("exp", "abs", "sqrt", "neg")]
    for program in made[:3]:
        words.keep("few", program)
    assert words.read("few") == Words(
        (("abs", 1), ("exp", 1), ("sqrt", 1)), ("a/abs", "a/exp", "a/sqrt"), ("b/abs", "b/exp", "b/sqrt")
    )
    words.keep("few", made[0])  # needed again
    words.keep("few", made[3])
    assert words.read("few").constructors == (("exp", 1), ("neg", 1), ("sqrt", 1))


def test_words_that_a_program_did_not_need_are_not_kept_for_it(folder: Path) -> None:
    rules = RuleSet(r for r in few() if r.family != "simplify")
    words.keep(rules.hash, Words((("gelu", 1),), (), ()))
    worker.saturate(GRAPH, rules)
    kept = words.read(rules.hash)
    assert ("gelu", 1) in kept.constructors, "another program's"
    for _ in range(2):
        words.keep(rules.hash, Words((("exp", 1),), (), ()))
        words.keep(rules.hash, Words((("abs", 1),), (), ()))
    assert ("mul", 2) in words.read(rules.hash).constructors
    assert ("gelu", 1) not in words.read(rules.hash).constructors


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "{}", "[1]", '[{"constructors": 1}]', '[{"constructors": [["add"]]}]', "\x00"]
)
def test_a_damaged_file_is_no_file(folder: Path, content: str) -> None:
    words.keep("few", Words((("add", 2),), ("a/b",), ()))
    (path,) = folder.iterdir()
    assert words.read("few") == Words((("add", 2),), ("a/b",), ())
    path.write_text(content, encoding="utf-8")
    assert words.read("few") == Words()


def test_words_that_cannot_be_declared_are_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RuleSet(r for r in few() if r.family != "arithmetic")

    def refused(made: Engine, _: Words) -> None:
        made.pending.append("(no such command")
        made._run("(run load)")

    monkeypatch.setattr(Engine, "prepare", refused)
    assert text(worker.saturate(GRAPH, rules)) == text(Engine(rules).saturate(GRAPH, Limits()))


def test_a_cache_that_cannot_be_written_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    words.keep("few", Words((("add", 2),), ("a/b",), ()))
    assert words.read("few") == Words()
