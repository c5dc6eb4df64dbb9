"""The precisions that the NPU computes in: f16, and int8 weights with a scale for each output channel.

Takes programs and values in f32. Gives the NPU's form of weights (:class:`Int8Builder`) and what a program computes in
those precisions (:func:`evaluate`), by torch on the host. Promises: sums of products are kept in f32, as on the device;
every stored value is f16. Not here: time (``npu.check``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from forge_eq.lower.npu import Instr, Program
from forge_eq.run.openvino_npu import NpuBuilder
from forge_eq.run.values import constant, run_instr

LEAST = 1 << 16  # elements of a weight that is worth a scale per channel
TOLERANCES = {"f16": 1e-2, "int8": 5e-2}  # RMSE over the standard deviation of the output, against f32


def quantised(weight: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8 values, scales): symmetric, one scale for each position on ``axis``; value * scale is the weight again."""
    others = [a for a in range(weight.dim()) if a != axis]
    scale = weight.abs().amax(others, keepdim=True).clamp(min=1e-12) / 127.0
    return torch.round(weight / scale).to(torch.int8), scale


class Int8Builder(NpuBuilder):
    """Large constant weights of products as int8, multiplied by their scales on the way: the compiler folds that in."""

    def matmul(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        # The axis of the channels: of x w the second of w, of w x the first; the other when w is transposed.
        a, b = self._coded(a, 1 if transpose_a else 0), self._coded(b, 0 if transpose_b else 1)
        return super().matmul(a, b, transpose_a, transpose_b)

    def _coded(self, weight: Any, axis: int) -> Any:
        if weight.get_type_name() != "Constant" or self.rank(weight) != 2 or int(np.prod(self.shape(weight))) < LEAST:
            return weight
        values, scale = quantised(torch.from_numpy(weight.get_data().copy()), axis)
        wide = self._named(self.opset.convert(self.constant(values), self.type(weight)))
        return self.multiply(wide, self.constant(scale))


def half(value: Any) -> Any:
    """A float tensor rounded to f16, held in f32; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.clamp(-65504.0, 65504.0).half().float()
    return value


def evaluate(program: Program, inputs: Sequence[Any], int8: bool = False) -> list[Any]:
    """The outputs as the NPU computes them: each kernel from f16 values, its result stored as f16.

    Args:
        int8: weights of products with a scale for each output channel. Host instructions keep f32.
    """
    values: list[Any] = [None] * len(program.vregs)
    weights = _product_weights(program) if int8 else {}
    for register, value in zip(program.inputs, inputs, strict=True):
        values[register] = half(value)
    for register in program.constant_names:
        found = constant(program, register)
        if register in weights and found.numel() >= LEAST:
            coded, scale = quantised(found.float(), weights[register])
            found = coded.float() * half(scale)
        values[register] = half(found)
    with torch.no_grad():
        for instr in program.instrs:
            results = run_instr(program, instr, values)
            for dst, result in zip(instr.dsts, results, strict=True):
                values[dst] = half(result)
    return [values[r] for r in program.outputs]


def _product_weights(program: Program) -> dict[int, int]:
    """Constant operand of a product -> the axis of its output channels."""
    found: dict[int, int] = {}
    for instr in program.instrs:
        weight = instr.srcs[1] if instr.unit == "matmul" and len(instr.srcs) > 1 else None
        if isinstance(weight, int) and weight in program.constant_names and _has_flag(instr):
            found[weight] = 0 if instr.attr("transposed") else 1
    return found


def _has_flag(instr: Instr) -> bool:
    return instr.op is not None and any(name == "transposed" for name, _ in instr.op.attrs)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Root mean square of the difference over the standard deviation of ``want``."""
    spread = float(want.float().std()) or 1.0
    return float((got.float() - want.float()).square().mean().sqrt()) / spread
