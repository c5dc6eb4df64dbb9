"""Weights kept as small integers: only where they are that to the bit, only where it pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import forge_eq
from forge_eq.extract.fold import Folded, fold
from forge_eq.ir.graph import Builder
from forge_eq.ir.types import TensorType
from forge_eq.lower import pack as packing
from forge_eq.lower.pack import GROUP, exact, pack
from forge_eq.ops.composite import linear_bias_act
from forge_eq.ops.leaves import constant, input_
from forge_eq.ops.linalg import linear
from forge_eq.ops.movement import concat
from forge_eq.ops.packed import linear_packed, linear_packed_offset, unpack, unpack_offset
from forge_eq.targets import shipped

torch.set_num_threads(1)
TARGET = shipped("openvino-cpu")
PACKED = (linear_packed, linear_packed_offset)


def quantised(rows: int, columns: int, seed: int = 0, levels: int = 127, group: int = GROUP) -> torch.Tensor:
    """A weight as a GGUF file in Q8_0 gives it: integers times a half-precision scale for each group."""
    rng = torch.Generator().manual_seed(seed)
    q = torch.randint(-levels, levels + 1, (rows, columns // group, group), generator=rng).float()
    q[..., 0] = levels  # the element that set the scale
    scale = (torch.rand(rows, columns // group, 1, generator=rng) * 1e-2 + 1e-4).half().float()
    return (q * scale).reshape(rows, columns)


@pytest.mark.parametrize("levels", [127, 100, 7, 1])
@pytest.mark.parametrize("group", [GROUP, 4 * GROUP])
def test_integers_times_scales_are_found_again(levels: int, group: int) -> None:
    weight = quantised(24, 4 * GROUP, levels=levels, group=group)
    found = exact(weight)
    assert found is not None
    assert found[0].dtype is torch.int8
    run = unpack.torch
    assert run is not None
    assert torch.equal(run(*found), weight)


def test_minus_128_is_an_integer_and_128_is_none() -> None:
    q = torch.full((2, GROUP), 3.0)
    q[:, 5] = -128.0
    found = exact(q * 0.25)
    assert found is not None
    assert found[0].min() == -128
    q[0, 5] = 128.0
    q[0, 6] = 127.0
    assert exact(q * 0.25) is None


def test_groups_of_zeros_stay_zeros() -> None:
    weight = quantised(8, 2 * GROUP)
    weight[3] = 0.0
    weight[5, :GROUP] = 0.0
    found = exact(weight)
    assert found is not None
    assert not found[0][3].any()
    assert torch.equal(unpack.torch(*found), weight)  # type: ignore[misc]


def stored_with_offset(rows: int, columns: int, steps: int = 15, bits: int = 11, seed: int = 0) -> torch.Tensor:
    """A weight as a GGUF file in Q4_1 gives it: integers from 0 times a scale, plus the least of the group."""
    rng = torch.Generator().manual_seed(seed)
    q = torch.randint(0, steps + 1, (rows, columns // GROUP, GROUP), generator=rng).float()
    q[..., 0], q[..., 1] = 0, steps
    scale = torch.rand(rows, columns // GROUP, 1, generator=rng) * 1e-2 + 1e-4
    least = -scale * steps * torch.rand(scale.shape, generator=rng)
    scale, least = scale.half().float(), least.half().float()
    if bits == 17:  # times a number of six bits, as a GGUF file in Q4_K has it
        scale = scale * torch.randint(32, 64, scale.shape, generator=rng)
        least = least * torch.randint(32, 64, scale.shape, generator=rng)
    return (q * scale + least).reshape(rows, columns)


@pytest.mark.parametrize(("steps", "bits"), [(15, 11), (31, 11), (255, 11), (15, 17), (63, 17)])
def test_integers_with_scale_and_offset_are_found_again(steps: int, bits: int) -> None:
    weight = stored_with_offset(40, 4 * GROUP, steps, bits)
    found = exact(weight)
    assert found is not None
    q, s, z = found
    assert q.dtype is torch.uint8
    run = unpack_offset.torch
    assert run is not None
    largest = weight.reshape(-1, GROUP).abs().amax(1).repeat_interleave(GROUP).reshape(weight.shape)
    assert ((run(q, s, z) - weight).abs() <= 2 * torch.finfo(torch.float32).eps * largest).all()


def test_a_group_of_one_value_is_that_value() -> None:
    weight = stored_with_offset(8, 2 * GROUP)
    weight[2], weight[4, GROUP:] = 0.0, -0.37
    found = exact(weight)
    assert found is not None
    assert len(found) == 3
    run = unpack_offset.torch
    assert run is not None
    assert torch.equal(run(*found)[2], weight[2])
    assert torch.equal(run(*found)[4, GROUP:], weight[4, GROUP:])


def given_back(weight: torch.Tensor) -> torch.Tensor:
    """The weight from its parts: s q, or s q + o with o = -z s, which is z's rounding away; the integers are exact."""
    found = exact(weight)
    assert found is not None
    q, s, *z = found
    groups = weight.reshape(*s.shape, GROUP)
    whole = q.reshape(groups.shape).double() * s.double().unsqueeze(2)
    if z:
        even = (groups.amax(2) == groups.amin(2)).unsqueeze(2)
        offset = torch.where(even, 0.0, groups.amin(2, keepdim=True))
        assert torch.allclose(-z[0] * s, offset.squeeze(2), rtol=3e-7, atol=0.0)
        whole = whole + offset
    return whole.float().reshape(weight.shape)


