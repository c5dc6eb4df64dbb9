"""Every kernel against torch: the OpenVINO nodes that an op builds compute what ``Op.torch`` computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from forge_eq.ir.types import WEAK, TensorType
from forge_eq.ops import REGISTRY, composite, elementwise, linalg, movement, pooling, reduction
from forge_eq.ops.spec import Op
from kernel_samples import NAMES, Sample, samples, special_cases

pytest.importorskip("openvino", reason="the kernels are OpenVINO's")

from forge_eq.run.openvino_builder import element_type
from forge_eq.run.openvino_cpu import CpuBuilder

torch.set_num_threads(1)
KERNELS = [op for op in REGISTRY.values() if op.kernel is not None]


def run_kernel(op: Op, cases: Sequence[Sample]) -> list[list[np.ndarray]]:
    """Builds one model that computes the op on every case, and runs it."""
    g = CpuBuilder()
    parameters, feeds, results, counts = [], [], [], []
    for number, (operands, attrs) in enumerate(cases):
        with g.instruction(f"case{number}"):
            nodes = []
            for value in operands:
                if isinstance(value, torch.Tensor):
                    parameters.append(g.opset.parameter(list(value.shape), element_type(NAMES[value.dtype])))
                    feeds.append(value.numpy())
                    nodes.append(parameters[-1])
                else:
                    nodes.append(value)
            assert op.kernel is not None
            made = op.kernel.openvino(g, *nodes, *attrs)
            outputs = list(made) if isinstance(made, tuple | list) else made.outputs() if op.multi else [made]
            results += outputs
            counts.append(len(outputs))
    core = g.ov.Core()
    model = core.compile_model(g.ov.Model(results, parameters, "kernel"), "CPU", CONFIG)
    found = iter(np.array(v) for v in model(feeds).to_tuple())
    return [[next(found) for _ in range(n)] for n in counts]


CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}


def type_of(value: Any) -> TensorType:
    tensor = isinstance(value, torch.Tensor)
    return TensorType(NAMES[value.dtype], tuple(value.shape)) if tensor else TensorType(WEAK, ())


def reference(op: Op, operands: list[Any], attrs: tuple[Any, ...]) -> list[torch.Tensor]:
    assert op.torch is not None
    out = op.torch(*operands, *attrs)
    return list(out) if isinstance(out, tuple | list) else [out]


@pytest.mark.parametrize("op", KERNELS, ids=lambda op: op.name)
def test_a_kernel_computes_what_torch_computes(op: Op) -> None:
    cases = samples(op)
    for (operands, attrs), found in zip(cases, run_kernel(op, cases), strict=True):
        expected = reference(op, operands, attrs)
        types = [type_of(v) for v in operands]
        inferred = op.infer(types, attrs)
        assert len(found) == len(expected)
        for got, want, t in zip(found, expected, getattr(inferred, "items", (inferred,)), strict=True):
            assert isinstance(t, TensorType)
            assert (got.dtype, got.shape) == (want.numpy().dtype, t.shape), (op.name, types, attrs)
            if op.traits.exact and op is not elementwise.sqrt:  # the plugin's sqrt is one unit off at times
                np.testing.assert_array_equal(got, want.numpy(), err_msg=f"{op.name} {types} {attrs}")
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{op.name} {types} {attrs}")


def same_bits(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Equal, with NaN equal to NaN and zeros equal only with their sign."""
    if got.dtype == np.bool_:
        return got == want
    return (np.isnan(got) & np.isnan(want)) | ((got == want) & (np.signbit(got) == np.signbit(want)))


FLOATY = [
    op
    for op in KERNELS
    if (op.traits.elementwise and op not in (elementwise.logical_and, elementwise.logical_or, elementwise.logical_not))
    or op in (reduction.amax, composite.softmax, pooling.max_pool)
]


@pytest.mark.parametrize("op", [op for op in FLOATY if op is not movement.dropout_eval], ids=lambda op: op.name)
def test_a_kernel_agrees_on_special_values(op: Op) -> None:
    cases = special_cases(op)
    for (operands, attrs), found in zip(cases, run_kernel(op, cases), strict=True):
        for got, want in zip(found, reference(op, operands, attrs), strict=True):
            target = want.numpy()
            if op in (elementwise.maximum, elementwise.minimum):
                got, target = got + 0.0, target + 0.0  # which of -0.0 and 0.0 is larger depends on torch's own kernel
            if op.traits.exact:
                good = same_bits(got, target)
            else:
                good = np.isclose(got, target, rtol=1e-5, atol=1e-30, equal_nan=True)
            assert good.all(), f"{op.name} {operands} {attrs}: {got[~good]} where torch has {target[~good]}"


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("n", [6, 7])
@pytest.mark.parametrize("stored", [True, False], ids=["column", "row"])
def test_one_row_with_its_weight_on_the_left(threads: int, n: int, stored: bool) -> None:
    """In parts where the threads divide it; two products of one row share its copies."""
    g, k = CpuBuilder(threads), 5
    x, weights = torch.randn(1, 1, k), [torch.randn(n, k), torch.randn(n, k), torch.randn(k, n)]
    row = g.opset.parameter([1, k, 1] if stored else [1, 1, k])
    with g.instruction("layers"):
        made = [linalg.left(g, stored, row, g.constant(w), w.shape == (n, k)) for w in weights]
    copies = [o for o in g.ov.Model(made, [row], "row").get_ops() if o.get_type_name() == "Concat"]
    assert len(copies) == (threads > 1 and n % threads == 0)
    assert all(g.shape(y) == [1, 1, n] for y in made)
    found = g.ov.Core().compile_model(g.ov.Model(made, [row], "row"), "CPU", CONFIG)([x.reshape(g.shape(row)).numpy()])
    for y, w in zip(found.to_tuple(), weights, strict=True):
        torch.testing.assert_close(torch.from_numpy(np.array(y)), x @ (w.t() if w.shape == (n, k) else w))
