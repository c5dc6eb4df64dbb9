"""Capture: torch -> Graph.

Takes an nn.Module (or fx.GraphModule) with example inputs, an ExportedProgram, or the path of a saved one.
Gives the :class:`~forge_eq.ir.graph.Graph` with every call kept. Promises: weights stay torch storage and
are never copied; tied weights are one constant; nothing is decomposed unless the program writes into
something, and then only as far as functional form needs. Not here: single calls (``capture.import_aten``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from forge_eq.capture import targets
from forge_eq.capture.import_aten import GraphImporter, type_of
from forge_eq.errors import CaptureError, FileError
from forge_eq.ir.graph import Builder, Graph, Signature, WriteBack
from forge_eq.ir.types import Sym, TensorType
from forge_eq.ops.aten import Ref, Unsupported
from forge_eq.ops.leaves import input_


def capture(
    module: torch.nn.Module | ExportedProgram | str | os.PathLike[str],
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Graph:
    """The program as a graph of the vocabulary.

    Args:
        module: an nn.Module in the mode it is to run in, an ExportedProgram, or the path of a ``.pt2`` file.
        example_args: positional example inputs (pytrees); their sizes are the program's unless dynamic.
        example_kwargs: keyword example inputs.
        dynamic_shapes: as ``torch.export.export`` takes it; sizes that stay symbolic.

    Raises:
        CaptureError: the module does not export, or the program has something that no graph can hold.
        FileError: the file is missing or is no exported program.
    """
    if isinstance(module, str | os.PathLike):
        name, program = Path(module).stem, _load(Path(module))
    elif isinstance(module, ExportedProgram):
        name, program = "graph", module
    else:
        name, program = type(module).__name__, _export(module, example_args, example_kwargs, dynamic_shapes)
    kept = _kept_identities(program)
    if _writes(program.graph_module):
        program = _functional(program)
    return _Import(name, program, kept).graph()


# ------------------------------------------------------------------------------------ torch.export


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns about its own internals; what concerns the user becomes a CaptureError."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


def _export(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic: Any) -> ExportedProgram:
    if not isinstance(module, torch.nn.Module):
        raise CaptureError(
            "capture", type(module).__name__, "is not a module", "pass an nn.Module, an ExportedProgram or a .pt2 path"
        )
    # Without gradients, grad-mode blocks inside the model leave no frames in the graph.
    with _quiet(), torch.no_grad():
        try:
            return torch.export.export(
                module, tuple(args), dict(kwargs) if kwargs else None, dynamic_shapes=dynamic, strict=False
            )
        except Exception as e:  # torch.export raises whatever the model and its own passes raise
            raise _explained(type(module).__name__, e) from None


_REMEDIES = (
    (("data-dependent", "guard on"), "a branch or size depends on values: use torch.cond or torch._check, or fix the size"),
    (("Constraints violated", "specialized", "dynamic_shapes"), "make dynamic_shapes agree with what the model does with these sizes"),
    (("register_fake", "meta kernel", "fake impl"), "give the custom operator a fake kernel (torch.library.register_fake)"),
    (("pytree", "register_dataclass"), "register the container as a pytree, or pass plain tuples, lists and dicts"),
)


def _explained(name: str, e: Exception) -> CaptureError:
    """The gist of an export failure: what torch says first, and the user's line where it names one."""
    text = str(e).strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(e).__name__)
    where = next((f" ({line.strip()})" for line in text.splitlines() if ".py" in line and "line" in line), "")
    remedy = next(
        (remedy for words, remedy in _REMEDIES if any(w in text for w in words)),
        "make model(*example_inputs) run, then torch.export.export(model, example_inputs, strict=False)",
    )
    return CaptureError("capture", name, f"torch.export refused: {type(e).__name__}: {first}{where}", remedy)


def _load(path: Path) -> ExportedProgram:
    if not path.is_file():
        raise FileError("capture", str(path), "there is no such file", "pass the path that torch.export.save wrote")
    with _quiet():
        try:
            return torch.export.load(path)
        except Exception as e:  # any damage shows as whatever the reader trips over
            raise FileError(
                "capture", str(path), f"is not a readable exported program: {type(e).__name__}: {str(e)[:120]}",
                "write it again with torch.export.save",
            ) from None


# ------------------------------------------------------------------------------------ writes


def _writes(module: GraphModule) -> bool:
    """Whether a call anywhere in the program, submodules included, may change an operand."""
    return any(
        targets.writes(n.target, n.args, n.kwargs)
        for part in module.modules() if isinstance(part, GraphModule)
        for n in part.graph.nodes if n.op == "call_function"
    )


def _functional(program: ExportedProgram) -> ExportedProgram:
    """The same program with writes turned into values and write-backs; composites stay whole (empty table)."""
    with _quiet(), torch.no_grad():
        try:
            return program.run_decompositions({})
        except Exception as e:
            raise _explained("a program that writes into its tensors", e) from None


def _kept_identities(program: ExportedProgram) -> dict[int, str]:
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


# ------------------------------------------------------------------------------------ the whole program


