"""The result does not depend on the order of the rules, the hash seed, or what the process did before; and it is right.

Random programs are made of what the rules look for and of twins that are wrong in one place (``random_programs``). The
chosen program must have the values of the captured one in float64, before folding to rounding error and after folding
to that of float32.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import forge_eq
import spellings_heads  # noqa: F401  (enters all composites)
from case_pipeline import SECTIONS, with_data
from case_runner import read_cases
from forge_eq.api import make_options
from forge_eq.egraph import engine
from forge_eq.egraph.compile_rules import CompiledRule
from forge_eq.egraph.engine import Engine
from forge_eq.egraph.intern import INTERNER
from forge_eq.egraph.text import text as view_text
from forge_eq.egraph.vocabulary import Usable, Vocabulary
from forge_eq.extract.cost import FusionGain
from forge_eq.extract.program import choose
from forge_eq.ir.evaluate import evaluate
from forge_eq.ir.graph import Builder, Graph
from forge_eq.ir.text import parse, text
from forge_eq.ir.types import TensorType
from forge_eq.ops import elementwise
from forge_eq.options import Limits
from forge_eq.pipeline import Job, run
from forge_eq.rules import RuleSet, default
from forge_eq.targets import load
from random_programs import random_program
from random_reads import random_reads
from spelling import COMPOSITES, Batch, spell

HERE = Path(__file__).resolve().parent
BLOCKS = ("block_gpt2", "block_llama", "block_bert")


def optimized(graph: Graph) -> Job:
    job = Job(make_options(None, {"check": True}))
    job.forms["capture"] = graph
    return run(job, "extract")


@functools.cache
def block(name: str) -> Graph:
    found = {c.path.stem: c for c in read_cases(HERE / "cases" / "programs", SECTIONS)}
    return with_data(parse(found[name]["input"]))


# ---- values -----------------------------------------------------------------------------------------------------


def inputs_of(graph: Graph, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    values = []
    for node in graph.inputs:
        assert isinstance(node.type, TensorType)
        shape = node.type.shape
        values.append(rng.random(shape) < 0.6 if node.type.dtype == "bool" else rng.normal(size=shape))
    return values


def assert_same(got: list[np.ndarray], want: list[np.ndarray], tolerance: float) -> None:
    for i, (x, w) in enumerate(zip(got, want, strict=True)):
        assert (x.dtype, x.shape) == (w.dtype, w.shape), i
        size = max(1.0, np.abs(w[np.isfinite(w)]).max(initial=0))
        assert np.allclose(x, w, rtol=tolerance, atol=tolerance * size, equal_nan=True), f"output {i}"


PROGRAMS, GROUP = 160, 20
STARTS = range(0, PROGRAMS, GROUP)


GUARDED = [
    "attention/scaled",
    "composites/rotate_half_from_slices",
    "composites/repeat_heads_from_expand",
    "simplify/permute_identity",
    "simplify/permute_is_reshape",
]


@functools.cache
def results(first: int) -> list[tuple[int, Graph, Job]]:
    """The programs of one group of seeds, optimised."""
    graphs = [(seed, made(seed)) for seed in range(first, first + GROUP) for made in (random_program, random_reads)]
    return [(seed, graph, optimized(graph)) for seed, graph in graphs]


@pytest.mark.parametrize("first", [pytest.param(k, marks=pytest.mark.slow if k >= 20 else ()) for k in STARTS])
def test_random_programs_keep_their_values(first: int):
    for seed, graph, job in results(first):
        inputs = inputs_of(graph, seed)
        assert job["saturate"].saturation.stop == "saturated", seed
        want = evaluate(graph, inputs)
        try:
            assert_same(evaluate(job["chosen"].graph, inputs), want, 1e-9)
            assert_same(evaluate(job["extract"], inputs), want, 2e-5)
        except AssertionError as e:
            raise AssertionError(f"program {seed}: {e}\n{text(graph.live())}\nbecame\n{text(job['extract'])}") from None


@pytest.mark.slow
def test_random_programs_reach_the_rules():
    """With the spellings nine rules in ten at least; tests/cases has more. Else the test above says little."""
    fired = {rule for first in STARTS for _, _, job in results(first) for rule in matched(job)}
    for name in COMPOSITES:  # rules on how a composite is spelled are reached by spellings
        module = Batch([spell(name, seed) for seed in range(20)]).eval()
        fired |= set(matched(forge_eq.optimize(module, module.args, verify="off").job))
    missed = {rule.id for rule in default} - fired
    assert len(missed) < 0.1 * len(default), sorted(missed)


def matched(job: Job) -> dict[str, int]:
    return job["saturate"].saturation.matches


@pytest.mark.slow
@pytest.mark.parametrize("id", GUARDED)
def test_a_rule_without_its_guard_is_seen(id: str):
    """The comparison has teeth: some program changes its values when one guard is gone."""
    rules = RuleSet(replace(r, guards=()) if r.id == id else r for r in default)
    assert any(changes_values(random_program(seed), seed, rules) for seed in range(2 * PROGRAMS))


def changes_values(graph: Graph, seed: int, rules: RuleSet) -> bool:
    job = Job(make_options(None, {"rules": rules}))
    job.forms["capture"] = graph
    run(job, "extract")
    inputs = inputs_of(graph, seed)
    pairs = zip(evaluate(job["chosen"].graph, inputs), evaluate(graph, inputs), strict=True)
    return not all(np.allclose(x, w, equal_nan=True) for x, w in pairs)


# ---- order ------------------------------------------------------------------------------------------------------


def samples() -> list[Graph]:
    return [*map(block, BLOCKS), *map(random_program, range(500, 506))]


def chosen_text(engine: Engine, graph: Graph) -> str:
    """The chosen program by one engine."""
    view = engine.saturate(graph, Limits())
    assert view.saturation.stop == "saturated"
    return text(choose(view, graph, FusionGain.of(graph, load("openvino-cpu"))).graph)


def without_origins(shown: str) -> list[str]:
    return [line.partition("  ; ")[0] for line in shown.splitlines()]


@functools.cache
def straight() -> list[str]:
    engine = Engine(default)
    return [chosen_text(engine, graph) for graph in samples()]


def test_the_order_of_the_rule_set_does_not_matter():
    rules = list(default)
    random.Random(0).shuffle(rules)
    engine = Engine(RuleSet(rules))
    assert [chosen_text(engine, graph) for graph in samples()] == straight()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_order_inside_the_engine_does_not_matter(seed: int):
    """Engines take rules by name, so other names are another order; only the credit for a node may change."""
    order = random.Random(seed).sample(range(len(default)), len(default))
    engine = Engine(RuleSet(replace(r, family="any", name=f"r{k:03}") for k, r in zip(order, default, strict=True)))
    for graph, want in zip(samples(), straight(), strict=True):
        assert without_origins(chosen_text(engine, graph)) == without_origins(want)


@pytest.mark.slow
def test_what_ran_before_does_not_matter():
    """An engine keeps its answers; programs in the other order, and again, come out the same."""
    engine = Engine(default)
    backwards = [chosen_text(engine, graph) for graph in reversed(samples())]
    assert backwards[::-1] == straight()
    assert [chosen_text(engine, graph) for graph in samples()] == straight()


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_hash_seed_does_not_matter(seed: str):
    code = "import json, test_order\nprint(json.dumps(test_order.straight()))"
    env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == straight()


# ---- what once went wrong ---------------------------------------------------------------------------------------


def test_questions_do_not_use_up_the_iterations():
    """A new engine asks about this program in six rounds, each after the rules have come to rest."""
    twice = "%a = permute(%x; perm=(2, 1, 0))\n%y = permute(%a; perm=(2, 1, 0))\n"
    graph = parse(f"graph @g(%x: f32[1,4,8])\n{twice}return %y\n")
    cold, engine = [], Engine(default)
    for _ in range(2):
        view = engine.saturate(graph, Limits())
        cold.append((view.saturation.stop, view.classes))
    assert cold[0] == cold[1]
    assert cold[0][0] == "saturated"


def test_answers_do_not_use_up_the_node_limit():
    graph = parse("graph @g(%x: f32[4])\n%a = mul(%x, 3.0)\n%y = mul(%a, 5.0)\nreturn %y\n")
    engine = Engine(default)
    for number in range(30):
        engine.saturate(parse(f"graph @g(%x: f32[{number}])\n%y = mul(%x, {number}.5)\nreturn %y\n"), Limits(nodes=20))
    view = engine.saturate(graph, Limits(nodes=20))
    assert view.saturation.matches["constants/mul_mul"] == 1


def test_a_scale_of_one_does_not_go_round():
    """It entered the weight, whose product with one was a new weight, before anybody had asked whether it was."""
    layer = '%w = constant(name="w") : f32[7,4]\n%l = matmul(%x, %w)\n%y = mul(%l, 1.0)\n'
    view = Engine(default).saturate(parse(f"graph @g(%x: f32[5,7])\n{layer}return %y\n"), Limits())
    assert view.saturation.stop == "saturated"


def test_a_program_leaves_nothing_to_the_next():
    one = parse("graph @g(%x: f32[4])\n%a = neg(%x)\n%y = neg(%a)\nreturn %y\n")
    other = random_program(3).live()
    engine = Engine(default)
    views = [engine.saturate(graph, Limits()) for graph in (one, other, one, other)]
    assert views[:2] == views[2:]
    engine.forget()  # as it does before the next
    rows = engine.egraph.freeze().functions
    assert {name.partition("_")[0] for name, table in rows.items() if table.rows} == {"answer"}


def test_the_iteration_limit_is_said():
    graph = parse("graph @g(%x: f32[4])\n%a = neg(%x)\n%b = neg(%a)\n%y = alias(%b)\nreturn %y\n")
    engine = Engine(default)
    assert engine.saturate(graph, Limits(iterations=1)).saturation.stop == "iteration limit"
    assert engine.saturate(graph, Limits()).saturation.stop == "saturated"


def test_an_optimised_program_can_be_optimised_again():
    """Folded constants keep the names they have; new ones get others."""
    graph = with_data(
        parse('graph @g(%x: f32[4])\n%w = constant(name="w") : f32[4]\n%e = exp(%w)\n%y = mul(%x, %e)\nreturn %y\n')
    )
    once = optimized(graph)["extract"]
    builder = Builder(once)
    for node in once.nodes:
        builder.add(node.op, node.inputs, node.attrs, node.type, node.origin)
    folded = next(n.id for n in once.nodes if n.op.leaf == "constant")
    more = builder.add(elementwise.sub, (builder.add(elementwise.tanh, (folded,)), once.outputs[0]))
    longer = builder.finish((builder.add(elementwise.mul, (more, folded)),))
    twice = optimized(longer)["extract"]
    assert len(twice.constants) == 2
    inputs = inputs_of(longer, 0)
    assert_same(evaluate(twice, inputs), evaluate(longer, inputs), 1e-6)


def test_the_captured_cost_leaves_dead_nodes_out():
    source = "graph @g(%x: f32[4,4], %z: f32[4,4])\n{}%y = matmul(%x, %z)\n%s = sin(%y)\nreturn %s\n"
    plain, dead = (optimized(parse(source.format(d))) for d in ("", "%a = cos(%x)\n%b = sin(%z)\n"))
    assert dead["chosen"].captured_cost == plain["chosen"].captured_cost > 0


# ---- rules that are left out ------------------------------------------------------------------------------------


class Everything(Vocabulary):
    """Leaves no rule out."""

    def has(self, rule: CompiledRule) -> bool:
        return True


@pytest.mark.parametrize("seed", range(6))
def test_rules_are_left_out_only_where_they_cannot_match(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [random_program(seed), *([block(BLOCKS[seed])] if seed < len(BLOCKS) else [])]
    few = [engine.Engine(default).saturate(g, Limits()) for g in graphs]
    monkeypatch.setattr(engine, "Vocabulary", Everything)
    every = engine.Engine(default)
    assert [view_text(every.saturate(g, Limits())) for g in graphs] == [view_text(v) for v in few]


def test_a_rule_is_usable_once_one_that_fires_can_make_its_words() -> None:
    rules = {r.id: CompiledRule(r, k) for k, r in enumerate(default, 1)}
    graph = parse("graph @g(%x: f32[4])\n%y = mul(%x, %x)\nreturn %y\n")
    attrs = [tuple(map(INTERNER.id, n.attrs)) for n in graph.nodes]
    usable = Usable(rules.values(), Vocabulary(graph.nodes, attrs))
    names = []
    for firing in ((), ("traits/mul_commutes",), ("arithmetic/square",)):  # the last makes a power
        usable.grow([rules[name].index for name in firing])
        names.append({r.id for r in usable.found.values()})
    assert names[0] == names[1] == {"traits/mul_commutes", "arithmetic/square"}
    assert names[2] > names[1] | {"arithmetic/cube"}


def test_the_engines_folder_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a \"b\" (c) 'é' \\d"
    odd.mkdir()
    plain = Engine(default).saturate(block("block_gpt2"), Limits())
    monkeypatch.setattr(engine, "SHM", odd)
    other = Engine(default)
    assert other.folder.parent == odd
    assert view_text(other.saturate(block("block_gpt2"), Limits())) == view_text(plain)


def test_an_engine_keeps_no_row_of_a_program_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = block("block_gpt2"), block("block_llama")
    alone, used = engine.Engine(default), engine.Engine(default)
    with monkeypatch.context() as broken:
        broken.setattr(engine, "read_view", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            used.saturate(first, Limits())
    assert view_text(used.saturate(second, Limits())) == view_text(alone.saturate(second, Limits()))
