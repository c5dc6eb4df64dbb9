"""The graph: immutable SSA over the vocabulary, the form before and after the e-graph.

Takes nothing. Gives :class:`Node` and :class:`Graph`. Promises: a node's inputs have smaller ids than
the node (topological order), ids equal positions, and nothing is ever changed in place.
Not here: text (``ir.text``), invariants (``ir.check``), values (``ir.evaluate``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forge_eq.ir.types import TensorType, TupleType, Type

if TYPE_CHECKING:
    import torch

    from forge_eq.ops.spec import Op

Attr = Any  # int | float | bool | str | None | tuple of these | Sym: hashable and printable


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from.

    ``source`` is the user's ``file:line``, ``module`` the path of the nn.Module, ``rule`` the id of the
    rule that made the node (empty when it was captured).
    """

    source: str = ""
    module: str = ""
    rule: str = ""


NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. ``inputs`` are ids of earlier nodes, ``attrs`` follow ``op.attrs``."""

    id: int
    op: Op
    inputs: tuple[int, ...]
    attrs: tuple[Attr, ...]
    type: Type
    origin: Origin = NOWHERE

    def attr(self, name: str) -> Attr:
        """The attribute called ``name``; KeyError when the op has none."""
        for (known, _), value in zip(self.op.attrs, self.attrs, strict=True):
            if known == name:
                return value
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class WriteBack:
    """After a run, output ``output`` is copied into a buffer (``constant``) or argument (``input``)."""

    output: int
    target: str  # "constant:NAME" or "input:INDEX"


@dataclass(frozen=True)
class Signature:
    """How the flat graph meets its caller.

    ``inputs`` names the graph's inputs in order; ``in_spec``/``out_spec`` are torch pytree specs (None:
    flat tuple); ``outputs`` tells for each leaf of the result where it comes from: ``("value", k)`` is
    graph output k, ``("constant", v)`` a Python value that the program always returns, ``("input", i)``
    argument i itself (identity is kept). ``baked`` gives the leaves of the arguments that are no graph
    inputs: (position among all leaves, the value that the capture saw, a later call must repeat it).
    ``ranges`` bounds the symbolic dimensions of the inputs: (symbol, least, greatest or None); ``guards``
    are further conditions on them, such as ``s0 % 2 == 0``, that the capture took for granted. An input that is
    a number has its own name as its symbol.
    """

    inputs: tuple[str, ...] = ()
    in_spec: Any = None
    out_spec: Any = None
    outputs: tuple[tuple[str, Any], ...] = ()
    write_backs: tuple[WriteBack, ...] = ()
    baked: tuple[tuple[int, Any], ...] = ()
    ranges: tuple[tuple[str, int, int | None], ...] = ()
    guards: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """A program. ``outputs`` are node ids (user results first, then write-backs).

    ``constants`` holds the data of ``constant`` nodes by name (torch storage, never copied);
    ``submodules`` holds what higher-order opaque nodes call. ``notes`` says what the capture left out and
    why that is right: nothing is dropped without a word.
    """

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    signature: Signature = Signature()
    submodules: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def effects(self) -> tuple[int, ...]:
        """Ids of the nodes that must run although nothing may read them, in program order."""
        return tuple(n.id for n in self.nodes if n.op.effectful)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The ``input`` nodes in argument order."""
        found = [n for n in self.nodes if n.op.leaf == "input"]
        return tuple(sorted(found, key=lambda n: n.attrs[0]))

    @property
    def calls(self) -> int:
        """Number of nodes that compute something: everything except leaves and projections."""
        return sum(not n.op.leaf and not self._projects(n) for n in self.nodes)

    def _projects(self, node: Node) -> bool:
        """Whether the node only picks a part of a multi-output op's result: nothing else reads a tuple."""
        return any(isinstance(self.nodes[i].type, TupleType) for i in node.inputs)

    def users(self) -> list[list[int]]:
        """For each node, the ids of the nodes that read it (an id appears once per read)."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for source in node.inputs:
                found[source].append(node.id)
        return found

    def live_ids(self) -> set[int]:
        """The inputs and the nodes that reach an output or an effect."""
        keep = set(self.outputs) | set(self.effects)
        keep |= {n.id for n in self.nodes if n.op.leaf == "input"}
        for node in reversed(self.nodes):
            if node.id in keep:
                keep.update(node.inputs)
        return keep

    def live(self) -> Graph:
        """The same program without nodes that reach neither an output nor an effect."""
        keep = self.live_ids()
        return self if len(keep) == len(self.nodes) else self.select(keep)

    def select(self, keep: Iterable[int]) -> Graph:
        """The nodes in ``keep`` (closed under inputs), renumbered."""
        builder = Builder(self)
        mapping: dict[int, int] = {}
        for old in sorted(set(keep)):
            node = self.nodes[old]
            inputs = tuple(mapping[i] for i in node.inputs)
            mapping[old] = builder.add(node.op, inputs, node.attrs, node.type, node.origin)
        return builder.finish(tuple(mapping[i] for i in self.outputs))


class Builder:
    """Appends nodes, one at a time, to a new graph that inherits name, constants and signature."""

    def __init__(self, like: Graph | None = None, name: str = "graph") -> None:
        self.base = like if like is not None else Graph(name, (), ())
        self.nodes: list[Node] = []

    def add(
        self,
        op: Op,
        inputs: tuple[int, ...],
        attrs: tuple[Attr, ...] = (),
        type: Type | None = None,
        origin: Origin = NOWHERE,
    ) -> int:
        """Appends a node and gives its id; a missing ``type`` is inferred by the op's shape rule."""
        if type is None:
            type = op.infer([self.nodes[i].type for i in inputs], attrs)
        self.nodes.append(Node(len(self.nodes), op, tuple(inputs), tuple(attrs), type, origin))
        return len(self.nodes) - 1

    def finish(self, outputs: tuple[int, ...], **changes: Any) -> Graph:
        """The finished graph; ``changes`` replace fields inherited from the model graph."""
        names = {n.attrs[0] for n in self.nodes if n.op.leaf == "constant"}
        # A buffer that the program only writes has no node, and its storage is still needed.
        written = changes.get("signature", self.base.signature).write_backs
        names |= {w.target.partition(":")[2] for w in written if w.target.startswith("constant:")}
        pool = changes.pop("constants", self.base.constants)
        kept = {k: v for k, v in pool.items() if k in names}
        return replace(self.base, nodes=tuple(self.nodes), outputs=tuple(outputs), constants=kept, **changes)


def tensor_type(node: Node) -> TensorType:
    """The node's type, which must be a tensor's."""
    if not isinstance(node.type, TensorType):
        raise TypeError(f"%{node.id} {node.op.name} is {node.type}, not a tensor")
    return node.type


def rewrite_nodes(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """The graph with every node passed through ``change``, which must keep ids and inputs."""
    return replace(graph, nodes=tuple(change(n) for n in graph.nodes))
