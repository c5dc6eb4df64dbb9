"""What users call: ``optimize`` and ``compile``, and the results they give."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from forge_eq import rules
from forge_eq.errors import OptionsError
from forge_eq.ir.graph import Graph
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.remarks import Remark
from forge_eq.rules.dsl import RuleSet
from forge_eq.run.heap import older_left_alone
from forge_eq.targets import load as load_target

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from forge_eq.egraph.view import EGraphView
    from forge_eq.extract.program import Chosen

Progress = Callable[[str], None]


class Optimized:
    """The result of :func:`optimize`. ``captured`` and ``graph`` print as text; ``module`` runs."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def captured(self) -> Graph:
        """The program as it was captured."""
        graph: Graph = self.job["capture"]
        return graph

    @property
    def graph(self) -> Graph:
        """The chosen program."""
        graph: Graph = self.job["extract"]
        return graph

    @property
    def egraph(self) -> EGraphView:
        view: EGraphView = self.job["saturate"]
        return view

    @property
    def chosen(self) -> Chosen:
        """The extraction with its cost, lower bound and gap."""
        chosen: Chosen = self.job["chosen"]
        return chosen

    @property
    def remarks(self) -> list[Remark]:
        return self.job.remarks

    @cached_property
    def module(self) -> GraphModule:
        """The chosen program as an ordinary torch module with the captured call signature."""
        from forge_eq.run.torch_module import to_module

        return to_module(self.graph)

    def explain(self, width: int = 100) -> str:
        """What changed, because of which rules, at what cost."""
        from forge_eq.report import explain

        return explain(self.job, width)


def make_options(options: Options | None, changes: Mapping[str, Any]) -> Options:
    """``options`` with ``changes``. Raises OptionsError for a name that is no option."""
    known = {f.name for f in fields(Options)}
    wrong = sorted(set(changes) - known)
    if wrong:
        raise OptionsError("options", wrong[0], "is not an option", f"use one of {', '.join(sorted(known))}")
    return replace(options or Options(), **changes)


_ADMITTED: set[str] = set()  # hashes of rule sets whose every rule has evidence


def admit_rules(chosen: RuleSet) -> None:
    """Raises RuleError unless every rule has evidence: in the ledger, in the user's cache, or found now."""
    known = chosen.hash
    if known not in _ADMITTED:
        from forge_eq.verify import admit

        for one in chosen:
            admit(one)
        _ADMITTED.add(known)


def make_job(
    module: Any,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    options: Options,
) -> Job:
    """A job for a module; its rules must have evidence."""
    load_target(options.target)  # an unknown one is refused before any work
    admit_rules(rules.chosen(options))
    job = Job(options, (module, tuple(example_inputs), example_kwargs, dynamic_shapes))
    if isinstance(module, Graph):
        job.forms["capture"] = module
    return job


def settle(
    job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, on_stage: Progress | None = None
) -> list[tuple[str, list[Any]]]:
    """Checks the chosen program on values, keeps the right one, and gives the inputs that it was checked on."""
    from forge_eq.run.differential import check_graph, input_batches

    if job.options.verify == "off":
        return []
    if on_stage is not None:
        on_stage("verify")
    start = time.perf_counter()
    batches = input_batches(job["capture"], args, kwargs, job.options.verify)
    job.forms["extract"], remark = check_graph(job["capture"], job["extract"], batches, job.answers)
    job.remarks.append(remark)
    job.seconds["verify"] = time.perf_counter() - start
    return batches


@older_left_alone()
def optimize(
    module: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options | None = None,
    on_stage: Progress | None = None,
    **changes: Any,
) -> Optimized:
    """The cheapest program that the rules show equal to ``module``.

    Args:
        module: an nn.Module, ExportedProgram, fx.GraphModule, path of a ``.pt2`` file, or a captured Graph.
        example_inputs: a tuple of positional arguments; their shapes are the program's, unless dynamic.
        dynamic_shapes: what ``torch.export.export`` takes.
        options: all options; ``changes`` name single ones (``rules=``, ``alpha=``, ``target=``, ``verify=``).
        on_stage: hears the name of each stage before it starts.

    Raises:
        CaptureError, RuleError, OptionsError: typed, with stage, node and remedy.

    Example:
        >>> result = forge_eq.optimize(model, (tokens,))
        >>> print(result.explain())
    """
    chosen = make_options(options, changes)
    job = make_job(module, example_inputs, example_kwargs, dynamic_shapes, chosen)
    run(job, "extract", on_stage)
    result = Optimized(job)
    settle(job, example_inputs, example_kwargs, on_stage)
    return result
