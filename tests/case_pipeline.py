"""The compiler as golden cases see it: a graph in text form through the stages of ``forge_eq.pipeline``."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from forge_eq.api import make_options
from forge_eq.ir.graph import Graph
from forge_eq.ir.text import parse
from forge_eq.ir.types import TensorType
from forge_eq.pipeline import STAGES, Job, run

SECTIONS = (*(f"after {stage.name}" for stage in STAGES), "remarks")
TORCH = {"f64": torch.float64, "f32": torch.float32, "i64": torch.int64, "bool": torch.bool}


def with_data(graph: Graph) -> Graph:
    """The graph with made-up constants: every name has its own values, the same in each run."""
    data = {}
    for node in graph.nodes:
        if node.op.leaf == "constant" and isinstance(node.type, TensorType):
            name, dtype = node.attrs[0], TORCH[node.type.dtype]
            drawn = torch.randn(node.type.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
            data[name] = drawn.to(dtype) if dtype.is_floating_point else drawn.abs().to(dtype)
    return replace(graph, constants=data)


def compile_case(source: str, options: Mapping[str, Any], reparse: bool) -> dict[str, str]:
    """Every section that the pipeline gives for the graph ``source``; checkers run between the stages.

    The option ``last`` names the stage to stop after, for programs that the next one refuses.
    """
    chosen = {"check": True, **options}
    last = chosen.pop("last", STAGES[-1].name)
    job = Job(make_options(None, chosen))
    job.forms["capture"] = with_data(parse(source))
    run(job, last, reparse=reparse)
    made = {f"after {stage.name}": stage.text(job) for stage in STAGES if stage.name in job.forms}
    return made | {"remarks": "".join(f"{remark}\n" for remark in job.remarks)}