@pytest.mark.parametrize("seed", range(12))
def test_any_half_precision_scale_gives_the_weight_back_to_the_bit(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rows, columns = int(torch.randint(1, 40, (), generator=rng)), int(torch.randint(1, 9, (), generator=rng))
    exponents = torch.randint(-24, 5, (rows, columns, 1), generator=rng)  # the least half-precision number is 2^-24
    scale = (torch.rand(rows, columns, 1, generator=rng) + 1.0).mul(2.0**exponents).half().float()
    levels = (127, 100, 8, 7)[seed % 4]
    q = torch.randint(-levels, levels + 1, (rows, columns, GROUP), generator=rng).float()
    q[..., 3] = levels
    q[torch.rand(rows, columns, generator=rng) < 0.1] = 0.0
    q = torch.where((q == 0) & (torch.rand(q.shape, generator=rng) < 0.5), -0.0, q)  # a zero of either sign
    symmetric = (q * scale).reshape(rows, -1)
    assert torch.equal(given_back(symmetric), symmetric)

    steps = (15, 31, 255, 3, 7, 63, 127)[seed % 7]
    q = torch.randint(0, steps + 1, (rows, columns, GROUP), generator=rng).float()
    q[..., 5], q[..., 9] = 0, steps
    q[torch.rand(rows, columns, generator=rng) < 0.1] = 1.0  # groups of one value
    least = (scale * steps * torch.randn(scale.shape, generator=rng)).half().float()
    affine = (q.double() * scale.double() + least.double()).float().reshape(rows, -1)
    assert torch.equal(given_back(affine), affine)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, None], ids=str)
@pytest.mark.parametrize("at", [(0, 0), (4096, 31), (8999, 63)], ids=str)
@pytest.mark.parametrize("make", [quantised, stored_with_offset], ids=["symmetric", "offset"])
def test_one_wrong_element_of_a_large_weight_is_seen(
    make: Any, at: tuple[int, int], value: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "CHUNK", 1 << 12)  # the weight has five
    weight = make(9000, 2 * GROUP)
    row, column = at
    weight[row, column] = torch.nextafter(weight[row, column], torch.tensor(9.0)) if value is None else value
    assert exact(weight) is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_a_group_of_nothing_finite_is_refused(value: float) -> None:
    for weight in (quantised(64, 64), stored_with_offset(64, 64), torch.zeros(64, 64)):
        weight[40, GROUP:] = value
        assert exact(weight) is None


def test_groups_of_other_steps_in_one_weight_are_found() -> None:
    weight = torch.cat([quantised(30, 64, i, levels) for i, levels in enumerate((127, 7, 1, 90, 8))])
    assert torch.equal(given_back(weight), weight)
    weight = torch.cat([stored_with_offset(30, 64, *kind) for kind in ((15, 11), (31, 11), (63, 17), (15, 17))])
    assert torch.equal(given_back(weight), weight)


