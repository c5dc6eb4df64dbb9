"""Random programs through the compiler, and whether the comparison would notice.

The fast tier takes a few seeds of each kind, the slow one 2,000; ``bench/fuzz.py`` any number. ``docs/reliability.md``
says what a run of 30,000 found.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fuzzing
from forge_eq import api
from forge_eq.ir.graph import Builder, Graph, Signature
from forge_eq.ir.types import TensorType
from forge_eq.ops import elementwise, leaves, movement, reduction
from forge_eq.rules import RuleSet, default
from fuzzing import Outcome, examine, judge, kind_of
from random_modules import RandomModule

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import fuzz

SLOW = [pytest.param(first, 200, marks=pytest.mark.slow) for first in range(100_000, 102_000, 200)]


def wrong(found: list[Outcome]) -> list[str]:
    return [f"{o.seed} {o.kind} {o.result}: {o.reason}" for o in found if o.result not in fuzzing.ORDER[:3]]


@pytest.mark.parametrize(("first", "count"), [(100_000, 10), *SLOW])
def test_random_programs_come_out_right(first: int, count: int) -> None:
    found = examine(range(first, first + count))
    assert [o.seed for o in found] == list(range(first, first + count))
    assert not wrong(found)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(200_000, 200_400, 100))
def test_random_programs_come_out_right_through_openvino(first: int) -> None:
    assert not wrong(examine(range(first, first + 100), compiled=True))


def test_seeds_that_once_failed() -> None:
    """NaN queries over two keys; a buffer that is written and that only the captured program reads."""
    assert not wrong(examine([1912, 2909], compiled=True))


def test_programs_are_as_wide_as_they_are_said_to_be() -> None:
    seeds = range(60)
    graphs = [fuzzing.program(s) for s in seeds if kind_of(s) in ("wide", "special")]
    types = [n.type for g in graphs for n in g.nodes if isinstance(n.type, TensorType)]
    assert {"f32", "f64", "f16", "bf16", "i64", "i32", "bool"} <= {t.dtype for t in types}
    assert {0, 1, 2, 3, 4} <= {d for t in types for d in t.shape}
    assert {0, 1, 2, 3, 4} <= {t.rank for t in types}
    assert len({n.op for g in graphs for n in g.nodes}) >= 40
    assert any(set(g.outputs) & {n.id for n in g.inputs} for g in graphs)  # an argument is a result
    assert any(len(set(g.outputs)) < len(g.outputs) for g in graphs)  # and a value is two
    modules = [RandomModule(s) for s in range(9, 300, 10)]
    assert sum(changes_something(m) for m in modules) >= len(modules) // 3


def changes_something(module: RandomModule) -> bool:
    args, fresh, state = module.more(0), module.more(0), module.state.clone()
    module(*args)
    return any(not torch.equal(a, b) for a, b in zip((*args, module.state), (*fresh, state), strict=True))


# ------------------------------------------------------------------------------------------- would it notice?


def small(dtype: str = "f32") -> tuple[Builder, int]:
    b = Builder(name="small")
    return b, b.add(leaves.input_, (), (0,), TensorType(dtype, (8,)))


def finish(b: Builder, output: int) -> Graph:
    return b.finish((output,), signature=Signature(("x",)))


def test_the_results_of_a_comparison() -> None:
    b, x = small()
    graph, inputs = finish(b, b.add(elementwise.exp, (x,))), [torch.linspace(-1, 1, 8)]
    want = [inputs[0].exp()]
    assert judge(graph, inputs, want, want, True) == ("bits", "")
    near = [want[0] * (1 + 1e-7)]
    assert judge(graph, inputs, near, want, False)[0] == "close"
    assert judge(graph, inputs, near, want, True)[0] == "mismatch"
    for other in (want[0] * 1.001, want[0].double(), want[0][:4], want[0].clone().fill_(float("nan"))):
        assert judge(graph, inputs, [other], want, False)[0] == "mismatch"


def test_signs_of_zero_and_nan_are_bits() -> None:
    zero, odd = torch.zeros(2), torch.tensor([float("nan"), 1.0])
    assert judge(None, [], [zero], [zero], True)[0] == "bits"
    assert judge(None, [], [-zero], [zero], True)[0] == "mismatch"
    assert judge(None, [], [odd], [odd.clone()], True)[0] == "bits"


def test_only_what_has_no_digits_is_rounding() -> None:
    """((x + 3e6) - 3e6) has a quarter's worth of digits; the same sum with an error of 1 is wrong."""
    b, x = small()
    big = b.add(leaves.literal, (), (3e6,))
    graph = finish(b, b.add(elementwise.sub, (b.add(elementwise.add, (x, big)), big)))
    inputs = [torch.linspace(-1, 1, 8)]
    want = [(inputs[0] + 3e6) - 3e6]
    assert judge(graph, inputs, [want[0] + 0.25], want, False)[0] == "rounding"
    assert judge(graph, inputs, [want[0] + 10.0], want, False)[0] == "mismatch"
    b, x = small()
    sure = finish(b, b.add(reduction.sum_, (x,), ((0,), False)))
    total = [inputs[0].sum()]
    assert judge(sure, inputs, [total[0] + 1e-3], total, False)[0] == "mismatch"


