"""Capture: torch -> Graph.

Takes an nn.Module (or fx.GraphModule) with example inputs, an ExportedProgram, or the path of a saved one.
Gives the :class:`~forge_eq.ir.graph.Graph` with every call kept. Promises: weights stay torch storage and
are never copied; tied weights are one constant; nothing is decomposed unless the program writes into
something, and then only as far as functional form needs. Not here: the import of the exported program
(``capture.program``), single calls (``capture.import_aten``).
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from forge_eq.capture import targets
from forge_eq.capture.program import ProgramImport, kept_identities
from forge_eq.capture.tape import Refused, Unlike
from forge_eq.errors import CaptureError, FileError
from forge_eq.ir.graph import Graph
from forge_eq.remarks import Remark

# torch.export patches torch itself while it traces, the recorder watches the modules of the process, and both turn
# off warnings: of two threads that do so at once, one sees what the other patched, or restores it too late.
_ALONE = threading.RLock()


@dataclass(frozen=True)
class Captured:
    """A graph and how it came about. ``recorded``: not by torch.export, so that values should confirm it."""

    graph: Graph
    recorded: bool = False
    remarks: tuple[Remark, ...] = ()


def capture(
    module: torch.nn.Module | ExportedProgram | str | os.PathLike[str],
    example_args: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    how: str = "export",
) -> Graph:
    """The program as a graph of the vocabulary.

    Args:
        module: an nn.Module in the mode it is to run in, an ExportedProgram, or the path of a ``.pt2`` file.
        example_args: positional example inputs (pytrees); their sizes are the program's unless dynamic.
        example_kwargs: keyword example inputs.
        dynamic_shapes: as ``torch.export.export`` takes it; sizes that stay symbolic.
        how: ``"export"`` by torch.export; ``"record"`` by running the module once on tensors without data, which is
            ten times as fast and refuses what it is not sure of; ``"auto"`` records and exports after a refusal.

    Raises:
        CaptureError: the module does not export, or the program has something that no graph can hold; with
            ``"record"`` also what the recorder refuses.
        FileError: the file is missing or is no exported program.
    """
    return captured(module, example_args, example_kwargs, dynamic_shapes, how).graph


def captured(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, how: str
) -> Captured:
    """As :func:`capture`, with what there is to say about it. One thread at a time captures, the others wait."""
    with _ALONE:
        return _captured(module, args, kwargs, dynamic_shapes, how)


def _captured(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, how: str
) -> Captured:
    remarks: list[Remark] = []
    if how != "export" and isinstance(module, torch.nn.Module):
        name = type(module).__name__
        try:
            graph = _record(module, args, kwargs, dynamic_shapes, remarks)
            return Captured(graph, True, tuple(remarks))
        except Refused as e:
            if how == "record":
                remedy = 'capture it with torch.export: capture="export"'
                raise CaptureError("capture", name, f"cannot be recorded: {e}", remedy) from None
            remarks.append(Remark("missed", "capture", name, f"not recorded, torch.export is used: {e}"))
    return Captured(_exported(module, args, kwargs, dynamic_shapes), False, tuple(remarks))


def _record(module: torch.nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any, remarks: list[Remark]) -> Graph:
    """The recorder's graph: with one layer for all that are alike, else with each traced. Raises Refused."""
    from forge_eq.capture.record import record
    from forge_eq.capture.record_import import to_graph

    if dynamic_shapes:
        raise Refused("some sizes are dynamic")
    name = type(module).__name__
    try:
        found = record(module, args, kwargs, layers=True)
        graph = to_graph(found, name)
    except Unlike as e:
        remarks.append(Remark("missed", "capture", name, f"every layer is traced: {e}"))
        return to_graph(record(module, args, kwargs, layers=False), name)
    if found.repeats:
        remarks.append(Remark("analysis", "capture", name, f"{found.repeats} layers written down as repeats of others"))
    return graph


