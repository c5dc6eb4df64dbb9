"""A recording as a graph.

Takes a Recording. Gives the Graph that importing torch.export's program would give. Promises: the calls of a repeated
layer are imported once and stamped for the others; where a stamp would not be what importing gives, Unlike is raised.
Not here: single calls (``capture.import_aten``).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch.utils._pytree as pytree

from forge_eq.capture.import_aten import GraphImporter
from forge_eq.capture.program import Constants, is_number
from forge_eq.capture.record import Recording
from forge_eq.capture.tape import Body, Call, Refused, Repeat, Unlike
from forge_eq.capture.values import type_of
from forge_eq.errors import CaptureError
from forge_eq.ir.graph import Builder, Graph, Origin, Signature
from forge_eq.ops.aten import Ref, Unsupported
from forge_eq.ops.effects import opaque_effect
from forge_eq.ops.leaves import constant, input_


def to_graph(recording: Recording, name: str) -> Graph:
    """Raises Unlike when repeats cannot be stamped, Refused when a call cannot be imported."""
    try:
        return _RecordingImport(recording, name).graph()
    except (CaptureError, Unsupported) as e:
        raise Refused(str(e).splitlines()[0]) from None


class _RecordingImport:
    def __init__(self, recording: Recording, name: str) -> None:
        self.recording = recording
        self.builder = Builder(name=name)
        self.constants = Constants()
        self.importer = GraphImporter(self.builder, self.constants)
        self.values = self.importer.values
        self.spans: dict[Call, tuple[int, int]] = {}  # call of a body -> its nodes
        self.origins: dict[tuple[Origin, str, str], Origin] = {}

    def graph(self) -> Graph:
        recording = self.recording
        names = self._leaves()
        bodies = {c for item in recording.tape if type(item) is Repeat for c in item.body.calls}
        for item in recording.tape:
            if type(item) is Repeat:
                self._stamp(item)
                continue
            assert type(item) is Call
            before = len(self.builder.nodes)
            self.values[item] = self.importer.call(item, "")
            if item in bodies:
                self.spans[item] = before, len(self.builder.nodes)
        outputs, leaves = self._results()
        signature = Signature(
            inputs=tuple(names),
            in_spec=recording.in_spec,
            out_spec=recording.out_spec,
            outputs=tuple(leaves),
            baked=tuple((k, v) for k, v in enumerate(recording.leaves) if type(v) is not Call),
        )
        return self.builder.finish(tuple(outputs), constants=self.constants.tensors, signature=signature)

    # ------------------------------------------------------------------------------ leaves and results

    def _leaves(self) -> list[str]:
        """Enters inputs and constants; gives the inputs' names."""
        names: list[str] = []
        self.inputs: dict[int, int] = {}  # leaf -> input
        for k, (leaf, name) in enumerate(zip(self.recording.leaves, leaf_names(self.recording), strict=True)):
            if type(leaf) is Call:
                self.inputs[k] = len(names)
                made = self.builder.add(input_, (), (len(names),), type_of(leaf.meta["val"]))
                self.values[leaf] = Ref(made)
                names.append(name)
        for name, value, leaf in self.recording.tensors:
            if leaf.users:
                self.values[leaf] = self.importer.constant(name, value)
            else:
                self.constants.enter(name, value)
        for call in self.recording.constants:
            assert call.constant is not None
            if call.users:
                self.values[call] = made_ref = self.importer.constant(call.name, call.constant)
                if call.constant.dim() == 0 and is_number(call.constant):
                    self.importer.numbers[made_ref.id] = float(call.constant)
        return names

    def _results(self) -> tuple[list[int], list[tuple[str, Any]]]:
        outputs: list[int] = []
        leaves: list[tuple[str, Any]] = []
        places: dict[int, int] = {}
        for kind, value in self.recording.results:
            if kind == "input":
                leaves.append(("input", self.inputs[value]))
            elif kind == "plain":
                leaves.append(("constant", value))
            else:
                ref = self._ref(value)
                if ref.id not in places:
                    places[ref.id] = len(outputs)
                    outputs.append(ref.id)
                leaves.append(("value", places[ref.id]))
        return outputs, leaves

    def _ref(self, call: Call) -> Ref:
        found = self.values.get(call)
        if not isinstance(found, Ref):
            raise Unlike(f"a value of {call.target} has no node")
        return found

    # ------------------------------------------------------------------------------ repeats

    def _stamp(self, repeat: Repeat) -> None:
        """Copies the nodes of the body with the repeat's operands in place of the body's."""
        body, builder = repeat.body, self.builder
        ids = self._operands(repeat)
        start, end = self._span(body)
        for old in range(start, end):
            node = builder.nodes[old]
            if node.op is opaque_effect:
                raise Unlike("a layer with an effect")
            inputs = tuple([self._inner(ids, i, start) for i in node.inputs])
            origin = self._moved(node.origin, body.prefix, repeat.prefix)
            ids[old] = builder.add(node.op, inputs, node.attrs, node.type, origin)
        for made, token in repeat.results:
            if token.users:  # else nobody asks for it, and the body may not have it
                self.values[token] = Ref(self._inner(ids, self._ref(made).id, start))

    def _inner(self, ids: dict[int, int], old: int, start: int) -> int:
        found = ids.get(old)
        if found is not None:
            return found
        if old < start and self.builder.nodes[old].op is constant:
            return old
        raise Unlike("a layer reads a value that is not among its operands")

    def _span(self, body: Body) -> tuple[int, int]:
        if not body.calls:
            return 0, 0
        return self.spans[body.calls[0]][0], self.spans[body.calls[-1]][1]

    def _operands(self, repeat: Repeat) -> dict[int, int]:
        """Node of the body's operand -> node of the repeat's. Raises Unlike where the pairing is not one to one."""
        ids: dict[int, int] = {}
        left = {*repeat.body.used, *(made for made, _ in repeat.results)}
        for mine, other in zip(repeat.body.reads, repeat.reads, strict=True):
            if mine not in left:
                continue
            a, b = self._ref(mine), self._ref(other)
            if self.importer.number(a) != self.importer.number(b):
                raise Unlike("layers that are given different numbers")
            if ids.setdefault(a.id, b.id) != b.id:
                raise Unlike("operands that are one value in one layer and two in another")
        return ids

    def _moved(self, origin: Origin, prefix: str, other: str) -> Origin:
        """The origin with the layer's path replaced."""
        key = origin, prefix, other
        found = self.origins.get(key)
        if found is None:
            path = origin.module
            if path == prefix or path.startswith(f"{prefix}."):
                path = other + path[len(prefix) :]
            found = self.origins[key] = Origin(origin.source, path, origin.rule)
        return found


