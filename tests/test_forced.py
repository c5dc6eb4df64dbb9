"""What lowering can force: programs that extraction prices apart run as different kernels of OpenVINO.

The record is docs/decisions/0009-what-lowering-can-force.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from forge_eq.ir.types import TensorType
from forge_eq.lower.orient import orient_all
from forge_eq.lower.select import lower
from forge_eq.ops import composite, elementwise, linalg, movement
from forge_eq.schedule.plan import schedule
from forge_eq.targets import shipped
from forge_eq.targets.price import best_time, left_time, row_time
from npu_programs import Draft, F
from run_programs import TARGET

pytest.importorskip("openvino", reason="what is compared are OpenVINO's graphs")

from forge_eq.run.executor import Executable

TOKENS, K, N = 5, 96, 288  # N beyond the sizes that the plugin chains


def kernels(draft: Draft, out: int, left: bool = False) -> list[tuple[str, str]]:
    """(type, kernel) of what OpenVINO runs, in order; constants, ports and reorders apart."""
    graph = draft.done(out)
    data = {n.attrs[0]: torch.randn(n.type.shape) * 0.1 for n in graph.nodes if n.op.leaf == "constant"}  # type: ignore[union-attr]
    program = lower(replace(graph, constants=data), TARGET)
    program = orient_all(program, TARGET) if left else program
    (segment,) = Executable(schedule(program, TARGET).program, TARGET, threads=1).models
    found = []
    for node in segment.compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        kind, kernel = (info[k].astype(str) for k in ("layerType", "primitiveType"))
        if kind not in ("Input", "Output", "Const", "Constant", "Parameter", "Result", "Reorder"):
            found.append((kind, kernel))
    return found


def gelu(act: str, form: str) -> list[tuple[str, str]]:
    d = Draft("g")
    x, w = d.input(F, 1, TOKENS, K), d.const("w", F, N, K)
    if form == "fused":
        return kernels(d, d.op(composite.linear_act, x, w, attrs=(True, act)))
    y = d.op(linalg.linear, x, w, attrs=(True,))
    return kernels(d, d.op(composite.ACTIVATIONS[act][0], y), left=form == "left")


def gated(form: str) -> list[tuple[str, str]]:
    d = Draft("m")
    x = d.input(F, 1, TOKENS, K)
    v, w = d.const("v", F, N, K), d.const("w", F, N, K)
    if form == "merged":
        both = d.op(linalg.linear, x, d.const("vw", F, 2 * N, K), attrs=(True,))
        parts = d.op(movement.split, both, attrs=((N, N), 2))
        a, b = (d.op(movement.project, parts, attrs=(i,)) for i in (0, 1))
        return kernels(d, d.op(composite.swiglu, a, b))
    up = d.op(linalg.linear, x, w, attrs=(True,))
    if form == "fused":
        return kernels(d, d.op(elementwise.mul, d.op(composite.linear_act, x, v, attrs=(True, "silu")), up))
    return kernels(d, d.op(composite.swiglu, d.op(linalg.linear, x, v, attrs=(True,)), up), left=form == "left")


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_a_fused_activation_is_another_kernel(act: str) -> None:
    fused, apart, left = (gelu(act, form) for form in ("fused", "apart", "left"))
    assert [k for k, _ in fused] == ["FullyConnected"]
    assert [k for k, _ in apart] == ["FullyConnected", "Subgraph"]
    assert fused[0][1] != apart[0][1]
    assert "MatMul" in [k for k, _ in left]
    assert "FullyConnected" not in [k for k, _ in left]


def test_gate_and_up_have_three_forms() -> None:
    """A gate apart from its product would be a fourth, but costs SmolLM2 its fidelity: see decision 0009."""
    found = {form: tuple(gated(form)) for form in ("fused", "apart", "merged", "left")}
    assert len(set(found.values())) == 3, found
    assert found["fused"] == found["apart"]
    assert sum(k == "FullyConnected" for k, _ in found["merged"]) == 1
    assert len({kernel for k, kernel in found["fused"] if k == "FullyConnected"}) == 2


@pytest.mark.parametrize("act", ["tanh", "gelu"])
def test_what_the_plugin_fuses_in_any_spelling(act: str) -> None:
    """The two are one program: no choice of extraction is seen here. When this fails, the record is out of date."""
    assert gelu(act, "fused") == gelu(act, "apart")


def test_the_plugin_merges_a_residual_norm_by_itself() -> None:
    """The sum and its norm are the same nodes, written as one op or as two."""
    found = []
    for fused in (False, True):
        d = Draft("n")
        x, r, g = d.input(F, 1, TOKENS, K), d.input(F, 1, TOKENS, K), d.const("g", F, K)
        if fused:
            both = d.op(composite.add_rms_norm, x, r, g, attrs=((2,), 1e-6))
            out = d.op(movement.project, both, attrs=(1,))
        else:
            out = d.op(composite.rms_norm, d.op(elementwise.add, x, r), g, attrs=((2,), 1e-6))
        found.append(kernels(d, out))
    assert found[0] == found[1]


# ------------------------------------------------------------------ what follows from the shipped figures


def layer(op: Any, tokens: int, k: int, n: int, *attrs: Any) -> tuple[Any, ...]:
    types: Sequence[TensorType] = (TensorType(F, (1, tokens, k)), TensorType(F, (n, k)))
    return op, types, (True, *attrs), TensorType(F, (1, tokens, n))


def vector(tokens: int, n: int, op: Any = composite.silu) -> float:
    t = TensorType(F, (1, tokens, n))
    return best_time(shipped("openvino-cpu"), op, [t] * len(op.inputs), (), t)


def test_the_better_kernel_flips_with_the_shape() -> None:
    """The flips seen on a Zen 4 core come out of the shipped table; some of its points are estimates, see there."""
    target = shipped("openvino-cpu")
    plain = {t: row_time(target, *layer(linalg.linear, t, 2048, 8192)) for t in (1, 4, 64, 512)}
    act = {t: row_time(target, *layer(composite.linear_act, t, 2048, 8192, "silu")) for t in plain}
    assert act[1] > 1.5 * (plain[1] + vector(1, 8192)), "a fused activation loses at one token"
    assert act[512] < plain[512] + vector(512, 8192), "and wins at 512"
    fused_gate = act[1] + plain[1] + vector(1, 8192, elementwise.mul)
    merged = row_time(target, *layer(linalg.linear, 1, 2048, 16384)) + vector(1, 8192, composite.swiglu)
    assert merged < fused_gate, "merging gate and up wins for one token over a fused gate"
    for tokens in (1, 16, 64, 128):
        for k, n in ((2048, 2048), (8192, 2048), (4096, 4096)):
            assert left_time(target, *layer(linalg.linear, tokens, k, n)) < row_time(  # type: ignore[operator]
                target, *layer(linalg.linear, tokens, k, n)
            ), (tokens, k, n)
    for tokens in (16, 128):
        assert left_time(target, *layer(linalg.linear, tokens, 768, 3072)) > row_time(  # type: ignore[operator]
            target, *layer(linalg.linear, tokens, 768, 3072)
        ), "no gain at small k"