class _Constants:
    """The program's tensors by name; one entry per piece of storage seen the same way."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.nodes: dict[str, int] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self.storages: dict[int, set[str]] = {}

    def enter(self, name: str, value: torch.Tensor) -> tuple[str, int | None]:
        """(canonical name, its node if there is one)."""
        place = value.untyped_storage()._cdata
        key = (place, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype, value.is_conj(), value.is_neg())
        known = self._names.get(key)
        if known is None:
            while name in self.tensors:  # two graphs may each call their own constant the same
                name += "_"
            known = self._names[key] = name
            self.tensors[name] = value.detach()
            self.storages.setdefault(place, set()).add(name)
        return known, self.nodes.get(known)


class _Import:
    """One import of one program."""

    def __init__(self, name: str, program: ExportedProgram, kept: dict[int, str]) -> None:
        self.name, self.program, self.kept = name, program, kept
        self.builder = Builder(name=name)
        self.constants = _Constants()
        self.importer = GraphImporter(self.builder, self.constants)
        self.inputs: dict[str, int] = {}  # placeholder -> input index
        self.baked: list[tuple[int, Any]] = []
        self.fqns: dict[str, str] = {}  # parameter or buffer -> its constant's name

    def graph(self) -> Graph:
        self._placeholders()
        results = self.importer.run(self.program.graph_module)
        outputs, leaves, write_backs = self._results(results)
        spec = self.program.call_spec
        signature = Signature(
            inputs=tuple(self.inputs), in_spec=spec.in_spec, out_spec=spec.out_spec, outputs=tuple(leaves),
            write_backs=tuple(write_backs), baked=tuple(self.baked), ranges=self._ranges(),
        )
        return self.builder.finish(
            tuple(outputs), constants=self.constants.tensors, signature=signature,
            submodules=self.importer.submodules, notes=tuple(f"{n} x {t}: {_WHY[t]}" for t, n in self.importer.settled.items()),
        )

    def _placeholders(self) -> None:
        places = [n for n in self.program.graph.nodes if n.op == "placeholder"]
        pairs = list(zip(places, self.program.graph_signature.input_specs, strict=True))
        users = [(n, s) for n, s in pairs if s.kind is InputKind.USER_INPUT]
        for leaf, (node, spec) in enumerate(users):
            if isinstance(spec.arg, ConstantArgument):
                self.baked.append((leaf, spec.arg.value))
                self.importer.values[node] = spec.arg.value
            else:
                index = len(self.inputs)
                self.inputs[node.name] = index
                found = self.builder.add(input_, (), (index,), self._type(node.name, node.meta["val"]))
                self.importer.values[node] = Ref(found)
        for node, spec in pairs:
            if spec.kind is not InputKind.USER_INPUT:
                self._constant(node, spec)

    def _type(self, name: str, value: Any) -> Any:
        try:
            return type_of(value)
        except Unsupported as e:
            raise CaptureError("capture", name, f"is {e}", "convert it to a dense tensor of a standard dtype first") from None

    def _constant(self, node: FxNode, spec: Any) -> None:
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise CaptureError(
                "capture", spec.target or node.name, f"is a {spec.kind.name.lower().replace('_', ' ')}, which no graph can hold",
                "keep script objects and effect tokens out of the captured module",
            )
        program = self.program
        value = program.state_dict.get(spec.target)
        if value is None:
            value = program.constants[spec.target]
        self._type(spec.target, value)
        if node.users:
            self.importer.values[node] = self.importer.constant(spec.target, value)
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
                raise CaptureError(
                    "capture", spec.kind.name, "is not a result of an inference program", "export the forward pass alone"
                )
        base = len(outputs)
        return (
            [*outputs, *(node for node, _ in writes)], leaves,
            [WriteBack(base + i, target) for i, (_, target) in enumerate(writes)],
        )

    def _exclusive(self, fqn: str) -> str:
        """The constant that a buffer is; a write into one of several overlapping constants has no functional form."""
        name = self.fqns[fqn]
        for sharing in self.constants.storages.values():
            if name in sharing and len(sharing) > 1:
                others = ", ".join(sorted(sharing - {name}))
                raise CaptureError(
                    "capture", name, f"is written and shares its storage with {others}", "give the buffer storage of its own"
                )
        return name

    def _ranges(self) -> tuple[tuple[str, int, int | None], ...]:
        used = {
            d.name for node in self.builder.nodes if node.op is input_ and isinstance(node.type, TensorType)
            for d in node.type.shape if isinstance(d, Sym)
        }
        found = []
        for symbol, limits in self.program.range_constraints.items():
            if str(symbol) in used:
                low, high = limits.lower, limits.upper
                found.append((str(symbol), int(low) if low.is_Integer else 0, int(high) if high.is_Integer else None))
        return tuple(sorted(found))


_WHY = {
    "aten._assert_tensor_metadata.default": "the captured types settle it",
    "higher_order.wrap_with_set_grad_enabled": "no gradient is taken, so its calls stand without the frame",
    "higher_order.wrap_with_autocast": "autocast is off inside and outside, so its calls stand without the frame",
}
