"""The backends: each takes a module with inputs and gives a call without arguments, telling its set-up phases.

Every backend computes in float32 on the same threads. What a phase holds: ``capture`` (module to exported program),
``convert`` (exported program to the backend's model), ``own`` (ours only: all that has no name here, so the stages
from e-graph to allocation and admitting the rules), ``build`` (to something that runs), ``guard`` (ours only: comparing
with PyTorch, where that goes on after the build beside which it began). A backend that fails says so in a row.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_STAGES = ("egraph.engine", "extract.program", "lower.select", "lower.orient", "schedule.plan", "run.guard")
_OURS = ("forge_eq.program", "forge_eq.capture.record", *(f"forge_eq.{m}" for m in _STAGES), "openvino")

Call = Callable[[], Sequence[Any]]
Mark = Callable[[str], None]  # the phase that has just ended


@dataclass(frozen=True)
class Backend:
    """``prepare(module, args, threads, mark) -> call``; ``packages`` are imported before the clock starts."""

    name: str
    packages: tuple[str, ...]
    prepare: Callable[[torch.nn.Module, tuple[Any, ...], int, Mark], Call]
    about: str


def eager(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    return lambda: _listed(module(*args))


def inductor(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")  # cold: nothing of an earlier run
    compiled: Any = torch.compile(module)
    return lambda: _listed(compiled(*args))


def openvino_dynamic(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    return _openvino(_converted(module, args, mark), args, threads, mark)


def openvino_static(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    model = _converted(module, args, mark)
    model.reshape({port: list(a.shape) for port, a in zip(model.inputs, args, strict=True)})
    mark("convert")
    return _openvino(model, args, threads, mark)


def openvino_onnx(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        model = openvino.Core().read_model(_onnx(module, args, Path(folder), mark))
        mark("convert")
        return _openvino(model, args, threads, mark)


def onnxruntime(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = _onnx(module, args, Path(folder), mark)
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        mark("build")
    fed = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
    return lambda: session.run(None, fed)


def forge_export(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    return _forge(module, args, threads, mark, capture="export")


def forge_record(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    return _forge(module, args, threads, mark, capture="auto")


def _forge(module: torch.nn.Module, args: tuple[Any, ...], threads: int, mark: Any, **options: Any) -> Call:
    import forge_eq

    program = forge_eq.compile(module, args, threads=threads, cache=False, **options)
    seconds = program.job.seconds
    parts = {name: seconds[name] for name in ("capture", "build")}
    parts["guard"] = sum(seconds.get(name, 0.0) for name in ("guard", "verify", "confirm"))
    mark.split(parts, "own")
    return lambda: _listed(program(*args))


def _converted(module: torch.nn.Module, args: tuple[Any, ...], mark: Mark) -> Any:
    import openvino

    exported = torch.export.export(module, args, strict=False)
    mark("capture")
    model = openvino.convert_model(exported)
    mark("convert")
    return model


def _onnx(module: torch.nn.Module, args: tuple[Any, ...], folder: Path, mark: Mark) -> Path:
    exported = torch.export.export(module, args, strict=False)
    mark("capture")
    made: Any = torch.onnx.export(exported, dynamo=True, verbose=False)
    path = folder / "model.onnx"
    made.save(str(path), external_data=True)
    mark("convert")
    return path


def _openvino(model: Any, args: tuple[Any, ...], threads: int, mark: Mark) -> Call:
    """OpenVINO at its best: one stream, inputs bound once, outputs read in place."""
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    mark("build")
    for index, value in enumerate(args):
        request.set_input_tensor(index, openvino.Tensor(value.numpy(), shared_memory=True))
    outputs = range(len(compiled.outputs))

    def call() -> list[Any]:
        request.infer()
        return [request.get_output_tensor(i).data for i in outputs]

    return call


def _listed(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, tuple | list) else [outputs]


BACKENDS = {
    b.name: b
    for b in (
        Backend("forge_eq", _OURS, forge_export, "this compiler, capture by torch.export"),
        Backend("forge_eq record", _OURS, forge_record, "this compiler, capture by its recorder"),
        Backend("forge_eq again", _OURS, forge_export, "the same once more: how much two runs differ"),
        Backend("eager", (), eager, "PyTorch as it is"),
        Backend("torch.compile", ("torch._inductor",), inductor, "Inductor, C++ on the CPU, empty cache"),
        Backend(
            "OpenVINO dynamic", ("openvino",), openvino_dynamic, "convert_model of the exported program, as it comes"
        ),
        Backend("OpenVINO static", ("openvino",), openvino_static, "the same, reshaped to the example's sizes"),
        Backend(
            "OpenVINO ONNX", ("openvino", "onnx", "onnxscript"), openvino_onnx, "from torch.onnx.export(dynamo=True)"
        ),
        Backend("ONNX Runtime", ("onnxruntime", "onnx", "onnxscript"), onnxruntime, "the same file, all optimisations"),
    )
}
OURS, AGAIN, RECORD = "forge_eq", "forge_eq again", "forge_eq record"
STRONG = ("OpenVINO static", "ONNX Runtime")  # the peers that latency is compared with
