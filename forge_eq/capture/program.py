"""An exported program as a graph: inputs, constants, results and writes.

Takes an ExportedProgram in which no call writes into a value. Gives the Graph with its signature. Promises:
tensors enter by storage, so tied weights are one node; each result leaf says where it comes from.
Not here: how the program was exported (``capture.export``), single calls (``capture.import_aten``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import Node as FxNode
from torch.fx.immutable_collections import immutable_dict, immutable_list

from forge_eq.capture.import_aten import GraphImporter
from forge_eq.capture.sizes import conditions
from forge_eq.capture.values import type_of
from forge_eq.errors import CaptureError
from forge_eq.ir.graph import Builder, Graph, Signature, WriteBack
from forge_eq.ir.sizes import symbols
from forge_eq.ir.types import Sym, TensorType
from forge_eq.ops.aten import Ref, Unsupported
from forge_eq.ops.leaves import input_


def kept_identities(program: ExportedProgram) -> dict[int, str]:
    """Results that are an argument itself: position -> placeholder. An in-place call returns its operand."""
    users = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    found: dict[int, str] = {}
    results = zip(program.graph_signature.output_specs, program.graph.output_node().args[0], strict=True)
    leaves = [value for spec, value in results if spec.kind is OutputKind.USER_OUTPUT]
    for position, value in enumerate(leaves):
        while isinstance(value, FxNode) and value.op == "call_function" and _returns_operand(value):
            value = value.args[0]
        if isinstance(value, FxNode) and value.op == "placeholder" and value.name in users:
            found[position] = value.name
    return found


def _returns_operand(node: FxNode) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(schema.returns) != 1 or not schema.arguments:
        return False
    given, taken = schema.returns[0].alias_info, schema.arguments[0].alias_info
    return bool(given and taken and given.is_write and given.before_set == taken.before_set)


class Constants:
    """The program's tensors by name; one entry per piece of storage seen the same way."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.nodes: dict[str, int] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self.storages: dict[int, set[str]] = {}

    def enter(self, name: str, value: torch.Tensor) -> tuple[str, int | None]:
        """(canonical name, its node if there is one)."""
        place = value.untyped_storage()._cdata
        seen_as = (tuple(value.shape), value.stride(), value.dtype, value.is_conj(), value.is_neg())
        key = (place, value.storage_offset(), *seen_as)
        known = self._names.get(key)
        if known is None:
            while name in self.tensors:  # two graphs may each call their own constant the same
                name += "_"
            known = self._names[key] = name
            self.tensors[name] = value.detach()
            self.storages.setdefault(place, set()).add(name)
        return known, self.nodes.get(known)