def leaf_names(recording: Recording) -> list[str]:
    """A name for each argument leaf, as torch.export would give it: the parameter's, then the place inside."""
    try:
        bound = inspect.signature(recording.module.forward).bind(*recording.args, **recording.kwargs)
    except (TypeError, ValueError):
        raise Refused("arguments that do not fit the signature of forward") from None
    top: list[str] = []
    kinds = inspect.signature(recording.module.forward).parameters
    for name, value in bound.arguments.items():
        if kinds[name].kind is inspect.Parameter.VAR_POSITIONAL:
            top += [f"{name}_{k}" for k in range(len(value))]
        elif kinds[name].kind is not inspect.Parameter.VAR_KEYWORD and name not in recording.kwargs:
            top.append(name)
    places = pytree.tree_flatten_with_path((recording.args, recording.kwargs))[0]
    return _distinct([_place_name(path, top) for path, _ in places])


def _place_name(path: Sequence[Any], top: Sequence[str]) -> str:
    half, first, *rest = path
    name = top[first.idx] if half.idx == 0 else str(first.key)
    parts = [str(getattr(p, "idx", getattr(p, "key", getattr(p, "name", p)))) for p in rest]
    return "_".join([name, *parts]).lower()


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        base, k = "".join(c if c.isalnum() else "_" for c in name), 0
        made = base
        while made in found:
            k += 1
            made = f"{base}_{k}"
        found.append(made)
    return found
