"""The thread that egglog runs on: an e-graph refuses every thread but the one that made it.

Takes what the engine takes, from any thread. Gives what it gives. Promises: each rule set has one engine per process,
used by one program at a time; it leaves Python to others while it runs; a process that forks has an engine of its own.
Not here: the engine.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from forge_eq.egraph import words
from forge_eq.egraph.engine import Engine
from forge_eq.egraph.view import EGraphView
from forge_eq.ir.graph import Graph
from forge_eq.options import Limits
from forge_eq.rules.dsl import RuleSet

_ENGINES: dict[str, Engine] = {}  # by rule set
_HERE = threading.local()


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "forge_eq-egglog", initializer=lambda: setattr(_HERE, "inside", True))


_WORKER = [_thread()]


def _forked() -> None:
    """Threads do not survive a fork, and so do not the engines that are theirs."""
    _ENGINES.clear()
    _WORKER[0] = _thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def run(call: Callable[..., Any], *args: Any) -> Any:
    """Calls on the engine's thread, whichever thread this is."""
    return call(*args) if hasattr(_HERE, "inside") else _WORKER[0].submit(call, *args).result()


def prepare(rules: RuleSet) -> Future[None]:
    """Begins to declare what the first program of the last process needed, if this process has had no program yet."""
    return _WORKER[0].submit(_prepare, rules)


def saturate(graph: Graph, rules: RuleSet, limits: Limits | None = None) -> EGraphView:
    """Every program that the rules show equal to ``graph``, as one e-graph."""
    view: EGraphView = run(_saturate, graph, rules, limits or Limits())
    return view


def _prepare(rules: RuleSet) -> None:
    if rules.hash not in _ENGINES:
        made = Engine(rules)
        try:
            made.prepare(words.read(rules.hash))
        except Exception:  # whatever stands in the file: it was a guess
            made = Engine(rules)
        # No thread but this one may free it, and this one has ended when the process ends or a fork begins: none does.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made.egraph))
        _ENGINES[rules.hash] = made


def _saturate(graph: Graph, rules: RuleSet, limits: Limits) -> EGraphView:
    _prepare(rules)
    made = _ENGINES[rules.hash]
    first = not made.full
    view = made.saturate(graph, limits)
    if first:
        words.keep(rules.hash, made.words)
    return view