def _exported(
    module: Any, example_args: Sequence[Any], example_kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> Graph:
    if isinstance(module, str | os.PathLike):
        name, program = Path(module).stem, _load(Path(module))
    elif isinstance(module, ExportedProgram):
        name, program = "graph", module
    else:
        name, program = type(module).__name__, _export(module, example_args, example_kwargs, dynamic_shapes)
    kept = kept_identities(program)
    if _writes(program.graph_module):
        _refuse_overlap(program)
        _refuse_silent_views(program)
        program = _functional(program)
    return ProgramImport(name, program, kept).graph()


# ------------------------------------------------------------------------------------ torch.export


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns about its own internals, and prints its half-made graph to stderr when it gives up; what
    concerns the user becomes a CaptureError."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
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
    if isinstance(module, GraphModule) and kwargs:
        kwargs = _in_order(module, len(args), kwargs)
    # Without gradients, grad-mode blocks inside the model leave no frames in the graph.
    with _quiet(), torch.no_grad():
        try:
            return torch.export.export(
                module, tuple(args), dict(kwargs) if kwargs else None, dynamic_shapes=dynamic, strict=False
            )
        except Exception as e:  # torch.export raises whatever the model and its own passes raise
            raise _explained(type(module).__name__, e) from None


def _in_order(module: GraphModule, positional: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments in the order of the graph's placeholders.

    torch.export runs a GraphModule by position: in any other order, or past a default, it gives another program.
    """
    names = list(inspect.signature(module.forward).parameters)[positional:]
    if set(names[: len(kwargs)]) != set(kwargs):
        unknown = sorted(set(kwargs) - set(names))
        node = unknown[0] if unknown else next(n for n in names if n not in kwargs)
        reason = "is no argument of the graph" if unknown else "is left out before an argument that is given"
        raise CaptureError("capture", node, reason, f"pass {', '.join(names)}, up to the last that you need")
    return {name: kwargs[name] for name in names[: len(kwargs)]}


_REMEDIES = (
    (("data-dependent", "guard on"), "a branch or size depends on values: use torch.cond or torch._check"),
    (("Constraints violated", "specialized", "dynamic_shapes"), "make dynamic_shapes agree with the model"),
    (("register_fake", "meta kernel", "fake impl"), "give the custom operator a fake kernel (torch.library)"),
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
                "capture",
                str(path),
                f"is not a readable exported program: {type(e).__name__}: {str(e)[:120]}",
                "write it again with torch.export.save",
            ) from None


# ------------------------------------------------------------------------------------ writes


def _writes(module: GraphModule) -> bool:
    """Whether a call anywhere in the program, submodules included, may change an operand."""
    return any(
        targets.writes(n.target, n.args, n.kwargs)
        for part in module.modules()
        if isinstance(part, GraphModule)
        for n in part.graph.nodes
        if n.op == "call_function"
    )


def _functional(program: ExportedProgram) -> ExportedProgram:
    """The same program with writes turned into values and write-backs; composites stay whole (empty table)."""
    with _quiet(), torch.no_grad():
        try:
            return _whole_copies(_told_dropout(program)).run_decompositions({})  # type: ignore[no-any-return]
        except Exception as e:
            raise _overlapping(program) or _explained("a program that writes into its tensors", e) from None


def _told_dropout(program: ExportedProgram) -> ExportedProgram:
    """The same program, dropout that gives its operand itself (in evaluation, or with nothing to drop) as ``alias``.

    Its schema says that the result is fresh, so torch loses what is written into either of the two.
    """

    def idle(node: Node) -> bool:
        return node.target in _DROPOUTS and (node.args[2] is False or bool(node.args[1] == 0))

    def tell(node: Any) -> None:
        node.target, node.args, node.kwargs = torch.ops.aten.alias.default, (node.args[0],), {}  # which says so

    return _edited(program, idle, tell)


def _edited(program: ExportedProgram, due: Callable[[Node], bool], edit: Callable[[Node], None]) -> ExportedProgram:
    """A copy of the program with the nodes that are due edited; the program itself when there is none."""
    if not any(map(due, program.graph.nodes)):
        return program
    graph_module = copy.deepcopy(program.graph_module)
    for node in [n for n in graph_module.graph.nodes if due(n)]:
        edit(node)
    graph_module.recompile()
    return program._update(graph_module, program.graph_signature)


_DROPOUTS = tuple(
    getattr(torch.ops.aten, name).default
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
)


def _whole_copies(program: ExportedProgram) -> ExportedProgram:
    """The same program, each copy from another dtype or shape with the cast and the broadcast written out.

    torch takes the source itself for what a buffer holds after ``buffer.copy_(source)``, and so loses both.
    """

    def changes(node: Node) -> bool:
        return node.target is torch.ops.aten.copy_.default and _form(node.args[0]) != _form(node.args[1])

    def write_out(node: Any) -> None:  # its arguments are typed as anything an argument may be
        goal, source, *rest = node.args
        value, given = goal.meta["val"], source.meta["val"]
        calls = node.graph.call_function
        with node.graph.inserting_before(node):
            if given.dtype != value.dtype:
                given = given.to(value.dtype)
                source = calls(torch.ops.aten._to_copy.default, (source,), {"dtype": value.dtype})
                source.meta = {**node.meta, "val": given}
            if given.shape != value.shape:
                source = calls(torch.ops.aten.expand_as.default, (source, goal))
                source.meta = {**node.meta, "val": given.expand_as(value)}
        node.args = (goal, source, *rest)

    return _edited(program, changes, write_out)


def _form(argument: Any) -> tuple[torch.dtype, tuple[Any, ...]] | None:
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    return (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else None


def _refuse_overlap(program: ExportedProgram) -> None:
    """Raises CaptureError for a write into a tensor whose elements share memory (``x.expand(2, 3).add_(1)``).

    torch refuses most of these when they run, and what the others do has no functional form.
    """
    for node in program.graph.nodes:
        if node.op != "call_function" or not targets.writes(node.target, node.args, node.kwargs):
            continue
        value = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and _overlaps(value):
            reason = "writes into a tensor whose elements share memory, such as an expanded one"
            raise CaptureError("capture", str(node.target), reason, "write into a clone() of it") from None


def _refuse_silent_views(program: ExportedProgram) -> None:
    """Raises CaptureError for a view of memory that is written, made by a call whose schema says that it is fresh.

    Of such calls torch takes most apart into calls that say it; of the others it loses what is written into either.
    """
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    written = {_storage(n.args[0]) for n in calls if n.args and targets.writes(n.target, n.args, n.kwargs)} - {0}
    for node in calls:
        if node.target not in _SILENT:
            continue
        results = node.meta.get("val")
        made = {_storage(v) for v in (results if isinstance(results, tuple | list) else [results])}
        if made & {_storage(n) for n in node.all_input_nodes} & written:
            reason = "gives a view of memory that the program writes, without saying so"
            raise CaptureError("capture", str(node.target), reason, "write into a clone() of it") from None


_SILENT = (torch.ops.aten.einsum.default, torch.ops.aten.meshgrid.default, torch.ops.aten.meshgrid.indexing)


def _storage(value: Any) -> int:
    """Which memory a value lies in; 0 for none."""
    value = value.meta.get("val") if isinstance(value, Node) else value
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else 0


def _overlaps(value: torch.Tensor) -> bool:
    pairs = zip(value.shape, value.stride(), strict=True)
    return any(isinstance(n, int) and isinstance(step, int) and n > 1 and step == 0 for n, step in pairs)


def _overlapping(program: ExportedProgram) -> CaptureError | None:
    """Why a program with writes has no functional form: two of its tensors are views of one storage."""
    seen: dict[int, str] = {}
    for name, value in {**program.state_dict, **program.constants}.items():
        if isinstance(value, torch.Tensor):
            first = seen.setdefault(value.untyped_storage()._cdata, name)
            if first != name:
                reason = f"shares its storage with {first} in a program that writes into its tensors"
                return CaptureError("capture", name, reason, "give each buffer that is written storage of its own")
    return None