def nudged(weight: torch.Tensor) -> torch.Tensor:
    changed = weight.clone()
    changed[17, 40] = torch.nextafter(changed[17, 40], torch.tensor(torch.inf))
    return changed


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(64, 64, generator=torch.Generator().manual_seed(0)),
        nudged(quantised(64, 64)),
        nudged(stored_with_offset(64, 64)),
        quantised(64, 64).double(),
        quantised(64, 64)[:, : GROUP + 8],
        quantised(64, 64).index_fill(0, torch.tensor([60]), torch.nan),
        quantised(64, 64).index_fill(0, torch.tensor([60]), torch.inf),
        torch.empty(0, GROUP),
        torch.zeros(GROUP),
    ],
    ids=["ordinary", "one last bit", "one last bit, offset", "f64", "odd width", "nan", "inf", "empty", "vector"],
)
def test_anything_else_is_left_alone(weight: torch.Tensor) -> None:
    assert exact(weight) is None


def graph_of(weight: torch.Tensor, tokens: int, bias: bool = False) -> forge_eq.Graph:
    builder = Builder()
    x = builder.add(input_, (), (0,), TensorType("f32", (1, tokens, weight.shape[1])))
    w = builder.add(constant, (), ("w",), TensorType("f32", tuple(weight.shape)))
    data = {"w": weight}
    if bias:
        data["b"] = torch.ones(weight.shape[0])
        b = builder.add(constant, (), ("b",), TensorType("f32", (weight.shape[0],)))
        y = builder.add(linear_bias_act, (x, w, b), (True, "gelu_tanh"))
    else:
        y = builder.add(linear, (x, w), (True,))
    return builder.finish((y,), constants=data)


def ops(graph: forge_eq.Graph) -> list[str]:
    return [n.op.name for n in graph.nodes if not n.op.leaf]


def test_a_step_is_packed_and_a_long_prompt_is_not() -> None:
    weight = quantised(512, 512)
    assert ops(pack(graph_of(weight, 1), TARGET)) == ["linear_packed"]
    assert ops(pack(graph_of(weight, 512), TARGET)) == ["linear"]
    assert ops(pack(graph_of(weight, 1, bias=True), TARGET)) == ["linear_packed", "add", "gelu_tanh"]


def test_a_target_without_that_kernel_packs_nothing() -> None:
    kernels = TARGET.kernels
    bare = replace(TARGET, kernels=replace(kernels, points=tuple(p for p in kernels.points if p.form != "packed")))
    graph = graph_of(quantised(512, 512), 1)
    assert pack(graph, bare) is graph
    assert pack(graph, shipped("torch")) is graph


class Tied(torch.nn.Module):
    """A model whose head is its embedding, with weights from eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(320, 256)
        self.up = torch.nn.Linear(256, 512)
        self.down = torch.nn.Linear(512, 256, bias=False)
        self.embed.weight.data = quantised(320, 256)
        self.up.weight.data = quantised(512, 256, seed=1)
        self.down.weight.data = stored_with_offset(256, 512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.down(torch.nn.functional.silu(self.up(x)))
        return torch.nn.functional.linear(x, self.embed.weight)


def test_a_compiled_model_runs_on_packed_weights_and_keeps_its_values() -> None:
    pytest.importorskip("openvino", reason="the kernel is OpenVINO's")
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.tensor([[7]])
    program = forge_eq.compile(module, (ids,), threads=1, cache=False)
    used = [i.op for i in program.npuir.instrs if i.op is not None]
    assert (used.count(linear_packed), used.count(linear_packed_offset)) == (2, 1)
    assert all(i.device != program.job.target.host for i in program.npuir.instrs if i.op in PACKED)
    with torch.no_grad():
        for other in (ids, torch.tensor([[311]])):
            want = module(other)
            torch.testing.assert_close(program(other), want, rtol=0, atol=2e-6 * float(want.abs().max()))


def test_a_merged_weight_that_was_packed_is_forgotten_and_comes_back() -> None:
    b = Builder()
    x = b.add(input_, (), (0,), TensorType("f32", (1, 4 * GROUP)))
    data = {"a": quantised(8, 4 * GROUP, 1), "b": quantised(16, 4 * GROUP, 2)}
    parts = tuple(b.add(constant, (), (n,), TensorType("f32", tuple(w.shape))) for n, w in data.items())
    merged = b.add(concat, parts, (0,))
    graph = fold(b.finish((b.add(linear, (x, merged), (True,)),), constants=data))
    (name,) = graph.constants
    before = graph.constants[name].clone()
    assert isinstance(graph.constants, Folded)
    graph.constants.forget({name})
    assert name in graph.constants.data
    graph.constants.forget(())
    assert not graph.constants.data
    assert list(graph.constants) == [name]
    assert torch.equal(graph.constants[name], before)
