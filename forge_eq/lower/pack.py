"""Packing: weights that were stored as small integers are kept as such where reading them costs most.

Takes a graph whose weights are constants, and its target. Gives an equal graph. Promises: a weight is packed only if
its integers, scales and offsets give it back to the bit, every element compared; only where the target's kernel table
says that the product is faster; the original stays shared with whoever else reads it (an embedding).
Not here: the times (``targets.kernels``), the kernel (``ops.packed``).

A model that was stored in eight bits or fewer and is used in f32 (a GGUF file in Q8_0 or Q4_1, weights after
quantisation) still has those integers in its numbers: within a group, w = s q, or w = s q + o. A step over one token
reads all weights and computes little, so a third of the bytes is a fraction of the time, in the same f32.
"""

from __future__ import annotations

from typing import Any

import torch

from forge_eq.capture.values import DTYPE_NAMES
from forge_eq.ir.graph import Builder, Graph, Node, Origin
from forge_eq.ir.types import TensorType
from forge_eq.ops.composite import ACTIVATIONS
from forge_eq.ops.elementwise import add
from forge_eq.ops.leaves import constant
from forge_eq.ops.packed import linear_packed, linear_packed_offset
from forge_eq.targets import Target
from forge_eq.targets.price import best_time, packed_time

GROUP = 32  # elements; a coarser group of integers is also several groups of this size
PROBE = 2  # groups that are tried first: an ordinary weight is refused by them
CHUNK = 1 << 11  # groups at a time, so that temporaries stay in the cache
PAYS = 0.97  # share of the unpacked time that must not be exceeded
PRODUCTS = {2: linear_packed, 3: linear_packed_offset}  # by the number of parts
TINY = torch.finfo(torch.float32).tiny
RULE = "packed/exact"


def pack(graph: Graph, target: Target) -> Graph:
    """The graph with the products that gain by it done on packed weights."""
    if not target.kernels.has("packed") or not any(d.kind == "openvino" for d in target.accelerators):
        return graph
    return _Packer(graph, target).run()


class _Packer:
    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.builder = Builder(graph)
        self.data = dict(graph.constants)
        self.ids: dict[int, int] = {}
        self.found: dict[str, tuple[torch.Tensor, ...] | None] = {}  # weight -> what it was stored as
        self.made: dict[str, list[int]] = {}  # the same in the new graph

    def run(self) -> Graph:
        packed = {n.id: w for n in self.graph.nodes if n.op.cost.form and self.pays(n) and (w := self.weight(n))}
        if not packed:
            return self.graph
        for node in self.graph.nodes:
            weight = packed.get(node.id)
            self.ids[node.id] = self.copy(node) if weight is None else self.product(node, self.parts(weight))
        return self.builder.finish(tuple(self.ids[i] for i in self.graph.outputs), constants=self.data).live()

    def copy(self, node: Node) -> int:
        inputs = tuple(self.ids[i] for i in node.inputs)
        return self.builder.add(node.op, inputs, node.attrs, node.type, node.origin)

    def pays(self, node: Node) -> bool:
        """Whether the product would be faster, were its weight packed."""
        types = [self.graph.nodes[i].type for i in node.inputs]
        packed = packed_time(self.target, node.op, types, node.type)
        return packed is not None and packed <= PAYS * best_time(self.target, node.op, types, node.attrs, node.type)

    def weight(self, node: Node) -> str | None:
        """The name of the node's weight, if it is a constant [n, k] that has parts."""
        weight = self.graph.nodes[node.inputs[1]]
        if weight.op is not constant or not node.attrs or node.attrs[0] is not True:
            return None
        name: str = weight.attrs[0]
        if name not in self.found:
            data = self.graph.constants.get(name)  # a graph may come without its data, or with shapes only
            self.found[name] = None if data is None or data.is_meta else exact(data)
        return name if self.found[name] else None

    def parts(self, weight: str) -> list[int]:
        """The parts of a weight, each a constant."""
        if weight not in self.made:
            named = zip("qsz", self.found[weight] or (), strict=False)
            self.made[weight] = [self.leaf(f"{weight}.{k}", v) for k, v in named]
        return self.made[weight]

    def leaf(self, name: str, value: torch.Tensor) -> int:
        while name in self.data:
            name += "_"
        self.data[name] = value
        return self.builder.add(constant, (), (name,), TensorType(DTYPE_NAMES[value.dtype], tuple(value.shape)))

    def product(self, node: Node, parts: list[int]) -> int:
        x, _, *bias = (self.ids[i] for i in node.inputs)
        origin = Origin(node.origin.source, node.origin.module, RULE)
        made = self.builder.add(PRODUCTS[len(parts)], (x, *parts), origin=origin)
        if bias:
            made = self.builder.add(add, (made, bias[0]), origin=origin)
        if node.op.cost.form == "act":
            made = self.builder.add(ACTIVATIONS[node.attrs[1]][0], (made,), origin=origin)
        return made


