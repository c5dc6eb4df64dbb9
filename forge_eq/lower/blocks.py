"""Products in blocks, for a device whose copies and arithmetic overlap only between kernels.

Takes an expanded graph and what the target says about blocks. Gives an equal graph. Promises: only two equations are
used, both of the block product: ``x [w1 w2] = [x w1, x w2]``, to read a split of a product part by part, and
``[h1 h2] [w1; w2] = h1 w1 + h2 w2``, for a product over many features; or only the first, and what the product reads
is made in parts and joined. Weights are cut as views of themselves.
Not here: whether that pays, which is in the target file (the simulated times are in ``targets/intel-npu-4000.toml``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from forge_eq.ir.graph import Builder, Graph, Node, tensor_type
from forge_eq.ir.types import TensorType
from forge_eq.lower.left import widens
from forge_eq.lower.scaled import with_scaled_queries
from forge_eq.ops.composite import linear_act, linear_bias_act
from forge_eq.ops.elementwise import add
from forge_eq.ops.leaves import constant
from forge_eq.ops.linalg import linear, linear_bias
from forge_eq.ops.movement import concat, project, slice_, split
from forge_eq.targets import Blocks

PLAIN, ACTIVE = (linear, linear_bias), (linear_act, linear_bias_act)
BIASED = (linear_bias, linear_bias_act)
WAITING = -1  # in place of a node: made by the sum that reads it


def in_blocks(graph: Graph, blocks: Blocks) -> Graph:
    """The graph with the products that ``blocks`` names done in parts."""
    made = _Blocks(graph, blocks).run()
    return with_scaled_queries(made) if blocks.scaled else made


class _Blocks:
    def __init__(self, graph: Graph, blocks: Blocks) -> None:
        self.graph, self.blocks = graph, blocks
        self.builder = Builder(graph)
        self.data = dict(graph.constants)
        self.ids: dict[int, int] = {}
        self.cut: dict[tuple[int, int, int], int] = {}  # (old node, start, stop on the last axis) -> new node
        users = graph.users()
        self.single = {n.id for n in graph.nodes if len(users[n.id]) == 1 and n.id not in graph.outputs}
        self.users = users
        # A split of a product is read through its projections; the product itself by nobody else.
        self.opened = {n.id for n in graph.nodes if n.op is split and self._opens(n)}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.ids[node.id] = self.made(node)
        outputs = tuple(self.ids[i] for i in self.graph.outputs)
        return self.builder.finish(outputs, constants=self.data).live()

    def made(self, node: Node) -> int:
        if self._piece(node):
            source, start, stop = self._place(node)
            return self.part(source, start, stop)
        if node.op in PLAIN and self._many(node):
            if self.blocks.joined:
                return self.joined(node)
            return WAITING if self._added(node) else self.summed(node)
        waiting = [i for i in node.inputs if self.ids[i] < 0]
        if not waiting:
            return self.copy(node)
        total = max(self.ids[i] for i in node.inputs)
        for i in waiting:
            total = self.summed(self.graph.nodes[i], total)
        return total

    def copy(self, node: Node) -> int:
        inputs = tuple(self.ids[i] for i in node.inputs)
        return self.builder.add(node.op, inputs, node.attrs, node.type, node.origin)

    # ------------------------------------------------------------------------------------------ which

    def _piece(self, node: Node) -> bool:
        """Whether the node is a part of a split that is read part by part."""
        return node.op is project and node.inputs[0] in self.opened

    def _place(self, node: Node) -> tuple[int, int, int]:
        """The product that a piece comes from, and where in it: start and stop."""
        whole = self.graph.nodes[node.inputs[0]]
        sizes, index = whole.attrs[0], node.attrs[0]
        start = sum(sizes[:index])
        return whole.inputs[0], start, start + sizes[index]

    def _opens(self, node: Node) -> bool:
        source = self.graph.nodes[node.inputs[0]]
        last = isinstance(source.type, TensorType) and node.attrs[1] == source.type.rank - 1
        return self.blocks.outer and last and source.op in PLAIN and self._cuttable(source)

    def _cuttable(self, node: Node) -> bool:
        """A product whose weights can be cut and that only one node reads."""
        return node.id in self.single and all(self._weight(i) for i in node.inputs[1:])

    def _weight(self, id: int) -> bool:
        return self.graph.nodes[id].op is constant

    def _many(self, node: Node) -> bool:
        x = self.graph.nodes[node.inputs[0]]
        if not isinstance(x.type, TensorType) or not x.type.static or x.id not in self.single:
            return False
        features, rows = int(str(x.type.shape[-1])), (x.type.elements or 0) // max(int(str(x.type.shape[-1])), 1)
        wanted = features >= self.blocks.features and rows >= self.blocks.rows
        wanted = wanted and features % self.blocks.count(features) == 0
        return wanted and self._weight(node.inputs[1]) and self._separable(x) and not self._widened(x)

    def _added(self, node: Node) -> bool:
        """Whether the product is only read by a sum with another value of its type, onto which its parts are added."""
        if not self.blocks.onto or node.id not in self.single:
            return False
        (reader,) = (self.graph.nodes[i] for i in self.users[node.id])
        return (
            reader.op is add
            and len(set(reader.inputs)) == 2
            and all(self.graph.nodes[i].type == node.type for i in reader.inputs)
        )

    def _widened(self, x: Node) -> bool:
        """Whether layers with their weight on the left make the value: whole, these are faster than in parts."""
        if self.blocks.left != "wide":
            return False
        if self._piece(x):
            return self._widened(self.graph.nodes[self._place(x)[0]])
        if x.op in (*PLAIN, *ACTIVE):
            features, results = (tensor_type(n).shape[-1] for n in (self.graph.nodes[x.inputs[0]], x))
            return widens(int(str(features)), int(str(results)), x.op in BIASED)
        return x.op.traits.elementwise and any(self._widened(self.graph.nodes[i]) for i in x.inputs)

    def _separable(self, x: Node) -> bool:
        """Whether a part of the node's last axis needs only that part of products: then nothing is copied to cut it."""
        if self._piece(x):
            return x.id in self.single
        if x.op in (*PLAIN, *ACTIVE):
            return self._cuttable(x)
        operands = [self.graph.nodes[i] for i in x.inputs]
        return x.op.traits.elementwise and all(
            o.op.leaf == "literal" or (o.type == x.type and o.id in self.single and self._separable(o))
            for o in operands
        )

    # ------------------------------------------------------------------------------------------ parts

    def part(self, id: int, start: int, stop: int) -> int:
        """The node's value at positions ``start`` to ``stop`` of its last axis."""
        key = (id, start, stop)
        if key not in self.cut:
            self.cut[key] = self._part(self.graph.nodes[id], start, stop)
        return self.cut[key]

    def _part(self, node: Node, start: int, stop: int) -> int:
        if self._piece(node):
            source, first, _ = self._place(node)
            return self.part(source, first + start, first + stop)
        if node.op in (*PLAIN, *ACTIVE) and self._cuttable(node):
            w = self.weight(node.inputs[1], start, stop, 0 if node.attrs[0] else 1)
            b = (self.weight(node.inputs[2], start, stop, 0),) if node.op in BIASED else ()
            return self.builder.add(node.op, (self.ids[node.inputs[0]], w, *b), node.attrs, None, node.origin)
        if self._separable(node):
            inputs = [i if self.graph.nodes[i].op.leaf == "literal" else -1 for i in node.inputs]
            new = tuple(
                self.ids[i] if i >= 0 else self.part(o, start, stop) for i, o in zip(inputs, node.inputs, strict=True)
            )
            return self.builder.add(node.op, new, node.attrs, None, node.origin)
        assert isinstance(node.type, TensorType)
        attrs = (node.type.rank - 1, start, stop, 1)
        return self.builder.add(slice_, (self.ids[node.id],), attrs, None, node.origin)

    def weight(self, id: int, start: int, stop: int, axis: int) -> int:
        """A constant cut along an axis: a new constant over the same storage."""
        node = self.graph.nodes[id]
        (old,) = node.attrs
        name = f"{old}[{':, ' * axis}{start}:{stop}]"
        value = self.data[old]
        self.data[name] = value.narrow(axis, start, stop - start)
        assert isinstance(node.type, TensorType)
        shape = list(node.type.shape)
        shape[axis] = stop - start
        return self.builder.add(constant, (), (name,), TensorType(node.type.dtype, tuple(shape)), node.origin)

    def summed(self, node: Node, total: int = -1) -> int:
        """[h1 h2 ..] [w1; w2; ..] as a sum of products, onto ``total`` if given; the bias belongs to the first."""
        x, transposed = self.graph.nodes[node.inputs[0]], node.attrs[0]
        first = True
        for start, stop in self.bounds(x):
            w = self.weight(node.inputs[1], start, stop, 1 if transposed else 0)
            h = self.part(x.id, start, stop)
            op, more = (node.op, tuple(self.ids[i] for i in node.inputs[2:])) if first else (linear, ())
            first = False
            made = self.builder.add(op, (h, w, *more), node.attrs, None, node.origin)
            total = made if total < 0 else self.builder.add(add, (total, made), (), None, node.origin)
        return total

    def joined(self, node: Node) -> int:
        """[h1 h2] w with the parts of the operand made apart: one copies while another is computed."""
        x = self.graph.nodes[node.inputs[0]]
        parts = tuple(self.part(x.id, start, stop) for start, stop in self.bounds(x))
        whole = self.builder.add(concat, parts, (tensor_type(x).rank - 1,), None, x.origin)
        others = (self.ids[i] for i in node.inputs[1:])
        return self.builder.add(node.op, (whole, *others), node.attrs, None, node.origin)

    def bounds(self, x: Node) -> Iterator[tuple[int, int]]:
        """Where the parts of a value's last axis start and stop."""
        features = int(str(tensor_type(x).shape[-1]))
        parts = self.blocks.count(features)
        return itertools.pairwise(features * i // parts for i in range(parts + 1))
