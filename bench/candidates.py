"""What is compared: the same module run by torch, in float64, by plain OpenVINO and by forge_eq.

A candidate takes the model's inputs and gives its one output as a tensor.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Candidate = Callable[..., torch.Tensor]

NARROW = (torch.float16, torch.bfloat16, torch.float32)


class Widen(TorchDispatchMode):
    """Sends every request for a narrower float to float64.

    ``module.double()`` alone is no float64 truth: norms, softmax and rotary tables of these models ask for float32
    by name and would round there.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        wide = [torch.float64 if isinstance(a, torch.dtype) and a in NARROW else a for a in args]
        named = {
            k: torch.float64 if isinstance(v, torch.dtype) and v in NARROW else v for k, v in (kwargs or {}).items()
        }
        return func(*wide, **named)


def eager(module: torch.nn.Module) -> Candidate:
    """torch as it is."""

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return module(*inputs)

    return run


def float64(module: torch.nn.Module) -> Candidate:
    """The truth: the same weights, every operation in float64. Shares no code with forge_eq.

    Raises AssertionError when something was computed in a narrower float after all.
    """
    wide = copy.deepcopy(module).double()

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), Widen():
            result: torch.Tensor = wide(*inputs)
        assert result.dtype is torch.float64
        return result

    return run


def plain_openvino(module: torch.nn.Module, example: Sequence[torch.Tensor], threads: int) -> Candidate:
    """OpenVINO's own converter on the exported program, reshaped to the example's static shapes, float32 forced."""
    import openvino as ov

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's about itself
        program = torch.export.export(module, tuple(example), strict=False)
        model = ov.convert_model(program)
    model.reshape({port: list(x.shape) for port, x in zip(model.inputs, example, strict=True)})
    config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
    compiled = ov.Core().compile_model(model, "CPU", {**config, "INFERENCE_NUM_THREADS": str(threads)})
    request = compiled.create_infer_request()

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        request.infer([x.numpy() for x in inputs], share_inputs=False)
        return torch.from_numpy(request.get_output_tensor(0).data.copy())

    return run
