"""Extraction: the cheapest program among all that an e-graph holds.

Reading order: ``problem`` (what is asked), ``base`` (what is answered, and its checker), ``prune``, ``knuth``,
``bottom_up``, ``greedy_dag``, ``beam``, ``local_search``, ``bounds``, ``split``, ``exact``, ``loops``, ``highs``,
``ilp``, ``default`` (the stack that the pipeline uses).
"""

from __future__ import annotations

from forge_eq.extract.answer import summarise
from forge_eq.extract.base import Budget, Extraction, Extractor, Promise, check
from forge_eq.extract.beam import Beam
from forge_eq.extract.bottom_up import BottomUp
from forge_eq.extract.default import Default, Ilp, solve
from forge_eq.extract.greedy_dag import GreedyDag
from forge_eq.extract.local_search import LocalSearch
from forge_eq.extract.problem import ENode, Problem, structural_keys
from forge_eq.extract.prune import Pruned, prune

EXTRACTORS: tuple[Extractor, ...] = (BottomUp(), GreedyDag(), Beam(), LocalSearch(), Default(), Ilp())

__all__ = [
    "EXTRACTORS",
    "Beam",
    "BottomUp",
    "Budget",
    "Default",
    "ENode",
    "Extraction",
    "Extractor",
    "GreedyDag",
    "Ilp",
    "LocalSearch",
    "Problem",
    "Promise",
    "Pruned",
    "check",
    "prune",
    "solve",
    "structural_keys",
    "summarise",
]