@pytest.mark.parametrize("id", ["simplify/permute_identity", "simplify/permute_is_reshape"])
def test_a_rule_without_its_guard_is_noticed(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RuleSet(replace(r, guards=()) if r.id == id else r for r in default)
    monkeypatch.setattr(api, "_ADMITTED", {rules.hash})  # it has no evidence, and would not be let in
    seeds = [s for s in range(40) if kind_of(s) == "composites"]
    assert any(o.result not in fuzzing.ORDER[:3] for o in examine(seeds, rules=rules))


def test_a_mismatch_is_found_in_a_group_and_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuzzing.judge

    def biased(graph, inputs, got, want, strict):  # type: ignore[no-untyped-def]
        other = graph is not None and graph.name == "wide14"
        return ("mismatch", "told") if other else right(graph, inputs, got, want, strict)

    monkeypatch.setattr(fuzzing, "judge", biased)
    found = {o.seed: o for o in examine([4, 5, 14])}
    assert found[14].result == "mismatch"
    assert "became" in found[14].reason
    assert {found[4].result, found[5].result} <= {"bits", "close"}


# ------------------------------------------------------------------------------------------- the command


def test_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[fuzz.Block] = []

    def fake(todo, given, code, log):  # type: ignore[no-untyped-def]
        for block in todo[:1]:
            done.append(block)
            line = {"first": block[0], "count": block[1], "compiled": block[2], "code": code, "commit": "c", "told": [],
                    "repaired": [], "counts": {"bits": block[1]}, "seconds": 1.0}  # fmt: skip
            log[block] = line
            with given.log.open("a") as out:
                out.write(fuzz.json.dumps(line) + "\n")

    monkeypatch.setattr(fuzz, "work", fake)
    command = ["--n", "500", "--log", str(tmp_path / "log"), "--out", str(tmp_path)]
    assert [fuzz.main(command) for _ in range(3)] == [1, 1, 0]
    assert done == [(0, 200, True), (200, 200, False), (400, 100, False)]
    assert "200 also through compile" in (tmp_path / "fuzz.md").read_text()
    monkeypatch.setattr(fuzz, "code_hash", lambda: "other code")
    assert fuzz.main(command) == 1  # what was done with other code does not count


def test_a_crash_is_one_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def crashing(seeds, compiled):  # type: ignore[no-untyped-def]
        if 7 in seeds:
            raise ZeroDivisionError("seven")
        return [Outcome(s, "wide", "bits") for s in seeds]

    monkeypatch.setattr(fuzzing, "examine", crashing)
    found = Counter((o["seed"], o["result"]) for o in fuzz.attempt(list(range(10)), False))
    assert found == {(s, "crash" if s == 7 else "bits"): 1 for s in range(10)}


def test_random_inputs_repeat() -> None:
    graph = fuzzing.program(4)
    first, again = (fuzzing.inputs_of(graph, 1, True) for _ in range(2))
    assert all(np.array_equal(a.double(), b.double(), equal_nan=True) for a, b in zip(first, again, strict=True))
    assert movement.reshape in {n.op for s in range(30) for n in fuzzing.program(4 + 10 * s).nodes}
