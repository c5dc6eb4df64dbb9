"""Whether a recorded graph gives the module's own values.

Takes a graph that ``capture.record`` made, the module and its example inputs. Gives why they differ, or nothing, and
the graph's outputs for whoever compares with them next. Promises: the module itself runs on what the guard compares on
(``run.probes.quick``; ``full``: on every probe), and its results are compared bit by bit; where the recording followed
torch's tracing flags, the module under these flags must agree bit by bit and without them within the criterion. The
module's state is put back. Not here: what to do about a difference (``pipeline``), when the guard compares with the
module itself instead (``program``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from forge_eq.capture.record import exporting
from forge_eq.capture.record_state import State
from forge_eq.errors import ForgeError
from forge_eq.ir.graph import Graph
from forge_eq.remarks import Remark
from forge_eq.run.boundary import input_checker
from forge_eq.run.differential import Answers, same_values
from forge_eq.run.probes import probes, quick
from forge_eq.run.values import copied
from forge_eq.verify.criterion import compare


@dataclass(frozen=True)
class Confirmed:
    """``reason`` says how the graph differs; empty when it does not. ``answers``: None when nothing was computed."""

    reason: str
    answers: Answers | None
    remarks: tuple[Remark, ...] = ()


class OwnResults:
    """A module's own results, computed once for each set of flat inputs. Whoever asks leaves them alone."""

    def __init__(self, graph: Graph, module: torch.nn.Module) -> None:
        self.graph, self.module = graph, module
        self._known: list[tuple[list[Any], tuple[list[Any], Any]]] = []

    def __call__(self, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
        """(result leaves, their structure); whatever the module raises."""
        for known, found in self._known:
            if all(map(same_values, known, inputs)):
                return found
        found = _module(self.graph, self.module, inputs)
        self._known.append(([copied(v) for v in inputs], found))
        return found

    def outputs(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The results in the order of the graph's outputs; None where they are not that, or the module does not run."""
        try:
            leaves, spec = self(inputs)
        except Exception:  # whatever the user's module raises
            return None
        signature = self.graph.signature
        if spec != signature.out_spec or len(leaves) != len(signature.outputs):
            return None
        found: dict[int, Any] = {}
        for (kind, value), leaf in zip(signature.outputs, leaves, strict=True):
            if kind == "value":
                found[value] = leaf
            elif not _same_bits(leaf, value if kind == "constant" else inputs[value]):
                return None
        return [found[k] for k in range(len(found))] if set(found) == set(range(len(self.graph.outputs))) else None


def confirm(
    graph: Graph,
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    level: str,
    own: OwnResults | None = None,
) -> Confirmed:
    """Compares on values. ``level`` is ``Options.verify``; ``own`` are the module's results where some are known."""
    own = own or OwnResults(graph, module)
    inputs = list(input_checker(graph)(args, kwargs))
    tensors = [*graph.constants.values(), *(v for v in inputs if isinstance(v, torch.Tensor))]
    if level == "off" or any(t.is_meta for t in tensors):
        why = "verify is off" if level == "off" else "weights are on the meta device"
        told = Remark("missed", "capture", graph.name, f"recorded, and not compared with the module: {why}")
        return Confirmed("", None, (told,))
    answers, names = Answers(graph), list[str]()
    for name, batch in (probes if level == "full" else quick)(inputs):
        try:
            wanted = own(batch)
        except Exception as e:  # whatever the user's module raises
            if not names:
                return Confirmed(f"runs, and the module does not: {type(e).__name__}: {e}", None)
            continue  # inputs that we made up
        try:
            got = _results(graph, batch, answers(batch))
        except (ForgeError, RuntimeError, TypeError, ValueError, IndexError) as e:
            return Confirmed(f"does not run on {name} inputs: {e}", None)
        if reason := _difference(answers, module, batch, got, wanted):
            # A second try before blame, as everywhere: docs/decisions/0005.
            answers = Answers(graph)
            again = _results(graph, batch, answers(batch))
            if _difference(answers, module, batch, again, _module(graph, module, batch)):
                return Confirmed(f"differs from the module on {name} inputs: {reason}", None)
            name += " (not repeatable)"
        names.append(name)
    told = Remark(
        "passed", "capture", graph.name, f"recorded; gives the module's own values on {', '.join(names)} inputs"
    )
    return Confirmed("", answers, (told,))


def _difference(answers: Answers, module: torch.nn.Module, batch: Sequence[Any], got: Any, wanted: Any) -> str:
    graph = answers.graph
    if _identical(got, wanted):
        return ""
    with exporting():
        traced = _module(graph, module, batch)
    if not _identical(got, traced):
        return compare(got[0], wanted[0]).reason or "in the last bits"
    if got[1] != wanted[1]:
        return "the result has another structure"
    values = [v for kind, v in zip(graph.signature.outputs, wanted[0], strict=True) if kind[0] == "value"]
    mine = [v for kind, v in zip(graph.signature.outputs, got[0], strict=True) if kind[0] == "value"]
    places = [k for kind, k in graph.signature.outputs if kind == "value"]

    def oracle() -> Sequence[Any] | None:
        exact = answers.in_float64(batch)
        return None if exact is None else [exact[k] for k in places]

    return compare(mine, values, oracle).reason


def _results(graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], Any]:
    """(result leaves, their structure) that the graph stands for."""
    sources = {"value": outputs, "input": inputs}
    leaves = [v if kind == "constant" else sources[kind][v] for kind, v in graph.signature.outputs]
    return leaves, graph.signature.out_spec


def _module(graph: Graph, module: torch.nn.Module, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
    """(result leaves, their structure) of the module itself."""
    baked, left = dict(graph.signature.baked), iter([copied(v) for v in inputs])
    count = len(inputs) + len(baked)
    leaves = [baked[k] if k in baked else next(left) for k in range(count)]
    args, kwargs = pytree.tree_unflatten(leaves, graph.signature.in_spec)
    with _undisturbed(module), torch.no_grad():
        found, spec = pytree.tree_flatten(module(*args, **kwargs))
        return [copied(v) for v in found], spec


@contextlib.contextmanager
def _undisturbed(module: torch.nn.Module) -> Iterator[None]:
    """Puts back what a run changes: buffers, Python state, random numbers."""
    state, buffers = State(module), [(b, b.clone()) for b in module.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for _, undo in state.changes():
                undo()
            with torch.no_grad():
                for buffer, before in buffers:
                    if not _same_bits(buffer, before):
                        buffer.copy_(before)


def _identical(a: tuple[list[Any], Any], b: tuple[list[Any], Any]) -> bool:
    return a[1] == b[1] and len(a[0]) == len(b[0]) and all(_same_bits(x, y) for x, y in zip(a[0], b[0], strict=True))


def _same_bits(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and repr(a) == repr(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.equal(_bytes(a), _bytes(b)))


def _bytes(value: torch.Tensor) -> torch.Tensor:
    """nan equals itself, and zero is not minus zero."""
    return value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
