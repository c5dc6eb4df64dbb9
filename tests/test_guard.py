"""The guard: what OpenVINO gets wrong is found, named and repaired; what agrees is left alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from forge_eq.capture.execute import run_graph
from forge_eq.capture.export import capture
from forge_eq.errors import RunError
from forge_eq.ir.graph import Builder, Graph
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Program
from forge_eq.ops import attention, composite, elementwise, leaves, linalg, movement
from forge_eq.ops.spec import Op
from forge_eq.run import guard as guard_module
from forge_eq.run.executor import Executable, accelerated
from forge_eq.run.guard import guard
from forge_eq.run.probes import probes, quick
from forge_eq.run.values import evaluate, in_float64
from forge_eq.verify.criterion import difference
from random_graphs import random_graph
from run_programs import TARGET, Attention, Mlp, language, random_inputs, scheduled

openvino = pytest.importorskip("openvino", reason="the guard watches OpenVINO")
torch.set_num_threads(1)


def reference(graph: Graph) -> Callable[[Sequence[Any]], Sequence[Any]]:
    return lambda inputs: run_graph(graph, inputs)


def from_program(program: Program) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def run(inputs: Sequence[Any]) -> list[Any]:
        values = evaluate(program, inputs)
        return [values[r] for r in program.outputs]

    return run


def broken(op: Op, kernel: Callable[..., Any]) -> Op:
    assert op.kernel is not None
    return replace(op, kernel=replace(op.kernel, openvino=kernel))


def break_at(program: Program, positions: Sequence[int], spoil: Callable[[Any, Any], Any]) -> Program:
    """The program with the results of some instructions spoilt on OpenVINO, not on torch."""
    instrs = list(program.instrs)
    for p in positions:
        op = instrs[p].op
        assert op is not None
        build = op.kernel.openvino  # type: ignore[union-attr]
        instrs[p] = replace(instrs[p], op=broken(op, lambda g, *a, build=build: spoil(g, build(g, *a))))
    return replace(program, instrs=tuple(instrs))


# ------------------------------------------------------------------------------------ heads equal tokens


def attention_graph(
    heads: int,
    tokens: int,
    size: int = 4,
    op: Op = attention.attention,
) -> tuple[Graph, list[torch.Tensor]]:
    """q, k and v from linear layers, and the attention's result in [batch, heads, tokens, size]."""
    torch.manual_seed(0)
    width = heads * size
    b = Builder(Graph("attention", (), ()))
    x = b.add(leaves.input_, (), (0,), TensorType("f32", (1, tokens, width)))
    data, parts = {}, []
    for name in "qkv":
        data[name] = torch.randn(width, width) / width**0.5
        w = b.add(leaves.constant, (), (name,), TensorType("f32", (width, width)))
        y = b.add(movement.reshape, (b.add(linalg.linear, (x, w), (True,)),), ((1, tokens, heads, size),))
        parts.append(b.add(movement.permute, (y,), ((0, 2, 1, 3),)))
    y = b.add(op, tuple(parts), (size**-0.5,))
    out = b.add(elementwise.add, (y, b.add(leaves.literal, (), (1.0,))))
    return b.finish((out,), constants=data), [torch.randn(1, tokens, width)]


def naive_attention(g: Any, q: Any, k: Any, v: Any, scale: float) -> Any:
    """The textbook spelling, which the CPU plugin fuses."""
    weights = g.plain_softmax(g.multiply(g.matmul(q, k, False, True), scale), 3)
    return g.matmul(weights, v, False, False)


