"""The Fusion-Gain cost: what an e-node costs on a target, in predicted microseconds.

An unfused node costs the time of its kernel (``targets.price``), a linear layer in its better orientation.
A node that a rule fused, with definition parts P, costs

    sum(time(p) for p in P) - alpha * gain + penalty,    gain = sum(time(p) for p in P) - time(fused)

so alpha = 0 gives the granularity that was captured, alpha = 1 the full gain of fusing, and the penalty
(a share of the parts' time, from the target file) is what a fused kernel loses in efficiency. Definition:
Forge-UGC, Fusion-Gain. Every cost is strictly positive, so no cheapest program profits from a cycle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from forge_eq.egraph.view import EClass, ENode
from forge_eq.errors import ExtractError
from forge_eq.ir import sizes
from forge_eq.ir.expand import expand
from forge_eq.ir.graph import Builder, Graph, Node
from forge_eq.ir.types import TensorType, TupleType, Type
from forge_eq.ops.spec import Op
from forge_eq.options import Options
from forge_eq.targets import Target
from forge_eq.targets.price import best_time, nbytes

LEAF = 1e-3  # microseconds: positive, and never what a choice turns on
VIEW = 5e-2  # a view moves nothing, yet fewer views are better
TIE = 1e-6  # share of the parts' time by which a fusion costs more where it gains nothing, so that alpha = 0 fuses none
FOLD_PER_BYTE = 1e-7  # microseconds per byte that a folded constant adds to the program
COPY = 0.1  # the same of a copy where a target's times are measured: a share of reading it once
SYMBOLIC = 128  # the size that a symbolic dimension is priced at


def sized(type: Type) -> Type:
    """The type with a number for every symbol."""
    if isinstance(type, TupleType):
        return TupleType(tuple(sized(t) for t in type.items))
    if isinstance(type, TensorType) and not type.static:
        return TensorType(type.dtype, _sized_attr(type.shape))
    return type


def _sized_attr(attr: Any) -> Any:
    """``s0*s1`` is priced as the product of two sizes: flattened rows are as many as the rows."""
    known = defaultdict[str, int](lambda: SYMBOLIC)
    return sizes.sized(attr, lambda symbol: sizes.evaluate(symbol.name, known) or SYMBOLIC)


class FusionGain:
    """Costs of e-nodes under one target and one alpha. Equal (op, attributes, types) are priced once.

    ``captured`` are the ops that the program was captured with: they are whole, not fusions.
    """

    def __init__(self, target: Target, alpha: float = 1.0, captured: frozenset[Op] = frozenset()) -> None:
        self.target, self.alpha, self.captured = target, alpha, captured
        self._times: dict[Any, float] = {}
        self._nodes: dict[Any, tuple[float, Any]] = {}  # types by identity; kept, so that none takes another's
        self._parts: dict[Any, float | None] = {}

    @classmethod
    def of(cls, graph: Graph, target: Target, alpha: float = 1.0) -> FusionGain:
        """The cost for programs equal to ``graph``."""
        return cls(target, alpha, frozenset(n.op for n in graph.nodes))

    def time(self, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type) -> float:
        """Predicted microseconds of one op run as one kernel."""
        if op.leaf or (types and isinstance(types[0], TupleType)):  # a part of a multi-output value
            return LEAF
        if op.cost.cost_class == "view":
            return VIEW
        key = (op, tuple(types), repr(attrs), out)
        if key not in self._times:
            known = [sized(t) for t in types]
            self._times[key] = best_time(self.target, op, known, _sized_attr(attrs), sized(out))
        return self._times[key]

    def parts(self, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type) -> float | None:
        """Predicted microseconds of the parts that a fused op is defined as, or None when it has no parts."""
        if not op.fused:
            return None
        key = (op, tuple(types), repr(attrs), out)
        if key not in self._parts:
            builder = Builder()
            leaf = _placeholder()
            ids = [builder.add(leaf, (), (i,), t) for i, t in enumerate(types)]
            expand(builder, op, ids, attrs)
            self._parts[key] = sum(self._part(builder, node) for node in builder.nodes[len(ids) :])
        return self._parts[key]

    def _part(self, builder: Builder, node: Node) -> float:
        """One part: an op that the program was captured with is whole, another composite is its own parts."""
        types = [builder.nodes[i].type for i in node.inputs]
        parts = None if node.op in self.captured else self.parts(node.op, types, node.attrs, node.type)
        return self.time(node.op, types, node.attrs, node.type) if parts is None else parts

    def folded(self, cls: EClass) -> float:
        """What a constant costs that is evaluated once and kept.

        One that only joins or moves others is a copy: memory for the program's life, and time in the build. Of two
        programs whose times differ by less than measuring them does, the one that copies no weight is better.
        """
        copied = self.target.kernels and all(n.op.cost.cost_class == "movement" for n in cls.nodes)
        rate = COPY / (self.target.bandwidth_gbps * 1e3) if copied else FOLD_PER_BYTE
        return LEAF + rate * nbytes(cls.type)

    def waiting(self, node: ENode, classes: Sequence[EClass]) -> float:
        """Microseconds to the host and back, where a kernel reads what the host must first have written in place."""
        if node.op.kernel is None:
            return 0.0
        written = any(n.op.update is not None for c in node.children for n in classes[c].nodes)
        return 2 * self.target.transfer_time(0) if written else 0.0

    def node(self, node: ENode, classes: Sequence[EClass], out: Type) -> float:
        """The cost of an e-node."""
        types, waiting = [classes[c].type for c in node.children], self.waiting(node, classes)
        key = (node.op, repr(node.attrs), *map(id, types), id(out), bool(node.rule), waiting)
        if key not in self._nodes:
            self._nodes[key] = self._node(node, types, out, waiting), (types, out)
        return self._nodes[key][0]

    def _node(self, node: ENode, types: Sequence[Type], out: Type, waiting: float) -> float:
        own = self.time(node.op, types, node.attrs, out) + waiting
        # An op that the program was captured with is no fusion, whoever made this node of it.
        fusion = bool(node.rule) and node.op not in self.captured
        parts = self.parts(node.op, types, node.attrs, out) if fusion else None
        if parts is None:
            return own
        penalty = max(TIE, self.target.penalty(node.op.cost.cost_class)) * parts
        return max(LEAF, parts - self.alpha * (parts - own) + penalty)


Price = Callable[[Op, Sequence[Type], tuple[Any, ...], Type], float]


class UserCost(FusionGain):
    """The user's own price of an op in place of Fusion-Gain. Leaves and parts of multi-output values stay free.

    A price that is no number raises ExtractError here; one that is not finite and positive does when the problem is
    built. Both name the op. Symbolic sizes are given as numbers.
    """

    def __init__(self, price: Price, target: Target) -> None:
        super().__init__(target)
        self.price = price

    def folded(self, cls: EClass) -> float:
        return LEAF + FOLD_PER_BYTE * nbytes(cls.type)  # whatever unit the user's price is in

    def time(self, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type) -> float:
        if op.leaf or (types and isinstance(types[0], TupleType)):
            return LEAF
        found = self.price(op, [sized(t) for t in types], attrs, sized(out))
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ExtractError("extract", op.name, f"its cost is {found!r}", "let the cost function return a number")
        return float(found)

    def node(self, node: ENode, classes: Sequence[EClass], out: Type) -> float:
        return self.time(node.op, [classes[c].type for c in node.children], node.attrs, out)


def cost_of(graph: Graph, target: Target, options: Options) -> FusionGain:
    """The cost that the options ask for."""
    if options.cost is not None:
        return UserCost(options.cost, target)
    return FusionGain.of(graph, target, options.alpha)


def _placeholder() -> Op:
    from forge_eq.ops.leaves import input_

    return input_


def foldable(cls: EClass, limit: int) -> bool:
    """Whether a class is a constant that may be evaluated once and kept."""
    return cls.constant and isinstance(cls.type, TensorType) and cls.type.static and (cls.type.nbytes or 0) <= limit


def leaf_of(cls: EClass) -> ENode | None:
    """The leaf that a class is, if it is one: a weight, a number or an argument."""
    return next((n for n in cls.nodes if n.op.leaf), None)
