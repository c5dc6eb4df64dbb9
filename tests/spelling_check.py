"""Whether the compiler chose the composite for a spelling, and whether what it chose computes the right values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

import forge_eq
from forge_eq.ir.graph import Graph, Node
from forge_eq.ops import attention, composite, linalg, movement
from forge_eq.ops.spec import Op
from forge_eq.verify.criterion import difference
from spelling import Batch, Spelling

ATTENTION = (attention.attention, attention.attention_bias, attention.attention_mask, attention.attention_causal)
# The ops that stand for a composite, and what may stand beside them: views, and a table put together.
VIEWS = (movement.reshape, movement.permute, movement.swap_last, movement.slice_, movement.split, movement.project)
TARGETS: dict[str, tuple[tuple[Op, ...], tuple[Op, ...]]] = {
    "gelu": ((composite.gelu,), ()),
    "gelu_tanh": ((composite.gelu_tanh,), ()),
    "silu": ((composite.silu,), ()),
    "swiglu": ((composite.swiglu,), VIEWS),
    "softmax": ((composite.softmax,), ()),
    "rms_norm": ((composite.rms_norm,), ()),
    "layer_norm": ((composite.layer_norm,), ()),
    "linear": ((), (movement.reshape,)),
    "rope": ((composite.rope,), (movement.reshape, movement.concat)),
    "attention": (ATTENTION, (movement.reshape, movement.permute, movement.swap_last)),
}


@dataclass(frozen=True)
class Verdict:
    """``left``: what keeps it from being one composite; ``wrong``: how its values differ, empty when right."""

    spelling: Spelling
    left: tuple[str, ...]
    wrong: str

    @property
    def fused(self) -> bool:
        return not self.left


def cone(graph: Graph, output: int) -> list[Node]:
    """The nodes that one output is computed with; leaves, and how a mask is made, aside."""
    seen, todo, found = set(), [output], []
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        node = graph.nodes[at]
        todo += node.inputs[:3] if node.op in ATTENTION else node.inputs
        found += [] if node.op.leaf else [node]
    return found


def unfused(graph: Graph, output: int, spelling: Spelling) -> tuple[str, ...]:
    """Names of the ops that should not be there; "none" when the composite itself is not."""
    wanted, beside = TARGETS[spelling.composite]
    if spelling.composite == "linear":  # without a bias it is a product, by either name
        wanted = (linalg.linear_bias,) if len(spelling.weights) > 1 else (linalg.linear, linalg.matmul)
    nodes = cone(graph, output)
    extra = sorted(
        str(n.attrs[0]) if n.op.name.startswith("opaque") else n.op.name for n in nodes if n.op not in wanted + beside
    )
    count = sum(n.op in wanted for n in nodes)
    return tuple(extra) if extra else () if count == 1 else (f"{count} of the composite",)


def judge(spellings: Sequence[Spelling]) -> list[Verdict]:
    """Optimises all in one program; values are judged by the program criterion, with float64 as the truth."""
    module = Batch(spellings).eval()
    optimised = forge_eq.optimize(module, module.args, verify="off")
    with torch.no_grad():
        want, got = module(*module.args), optimised.module(*module.args)
        wide = Batch(spellings).double()
        exact = wide(*(a.double() if a.is_floating_point() else a for a in module.args))
    outputs = optimised.graph.outputs
    return [
        Verdict(s, unfused(optimised.graph, outputs[k], s), difference([got[k]], [want[k]], _truth(exact[k])) or "")
        for k, s in enumerate(spellings)
    ]


def _truth(value: torch.Tensor):
    return lambda: [value]