@pytest.mark.skipif(not openvino.__version__.startswith("2026.4"), reason="seen in OpenVINO 2026.4")
@pytest.mark.parametrize("tokens", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_plain_openvino_is_wrong_when_heads_equal_tokens(tokens: int) -> None:
    """The fact that the workaround in the builder rests on. When this fails, the workaround may go."""
    torch.manual_seed(0)
    model, x = Attention(heads=4).eval(), torch.randn(1, tokens, 16)
    converted = openvino.convert_model(torch.export.export(model, (x,)))
    converted.reshape(list(x.shape))
    compiled = openvino.Core().compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with torch.no_grad():
        error = float((torch.from_numpy(compiled([x.numpy()])[0]) - model(x)).abs().max())
    assert error > 1e-2 if tokens == 4 else error < 1e-5


@pytest.mark.parametrize("op", [attention.attention, attention.attention_causal])
@pytest.mark.parametrize(("heads", "tokens"), [(2, 2), (4, 4), (8, 8), (4, 3), (1, 1), (16, 16)])
def test_our_attention_is_right_when_heads_equal_tokens(heads: int, tokens: int, op: Op) -> None:
    graph, inputs = attention_graph(heads, tokens, op=op)
    run = Executable(scheduled(graph), TARGET, threads=1)
    assert len(run.models) == 1
    torch.testing.assert_close(run(inputs)[0], run_graph(graph, inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [4, 5])
def test_a_written_out_attention_is_right_or_repaired(tokens: int) -> None:
    torch.manual_seed(0)
    model, x = Attention(heads=4).eval(), torch.randn(1, tokens, 16)
    graph = capture(model, (x,))
    run = guard(scheduled(graph), TARGET, reference(graph), [x], threads=1).executable
    with torch.no_grad():
        torch.testing.assert_close(run([x])[0], model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not openvino.__version__.startswith("2026.4"), reason="seen in OpenVINO 2026.4")
def test_a_real_miscompile_is_caught_named_and_repaired() -> None:
    graph, inputs = attention_graph(4, 4)
    program = scheduled(graph)
    position = next(p for p, i in enumerate(program.instrs) if i.op is attention.attention)
    instrs = list(program.instrs)
    instrs[position] = replace(instrs[position], op=broken(attention.attention, naive_attention))
    naive = replace(program, instrs=tuple(instrs))
    wrong = Executable(naive, TARGET, threads=1)(inputs)
    assert difference(wrong, run_graph(graph, inputs)) is not None
    found = guard(naive, TARGET, reference(graph), inputs, threads=1)
    assert found.pins
    assert len(found.pins) < len(accelerated(naive, TARGET))
    torch.testing.assert_close(found.executable(inputs)[0], run_graph(graph, inputs)[0], rtol=1e-4, atol=1e-5)
    (remark,) = [r for r in found.remarks if r.kind == "failed"]
    assert "npu.attention" in remark.node
    assert f"v{program.instrs[position].dsts[0]}" in remark.node
    assert "off by" in remark.reason


# ------------------------------------------------------------------------------------ injected faults

SPOILS: dict[str, Callable[[Any, Any], Any]] = {
    "scaled": lambda g, y: g.multiply(y, 1.01),
    "shifted": lambda g, y: g.add(y, 0.01),
    "nan": lambda g, y: g.select(g.less(y, 0.0), math.nan, y),
    "infinite": lambda g, y: g.select(g.less(1.0, y), math.inf, y),
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 6))])
def test_an_injected_fault_is_pinned_exactly(seed: int, spoil: str) -> None:
    rng = random.Random(seed)
    program = scheduled(random_graph(rng))
    single = [p for p in sorted(accelerated(program, TARGET)) if len(program.instrs[p].dsts) == 1]
    position = rng.choice(single)
    inputs = random_inputs(program, rng)
    wrong = break_at(program, [position], SPOILS[spoil])
    found = guard(wrong, TARGET, from_program(program), inputs, threads=1)
    assert difference(found.executable(inputs), from_program(program)(inputs)) is None
    before = [difference(Executable(wrong, TARGET, threads=1)(p), from_program(program)(p)) for _, p in probes(inputs)]
    if any(before):
        assert found.pins == {position}
        assert any(r.kind == "failed" and f"v{program.instrs[position].dsts[0]}" in r.node for r in found.remarks)
    else:
        assert not found.pins


@pytest.mark.parametrize("error", [1e-3, 1e-4])
def test_a_small_fault_in_one_row_is_found(error: float) -> None:
    """One row gets a second look at float64 over several inputs, which must not let this pass."""
    torch.manual_seed(0)
    x = torch.randn(1, 64)
    graph = capture(Mlp(64).eval(), (x,))
    program = scheduled(graph)
    layers = [
        p for p in sorted(accelerated(program, TARGET)) if program.instrs[p].op in (linalg.linear, linalg.linear_bias)
    ]
    assert len(layers) == 2
    for position in layers:
        wrong = break_at(program, [position], lambda g, y: g.multiply(y, 1 + error))
        found = guard(wrong, TARGET, reference(graph), [x], wide=in_float64(graph), threads=1)
        assert found.pins == {position}
    assert not guard(program, TARGET, reference(graph), [x], wide=in_float64(graph), threads=1).pins


