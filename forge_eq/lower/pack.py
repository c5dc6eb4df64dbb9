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

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
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
PROBE = 2  # groups that are tried with all steps: an ordinary weight is refused by its first and its last
CHUNK = 1 << 15  # groups at a time: a step stays in the cache, and takes longer than to hand over Python's lock
PAYS = 0.97  # share of the unpacked time that must not be exceeded
PRODUCTS = {2: linear_packed, 3: linear_packed_offset}  # by the number of parts
TINY = float(np.finfo(np.float32).tiny)
Array: TypeAlias = np.ndarray[Any, Any]
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
        gaining = {n.id: w for n in self.graph.nodes if n.op.cost.form and (w := self.weight(n)) and self.pays(n)}
        self.find(list(dict.fromkeys(gaining.values())))
        packed = {node: w for node, w in gaining.items() if self.found[w]}
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
        """The name of the node's weight, if it is a constant [n, k] whose data is there."""
        weight = self.graph.nodes[node.inputs[1]]
        if weight.op is not constant or not node.attrs or node.attrs[0] is not True:
            return None
        name: str = weight.attrs[0]
        data = self.graph.constants.get(name)  # a graph may come without its data, or with shapes only
        return None if data is None or data.is_meta else name

    def find(self, names: Sequence[str]) -> None:
        """Looks for the parts of weights, each on one thread.

        Threads that share a weight wait for each other at each step, and beside a busy program that takes minutes.
        """
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(threads, "forge_eq-pack", torch.set_num_threads, (1,)) as pool:
                self.found = dict(zip(names, pool.map(exact, [self.graph.constants[n] for n in names]), strict=True))
        finally:
            torch.set_num_threads(threads)  # torch keeps the number for threads to come

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
    s q + o equal to it in every element, z = -o / s: (q - z) s then differs by the rounding of z alone. A zero is
    equal to a zero of either sign.
    """
    if weight.dtype is not torch.float32 or weight.dim() != 2 or weight.shape[1] % GROUP or not weight.numel():
        return None
    groups = weight.detach().contiguous().reshape(-1, GROUP)
    probe = groups[:: max(len(groups) - 1, 1)].numpy()
    with np.errstate(all="ignore"):  # what is not finite is refused in the end
        for kind in (_Symmetric, _Affine):
            if kind.may(probe):
                found = kind(len(groups))
                if all(found.fill(groups[at : at + CHUNK], at) for at in range(0, len(groups), CHUNK)):
                    return tuple(t.reshape(len(weight), -1) for t in found.parts)
    return None


class _Symmetric:
    """w = s q with -128 <= q < 128. Where a group's largest magnitude is an integer of 1 to 128 tells its scale."""

    steps: tuple[Any, ...] = (127, 128, 7, 8, *(n for n in range(1, 127) if n not in (7, 8)))
    dtypes: tuple[torch.dtype, ...] = (torch.int8, torch.float32)

    def __init__(self, count: int) -> None:
        self.parts = [torch.empty((count, GROUP) if d.itemsize == 1 else count, dtype=d) for d in self.dtypes]
        self.room = torch.empty(min(count, CHUNK), GROUP)
        self.same = np.empty(self.room.shape, np.bool_)

    @classmethod
    def may(cls, probe: Array) -> bool:
        """Whether a few groups have such parts: all steps at once, since most weights end here."""
        most = np.abs(probe).max(1, keepdims=True)
        return _any_step(probe, np.zeros_like(most), most / np.array(cls.steps, np.float32))

    def fill(self, groups: torch.Tensor, at: int) -> bool:
        """Writes the parts of some groups, the first of them number ``at``; tells whether all have such parts."""
        parts = [p[at : at + len(groups)] for p in self.parts]
        left = torch.from_numpy(np.flatnonzero(~self.tried(groups, self.steps[0], parts)))  # in the common case none
        if not len(left):
            return True
        if not self.may(groups[left[:PROBE]].numpy()):
            return False
        for step in self.steps[1:]:
            made = [p.new_empty(len(left), *p.shape[1:]) for p in parts]
            fits = torch.from_numpy(self.tried(groups[left], step, made))
            for kept, part in zip(parts, made, strict=True):
                kept[left[fits]] = part[fits]
            left = left[~fits]
            if not len(left):
                return True
        return False

    def tried(self, groups: torch.Tensor, step: Any, parts: list[torch.Tensor]) -> Array:
        """Writes what the parts would be; tells which groups they give back."""
        (q, scale), room = parts, self.room[: len(groups)]
        torch.amax(torch.abs(groups, out=room), 1, out=scale).div_(step)
        torch.mul(groups, scale.clamp_min(TINY).reciprocal_().unsqueeze(1), out=room)
        q.copy_(room.round_() if step < 128 else room.round_().clamp_max_(127))
        return self.fits(room.mul_(scale.unsqueeze(1)), groups, scale)

    def fits(self, made: torch.Tensor, groups: torch.Tensor, last: torch.Tensor) -> Array:
        """Which groups are given back in all elements by finite parts. NumPy compares in a quarter of torch's time."""
        same = np.equal(made.numpy(), groups.numpy(), out=self.same[: len(groups)])
        finite: Array = np.isfinite(last.numpy())
        return finite if same.all() else finite & same.all(1)


