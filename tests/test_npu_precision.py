"""Precisions of the NPU: int8 per channel, f16 storage, fidelity of both against f32 with their own tolerances."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from forge_eq.capture import capture
from forge_eq.families import build
from forge_eq.npu import precision
from forge_eq.npu.compiler import Compiled, Compiler
from forge_eq.npu.precision import TOLERANCES, Int8Builder, error, evaluate, half, quantised
from forge_eq.npu.segments import npu_segments, segment_model
from forge_eq.ops import composite, linalg
from forge_eq.ops.spec import Op
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.run.openvino_npu import NpuBuilder, builder_of
from forge_eq.run.values import evaluate as in_f32
from test_npu_compiler import program


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scale_for_each_channel(axis: int) -> None:
    torch.manual_seed(0)
    w = torch.randn(16, 24) * torch.logspace(-3, 3, 24)
    values, scale = quantised(w, axis)
    assert values.dtype is torch.int8
    assert scale.shape == ((16, 1) if axis == 0 else (1, 24))
    assert bool(((values * scale - w).abs() <= scale * 0.5001).all())
    assert int(values.abs().amax(1 - axis).min()) == 127  # every channel uses the whole range


def test_a_channel_of_zeros_stays_zero() -> None:
    values, scale = quantised(torch.zeros(2, 3), 0)
    assert not (values * scale).any()


def test_half_is_f16_without_infinities() -> None:
    x = torch.tensor([1.0, 1 + 2.0**-12, 1e9, -1e9])
    assert half(x).tolist() == [1.0, 1.0, 65504.0, -65504.0]
    assert half(3) == 3


@pytest.mark.parametrize("family", ["gpt2-124m", "llama-3.1-8b"])
def test_fidelity_of_a_family(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny sizes, every layer kind. No weight of a tiny model has a scale by itself, so all are given one."""
    monkeypatch.setattr(precision, "LEAST", 1)
    model = build(family, 16, tiny=True)
    job = Job(Options(target="intel-npu-4000"), forms={"capture": capture(model.module, model.args)})
    found = run(job, "schedule")["schedule"].program
    (register,) = found.outputs
    want = in_f32(found, model.args)[register]
    (f16,) = evaluate(found, model.args)
    assert 0 < error(f16, want) <= TOLERANCES["f16"]
    (again,) = evaluate(found, model.args, int8=True)
    assert error(f16, want) < error(again, want) <= TOLERANCES["int8"]


def test_int8_of_large_weights() -> None:
    made, _ = program()
    x = torch.randn(1, 128, 256, generator=torch.Generator().manual_seed(1))
    want = in_f32(made, [x])[made.outputs[0]]
    (plain,), (coded,) = evaluate(made, [x]), evaluate(made, [x], int8=True)
    assert error(plain, want) < error(coded, want) <= TOLERANCES["int8"]


def test_int8_is_accepted_and_its_blob_is_smaller(npu: Compiler) -> None:
    made, target = program()
    segment = next(npu_segments(made, target))
    plain, coded = segment_model(made, segment), segment_model(made, segment, Int8Builder)
    assert plain is not None
    assert coded is not None
    one, two = npu.compile(plain.model), npu.compile(coded.model)
    assert isinstance(one, Compiled)
    assert isinstance(two, Compiled)
    assert two.blob < 0.7 * one.blob


@pytest.mark.parametrize(
    ("op", "kind", "want"),
    [
        (composite.silu, "Swish", torch.nn.functional.silu),
        (composite.gelu_tanh, "Gelu", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    ],
)
def test_an_activation_alone_is_one_kernel(op: Op, kind: str, want: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The CPU's spelling in parts, which its plugin leaves apart from a product, is a kernel each on the SHAVEs."""
    import openvino as ov

    g = NpuBuilder()
    x = g.opset.parameter([3, 8], ov.Type.f32)
    assert op.kernel is not None
    model = ov.Model([g.opset.result(op.kernel.openvino(g, x))], [x], "alone")
    assert sorted({n.get_type_name() for n in model.get_ordered_ops()} - {"Constant"}) == sorted(
        {"Parameter", "Result", kind}
    )
    value = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    (got,) = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([value.numpy()]).values()
    torch.testing.assert_close(torch.from_numpy(got), want(value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("platform", "rows", "parts"), [("4000", 2048, 9), ("5010", 2048, 9), ("3720", 2048, 1), ("4000", 20, 1)]
)
def test_rows_of_a_large_table_are_read_in_parts(platform: str, rows: int, parts: int) -> None:
    """Of columns that nine does not divide, in order; where vector units look up, and of a small table, in one."""
    import openvino as ov

    g = builder_of(platform)()
    table = torch.randn(rows, 515, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, rows - 1, 7], [7, 1, 0]])
    words = g.opset.parameter([2, 3], ov.Type.i64)
    assert linalg.embedding.kernel is not None
    model = ov.Model([g.opset.result(linalg.embedding.kernel.openvino(g, g.constant(table), words))], [words], "words")
    assert [n.get_type_name() for n in model.get_ordered_ops()].count("Gather") == parts
    (got,) = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([ids.numpy()]).values()
    assert (torch.from_numpy(got) == table[ids]).all()