def test_equal_instructions_are_repaired_together() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Mlp() for _ in range(6))).eval(), torch.randn(3, 8)
    graph = capture(model, (x,))
    program = scheduled(graph)
    bad = broken(composite.gelu, lambda g, v: g.add(g.gelu(v, "erf"), 0.1))
    where = {p for p, i in enumerate(program.instrs) if i.op is composite.gelu}
    wrong = replace(program, instrs=tuple(replace(i, op=bad) if i.op is composite.gelu else i for i in program.instrs))
    found = guard(wrong, TARGET, reference(graph), [x], threads=1)
    assert found.pins == where
    assert len(where) == 6
    (remark,) = [r for r in found.remarks if r.kind == "failed"]
    assert "5 like it" in remark.reason
    assert "gelu" in remark.node


def test_several_faults_are_repaired_one_after_the_other() -> None:
    model, inputs = language()
    graph = capture(model, inputs)
    program = scheduled(graph)
    kinds = (linalg.linear_bias, elementwise.add)
    where = [p for p in sorted(accelerated(program, TARGET)) if program.instrs[p].op in kinds]
    assert len(where) >= 3
    where = [where[0], where[-1]]
    found = guard(break_at(program, where, SPOILS["shifted"]), TARGET, reference(graph), inputs, threads=1)
    assert set(where) <= found.pins < accelerated(program, TARGET)
    assert difference(found.executable(inputs), run_graph(graph, inputs)) is None


def test_a_kernel_that_cannot_be_built_is_repaired() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    graph = capture(Mlp().eval(), (x,))
    program = scheduled(graph)
    position = next(p for p, i in enumerate(program.instrs) if i.op is composite.gelu)
    instrs = list(program.instrs)
    unbuildable = broken(composite.gelu, lambda g, v: g.reshape(v, g.i64([7]), False))
    instrs[position] = replace(instrs[position], op=unbuildable)
    found = guard(replace(program, instrs=tuple(instrs)), TARGET, reference(graph), [x], threads=1)
    assert found.pins == {position}
    assert difference(found.executable([x]), run_graph(graph, [x])) is None


def test_a_sound_program_is_left_alone() -> None:
    model, inputs = language()
    graph = capture(model, inputs)
    found = guard(scheduled(graph), TARGET, reference(graph), inputs, threads=1)
    assert found.pins == frozenset()
    assert found.probes == 4
    assert [r.kind for r in found.remarks] == ["passed"]


@pytest.mark.parametrize(("predicted_us", "crowded", "used"), [(1e2, False, 1), (1e6, False, 2), (1e6, True, 1)])
def test_brief_programs_and_busy_machines_have_a_thread_less(
    predicted_us: float, crowded: bool, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "_crowded", lambda: crowded)
    x, before, seen = torch.randn(3, 8), torch.get_num_threads(), list[int]()
    graph = capture(Mlp().eval(), (x,))

    def counted(inputs: Sequence[Any]) -> Sequence[Any]:
        seen.append(torch.get_num_threads())
        if len(seen) > 1:
            raise ValueError("refused")
        return run_graph(graph, inputs)

    try:
        torch.set_num_threads(2)
        guard(scheduled(graph), TARGET, counted, [x], threads=1, predicted_us=predicted_us)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {used}


def test_one_thread_waits_for_nobody() -> None:
    assert torch.get_num_threads() == 1
    assert not guard_module._crowded()


def test_a_program_that_differs_on_torch_is_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    graph = capture(Mlp().eval(), (x,))
    with pytest.raises(RunError, match="also when torch runs it"):
        guard(scheduled(graph), TARGET, lambda inputs: [v + 0.1 for v in run_graph(graph, inputs)], [x], threads=1)
    other = capture(Mlp().eval(), (x,))
    with pytest.raises(RunError, match="also when torch runs it"):
        guard(scheduled(graph), TARGET, reference(other), [x], wide=in_float64(other), threads=1)