class _Affine(_Symmetric):
    """w = s q + o with 0 <= q < 256: o is the least of the group, s the range over a number of steps, 2^n - 1.

    The range, being rounded, does not tell s to the last bit, but s has few: 11 where a file keeps it in half
    precision, 17 where it is such a number times one of six bits. So s q is exact, and w rounded once.
    """

    steps = tuple((n, bits) for bits in (11, 17) for n in (4, 5, 8, 2, 3, 6, 7) if n + bits <= 24)
    dtypes = (torch.uint8, torch.float32, torch.float32)

    @classmethod
    def may(cls, probe: Array) -> bool:
        least = probe.min(1, keepdims=True)
        spans = (probe.max(1, keepdims=True) - least) / np.array([(1 << n) - 1 for n in range(2, 9)], np.float32)
        return _any_step(probe, least, np.concatenate([_rounded(spans, 11), _rounded(spans[:, :-1], 17)], 1))

    def tried(self, groups: torch.Tensor, step: Any, parts: list[torch.Tensor]) -> Array:
        """The same by torch's rows of bytes: GROUP integers of 255 steps, then a 255th of the range and the least."""
        (n, bits), (scale, offset) = step, (p.numpy() for p in parts[1:])
        rows = torch.ops.quantized.embedding_bag_byte_prepack(groups)
        whole, ends = rows.numpy(), rows.view(torch.float32).numpy()[:, -2:]
        span, least = ends.T.copy()
        whole -= whole >> n  # 255 steps become 2^n - 1; all bytes at once, the ends are written anew
        whole += 1 << (8 - n) >> 1
        whole >>= 8 - n
        np.maximum(_rounded(span * np.float32(255 / ((1 << n) - 1)), bits), TINY, out=scale)
        np.divide(least, -scale, out=offset)
        if (even := span == 0).any():  # one value has no range: it is once itself
            whole[even, :GROUP], scale[even], offset[even], least[even] = 1, least[even], 0, 0
        ends[:, 0], ends[:, 1] = scale, least
        parts[0].copy_(rows[:, :GROUP])
        return self.fits(torch.ops.quantized.embedding_bag_byte_unpack(rows), groups, parts[2])


def _any_step(groups: Array, offset: Array, scales: Array) -> bool:
    """Whether each group is its offset [groups, 1] and integers times one of its scales [groups, steps]."""
    scale, offset = np.maximum(scales, TINY)[:, :, None], offset[:, :, None]
    made = np.rint((groups[:, None] - offset) / scale) * scale + offset
    return bool((made == groups[:, None]).all(2).any(1).all())


def _rounded(x: Array, bits: int) -> Array:
    """Positive f32 numbers rounded to a number of significant bits."""
    drop = 24 - bits
    whole: Array = ((x.view(np.int32) + (1 << (drop - 1))) >> drop) << drop
    return whole.view(np.float32)