class ProgramImport:
    """One import of one program."""

    def __init__(self, name: str, program: ExportedProgram, kept: dict[int, str]) -> None:
        self.name, self.program, self.kept = name, program, kept
        self.builder = Builder(name=name)
        self.constants = Constants()
        self.importer = GraphImporter(self.builder, self.constants)
        self.inputs: dict[str, int] = {}  # placeholder -> input index
        self.baked: list[tuple[int, Any]] = []
        self.captured: list[Any] = []  # value of each argument leaf
        self.leaves: list[str] = []  # and its placeholder
        self.fqns: dict[str, str] = {}  # parameter or buffer -> its constant's name

    def graph(self) -> Graph:
        self._placeholders()
        results = self.importer.run(self.program.graph_module)
        outputs, leaves, write_backs = self._results(results)
        spec = self.program.call_spec
        guards, lost = conditions(self.program, self.captured, self.leaves)
        notes = [f"{n} x {target}: {_WHY[target]}" for target, n in self.importer.settled.items()]
        if lost:
            notes.append(f"{lost} conditions on sizes that no later call is checked against: they name no symbol")
        signature = Signature(
            inputs=tuple(self.inputs),
            in_spec=_mutable(spec.in_spec),
            out_spec=_mutable(spec.out_spec),
            outputs=tuple(leaves),
            write_backs=tuple(write_backs),
            baked=tuple(self.baked),
            ranges=self._ranges(),
            guards=tuple(guards),
        )
        return self.builder.finish(
            tuple(outputs),
            constants=self.constants.tensors,
            signature=signature,
            submodules=self.importer.submodules,
            notes=tuple(notes),
        )

    def _placeholders(self) -> None:
        places = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        pairs = list(zip(places, self.program.graph_signature.input_specs, strict=True))
        users = [(n, s) for n, s in pairs if s.kind is InputKind.USER_INPUT]
        for leaf, (node, spec) in enumerate(users):
            self.captured.append(node.meta.get("val"))
            self.leaves.append(node.name)
            if isinstance(spec.arg, ConstantArgument):
                self.baked.append((leaf, spec.arg.value))
                self.importer.values[node] = spec.arg.value
            else:
                index = len(self.inputs)
                self.inputs[node.name] = index
                type = self._type(node.name, node.meta["val"])
                found = self.builder.add(input_, (), (index,), type)
                self.importer.symbols |= {name: 2 for _, name in symbols(type)}
                self.importer.values[node] = Ref(found)
        for node, spec in pairs:
            if spec.kind is not InputKind.USER_INPUT:
                self._constant(node, spec)

    def _type(self, name: str, value: Any) -> Any:
        try:
            return type_of(value)
        except Unsupported as e:
            remedy = "convert it to a dense tensor of a standard dtype first"
            raise CaptureError("capture", name, f"is {e}", remedy) from None

    def _constant(self, node: FxNode, spec: Any) -> None:
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            what = spec.kind.name.lower().replace("_", " ")
            raise CaptureError(
                "capture",
                spec.target or node.name,
                f"is a {what}, which no graph can hold",
                "keep script objects and effect tokens out of the captured module",
            )
        program = self.program
        value = program.state_dict.get(spec.target)
        if value is None:
            value = program.constants[spec.target]
        self._type(spec.target, value)
        if node.users:
            self.importer.values[node] = made = self.importer.constant(spec.target, value)
            if spec.kind is InputKind.CONSTANT_TENSOR and value.dim() == 0 and is_number(value):
                self.importer.numbers[made.id] = float(value)
        self.fqns[spec.target] = self.constants.enter(spec.target, value)[0]

    def _results(self, results: Any) -> tuple[list[int], list[tuple[str, Any]], list[WriteBack]]:
        outputs: list[int] = []
        leaves: list[tuple[str, Any]] = []
        places: dict[int, int] = {}
        writes: list[tuple[int, str]] = []
        for spec, value in zip(self.program.graph_signature.output_specs, results, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                name = self.kept.get(len(leaves))
                if name is not None:
                    leaves.append(("input", self.inputs[name]) if name in self.inputs else ("constant", value))
                elif isinstance(value, Ref):
                    if value.id not in places:
                        places[value.id] = len(outputs)
                        outputs.append(value.id)
                    leaves.append(("value", places[value.id]))
                else:
                    leaves.append(("constant", value))
            elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                writes.append((value.id, f"constant:{self._exclusive(spec.target)}"))
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                writes.append((value.id, f"input:{self.inputs[spec.target]}"))
            else:
                reason = "is not a result of an inference program"
                raise CaptureError("capture", spec.kind.name, reason, "export the forward pass alone")
        base = len(outputs)
        return (
            [*outputs, *(node for node, _ in writes)],
            leaves,
            [WriteBack(base + i, target) for i, (_, target) in enumerate(writes)],
        )

    def _exclusive(self, fqn: str) -> str:
        """The constant that a buffer is; a write into one of several overlapping constants has no functional form."""
        name = self.fqns[fqn]
        for sharing in self.constants.storages.values():
            if name in sharing and len(sharing) > 1:
                others = ", ".join(sorted(sharing - {name}))
                reason = f"is written and shares its storage with {others}"
                raise CaptureError("capture", name, reason, "give the buffer storage of its own")
        return name

    def _ranges(self) -> tuple[tuple[str, int, int | None], ...]:
        """Bounds of the symbols in the inputs' types; those of a number stand under the input's name."""
        names: dict[str, str] = {}
        for node in self.builder.nodes:
            if node.op is input_ and isinstance(node.type, TensorType):
                names.update((d.name, d.name) for d in node.type.shape if isinstance(d, Sym))
        for leaf, value in zip(self.leaves, self.captured, strict=True):
            if isinstance(value, torch.SymInt):
                names.setdefault(str(value), leaf)
        found = []
        for symbol, limits in self.program.range_constraints.items():
            if str(symbol) in names:
                low, high = limits.lower, limits.upper
                bounds = (int(low) if low.is_Integer else 0, int(high) if high.is_Integer else None)
                found.append((names[str(symbol)], *bounds))
        return tuple(sorted(found))


def _mutable(spec: pytree.TreeSpec | None) -> pytree.TreeSpec | None:
    """The structure with plain lists and dicts: a traced ``GraphModule`` is exported with fx's immutable ones, but
    gives and takes plain ones."""
    if spec is None or spec.is_leaf():
        return spec
    kind = {immutable_list: list, immutable_dict: dict}.get(spec.type, spec.type)
    return pytree.TreeSpec(kind, spec.context, [found for s in spec.children() if (found := _mutable(s)) is not None])


_WHY = {
    "aten._assert_tensor_metadata.default": "the captured types settle it",
    "higher_order.wrap_with_set_grad_enabled": "no gradient is taken, so its calls stand without the frame",
    "higher_order.wrap_with_autocast": "autocast is off inside and outside, so its calls stand without the frame",
}


def is_number(value: torch.Tensor) -> bool:
    """A float whose value is at hand: data on the meta device and data that is traced have none."""
    return type(value) is torch.Tensor and value.dtype in (torch.float32, torch.float64) and value.device.type == "cpu"