def test_float64_of_a_captured_program() -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.double() * 3).float() + 1e-9

    x = torch.tensor([1 / 3])
    (found,) = in_float64(capture(Cast(), (x,)))([x]) or ()
    assert found.dtype is torch.float64
    assert float(found) == float(x.double() * 3) + 1e-9


def test_a_program_that_draws_is_comparable() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + torch.rand_like(x)) * 2.0

    x = torch.randn(3, 8)
    graph = capture(Noise(), (x,))
    assert graph.effects
    state = torch.get_rng_state()
    found = guard(scheduled(graph), TARGET, reference(graph), [x], threads=1)
    assert found.pins == frozenset()
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers are untouched


def test_probes_that_the_program_refuses_are_left_out() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x > 0).all(), "positive numbers are due")
            return x.log() * 2.0

    x = torch.rand(3, 8) + 0.5
    graph = capture(Positive(), (x,))
    found = guard(scheduled(graph), TARGET, reference(graph), [x], threads=1)
    assert found.probes == 1
    assert sum(r.kind == "analysis" for r in found.remarks) == 3


# ------------------------------------------------------------------------------------ the criterion


def test_the_criterion() -> None:
    x = torch.tensor([1.0, -2.0, math.nan, math.inf])
    assert difference([x], [x.clone()]) is None
    assert difference([x * (1 + 1e-6)], [x]) is None
    assert difference([x * 1.01], [x]) is not None
    assert "other places" in str(difference([torch.tensor([1.0, -2.0, 0.0, math.inf])], [x]))
    assert "another sign" in str(difference([torch.tensor([1.0, -2.0, math.nan, -math.inf])], [x]))
    assert difference([torch.tensor([1, 2])], [torch.tensor([1, 3])]) is not None
    assert difference([x], [x.double()]) is not None
    assert difference([x], [x[:3]]) is not None
    assert difference([], [x]) is not None
    assert difference([3, None, math.nan], [3, None, math.nan]) is None
    assert difference([3], [3.0]) is not None


def test_float64_decides_where_the_tolerance_does_not() -> None:
    exact = torch.linspace(1, 2, 50, dtype=torch.float64)
    reference, as_good, worse = ((exact + d).float() for d in (1e-3, -1e-3, 5e-3))
    assert difference([as_good], [reference]) is not None
    assert difference([as_good], [reference], lambda: [exact]) is None
    assert difference([worse], [reference], lambda: [exact]) is not None


TOKENS, ONES = torch.tensor([[3, 1, 2]]), torch.ones(1, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("examples", "count"),
    [
        ([TOKENS], 1),
        ([TOKENS, 4], 1),
        ([TOKENS, torch.tensor([True, False])], 1),
        ([], 1),
        ([torch.zeros(1, 3, dtype=torch.int64)], 2),
        ([TOKENS, ONES], 2),
        ([TOKENS, torch.randn(3)], 2),
        ([TOKENS[:, :1]], 2),
    ],
)
def test_a_variation_is_asked_where_it_is_another_kind_of_input(examples: list[Any], count: int) -> None:
    assert [name for name, _ in quick(examples)] == ["the example", "random"][:count]


def test_probes_stay_within_what_the_example_allows() -> None:
    ids, mask, x = torch.tensor([[3, 7, 5]]), torch.tensor([True, True]), torch.randn(2, 3)
    seen = dict(probes([ids, mask, x, 4]))
    assert list(seen) == ["the example", "random", "zeros", "large"]
    for inputs in seen.values():
        assert [getattr(v, "dtype", None) for v in inputs] == [torch.int64, torch.bool, torch.float32, None]
        assert 3 <= int(inputs[0].min()) <= int(inputs[0].max()) <= 7
        assert inputs[3] == 4
    assert float(seen["large"][2].abs().max()) > 5 > float(seen["random"][2].abs().max())
    assert not seen["zeros"][2].any()
    assert torch.equal(seen["random"][2], dict(probes([ids, mask, x, 4]))["random"][2])