def exact(weight: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """What ``weight`` [n, k] was stored as, in parts; None when it was not, or not so.

    (q: i8[n, k], s: f32[n, k / GROUP]) with q s equal to the weight in every element; else (q: u8, s, z) with
    s q + o equal to it in every element, z = -o / s: (q - z) s then differs by the rounding of z alone.
    """
    if weight.dtype is not torch.float32 or weight.dim() != 2 or weight.shape[1] % GROUP or not weight.numel():
        return None
    groups = weight.detach().contiguous().reshape(-1, GROUP)
    probe = groups[torch.linspace(0, len(groups) - 1, min(PROBE, len(groups))).long()]
    for kind in (_Symmetric, _Affine):
        if kind.may(probe):
            found = kind(len(groups))
            if all(found.fill(groups[at : at + CHUNK], at) for at in range(0, len(groups), CHUNK)):
                return tuple(t.reshape(len(weight), -1) for t in found.parts)
    return None


class _Symmetric:
    """w = s q with -128 <= q < 128. Where a group's largest magnitude is an integer of 1 to 128 tells its scale."""

    steps: tuple[Any, ...] = (127, 128, 7, 8, *(n for n in range(1, 127) if n not in (7, 8)))

    def __init__(self, count: int) -> None:
        self.parts = [torch.empty(count, GROUP, dtype=torch.int8), torch.empty(count)]

    @classmethod
    def may(cls, probe: torch.Tensor) -> bool:
        """Whether a few groups have such parts: all steps at once, since most weights end here."""
        return _any_step(probe, 0.0 * probe[:, :1], probe.abs().amax(1, keepdim=True) / torch.tensor(cls.steps))

    def fill(self, groups: torch.Tensor, at: int) -> bool:
        """Writes the parts of some groups, the first of them number ``at``; tells whether all have such parts."""
        fits, parts = self.tried(groups, self.steps[0])
        if fits is None:  # the common case, in which nothing is indexed
            for kept, made in zip(self.parts, parts, strict=True):
                kept[at : at + len(groups)] = made
            return True
        left = torch.arange(len(groups))
        for step in self.steps:
            fits, parts = self.tried(groups[left], step)
            good = torch.ones(len(left), dtype=torch.bool) if fits is None else fits
            for kept, made in zip(self.parts, parts, strict=True):
                kept[at + left[good]] = made[good].to(kept.dtype)
            left = left[~good]
            if not len(left):
                return True
        return False

    def tried(self, groups: torch.Tensor, step: Any) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Which groups have such parts, or None for all, and the parts."""
        scale = groups.abs().amax(1) / step
        whole = (groups * scale.clamp_min(TINY).reciprocal().unsqueeze(1)).round_()
        off = (whole * scale.unsqueeze(1)).sub_(groups).abs_()
        every = bool(off.amax() == 0) and (step < 128 or bool(whole.amax() < 128))
        return (None if every else (off.amax(1) == 0) & (whole.amax(1) < 128)), [whole, scale]


class _Affine(_Symmetric):
    """w = s q + o with 0 <= q < 256: o is the least of the group, s the range over a number of steps.

    The range, being rounded, does not tell s to the last bit, but s has few: 11 where a file keeps it in half
    precision, 17 where it is such a number times one of six bits.
    """

    steps = tuple((n, bits) for bits in (11, 17) for n in (15, 31, 255, 3, 7, 63, 127))

    def __init__(self, count: int) -> None:
        self.parts = [torch.empty(count, GROUP, dtype=torch.uint8), torch.empty(count), torch.empty(count)]

    @classmethod
    def may(cls, probe: torch.Tensor) -> bool:
        least = probe.amin(1, keepdim=True)
        counts = torch.tensor([n for n, bits in cls.steps if bits == 11])
        scales = [_rounded((probe.amax(1, keepdim=True) - least) / counts, bits) for bits in (11, 17)]
        return _any_step(probe, least, torch.cat(scales, 1))

    def tried(self, groups: torch.Tensor, step: Any) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        (count, bits), least, most = step, groups.amin(1), groups.amax(1)
        even = most == least  # one value has no range: it is once itself
        scale = _rounded((most - least) / count, bits).clamp_min_(TINY)
        whole = (groups - least.unsqueeze(1)).mul_(scale.reciprocal().unsqueeze(1)).round_()
        off = (whole * scale.unsqueeze(1)).add_(least.unsqueeze(1)).sub_(groups).abs_()
        if bool(even.any()):
            whole[even], off[even] = 1.0, 0.0
            scale = torch.where(even, least, scale)
        offset = torch.where(even, 0.0, -least / scale)
        every = bool(off.amax() == 0) and bool(whole.amax() < 256) and bool(offset.isfinite().all())
        fits = None if every else (off.amax(1) == 0) & (whole.amax(1) < 256) & offset.isfinite()
        return fits, [whole, scale, offset]


def _any_step(groups: torch.Tensor, offset: torch.Tensor, scales: torch.Tensor) -> bool:
    """Whether each group is its offset [groups, 1] and integers times one of its scales [groups, steps]."""
    scale, lines = scales.clamp_min(TINY).unsqueeze(2), (groups - offset).unsqueeze(1)
    found = (lines / scale).round_().mul_(scale).add_(offset.unsqueeze(2)) == groups.unsqueeze(1)
    return bool(found.all(2).any(1).all())


def _rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Positive f32 numbers rounded to a number of significant bits."""
    drop = 24 - bits
    return (((x.view(torch.int32) + (1 << (drop - 1))) >> drop) << drop).view(torch.float32)
