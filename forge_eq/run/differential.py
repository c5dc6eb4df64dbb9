"""Checks the chosen program against the captured one, on values.

Takes both graphs and inputs. Gives the graph to use and a remark: the captured one where they disagree.
Promises: ``quick`` runs both on the example inputs; ``full`` also on random and edge inputs of the same
types. Programs that draw random numbers, have other effects, or live on the meta device are not run: a
remark says so. Not here: the check of what OpenVINO computes (``run.guard``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from forge_eq.capture.execute import run_graph, run_node
from forge_eq.errors import ForgeError
from forge_eq.ir.evaluate import evaluate
from forge_eq.ir.graph import Graph, Node
from forge_eq.remarks import Remark
from forge_eq.run.boundary import input_checker
from forge_eq.run.pooled import look_again
from forge_eq.run.probes import probes
from forge_eq.run.values import in_float64
from forge_eq.verify.criterion import Verdict, compare

Batch = tuple[str, list[Any]]


class Answers:
    """A graph's outputs, and these in float64, computed once for each set of inputs. Whoever asks leaves them alone."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._wide = in_float64(graph)
        self._known: list[_Asked] = []

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        asked = self._asked(inputs)
        if asked.outputs is None:
            with torch.no_grad():
                asked.outputs = run_graph(self.graph, inputs)
        return asked.outputs

    def in_float64(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """As :func:`forge_eq.run.values.in_float64` gives them."""
        asked = self._asked(inputs)
        if asked.exact is None:
            with torch.no_grad():
                asked.exact = self._wide(inputs)
        return asked.exact

    def _asked(self, inputs: Sequence[Any]) -> _Asked:
        for asked in self._known:
            if all(map(same_values, asked.inputs, inputs)):
                return asked
        self._known.append(_Asked([v.clone() if isinstance(v, torch.Tensor) else v for v in inputs]))
        return self._known[-1]


@dataclass
class _Asked:
    inputs: list[Any]
    outputs: tuple[Any, ...] | None = None
    exact: Sequence[Any] | None = None


def same_values(a: Any, b: Any) -> bool:
    """Whether two inputs are of one type and equal."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def check_graph(
    captured: Graph, chosen: Graph, batches: Sequence[Batch], answers: Answers | None = None
) -> tuple[Graph, Remark]:
    """The graph to use, and the remark that says why: ``chosen``, or ``captured`` where the two disagree.

    ``answers`` are the captured graph's, where some are known already.
    """
    why = _cannot_run(captured) or ("" if batches else "there are no example inputs")
    if why:
        return chosen, Remark("missed", "verify", captured.name, f"the chosen program was not run: {why}")
    worst, unsteady = 0.0, ""
    for label, inputs in batches:
        verdict = compare_graphs(captured, chosen, inputs, answers)
        if not verdict:
            # A program is blamed only for what it does twice: see "not repeatable" in docs/decisions/0005.
            first, verdict = verdict, compare_graphs(captured, chosen, inputs)
            unsteady += f"; not repeatable on {label}: {first.reason}" if verdict else ""
            verdict = verdict or _again(verdict, captured, chosen, inputs)
        worst = max(worst, verdict.difference)
        if not verdict:
            reason = f"differs from the captured program on {label}: {verdict.reason}; the captured program is used"
            return captured, Remark("failed", "verify", captured.name, reason)
    shown = f"agrees on {len(batches)} inputs, largest difference {worst:.2g}{unsteady}"
    return chosen, Remark("passed", "verify", captured.name, shown)


def _again(verdict: Verdict, captured: Graph, chosen: Graph, inputs: Sequence[Any]) -> Verdict:
    with torch.no_grad():
        return look_again(
            verdict,
            inputs,
            lambda given: run_graph(chosen, given),
            lambda given: run_graph(captured, given),
            lambda given: float64_outputs(captured, given),
        )


def compare_graphs(reference: Graph, other: Graph, inputs: Sequence[Any], answers: Answers | None = None) -> Verdict:
    """Whether two graphs give the same flat outputs."""
    with torch.no_grad():
        want = run_graph(reference, inputs) if answers is None else answers(inputs)
        got = run_graph(other, inputs)
    return compare(got, want, lambda: float64_outputs(reference, inputs))


def float64_outputs(graph: Graph, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """The outputs in float64, or None when an opaque call refuses float64 operands."""

    def call(node: Node, operands: list[Any]) -> Any:
        return run_node(node, operands, graph.submodules)

    try:
        return evaluate(graph, inputs, call)
    except (ForgeError, RuntimeError, TypeError, ValueError):  # whatever a foreign call raises on other dtypes
        return None


def _cannot_run(graph: Graph) -> str:
    if graph.effects:
        return "it has effects, which running it twice would repeat"
    if any(t.is_meta for t in graph.constants.values()):
        return "its weights are on the meta device"
    return ""


def input_batches(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any] | None, level: str) -> list[Batch]:
    """(label, flat inputs) to check a program on: the example inputs, and for ``full`` variations of them."""
    if (not args and not kwargs and graph.inputs) or level == "off":
        return []
    first = list(input_checker(graph)(args, kwargs or {}))
    if any(isinstance(t, torch.Tensor) and t.is_meta for t in first):
        return []
    return list(islice(probes(first), None if level == "full" else 1))
