"""Answers of the compiler as JSON, so that a long measurement can be resumed. Single tasks are not kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from forge_eq.npu.trace import Layer, Simulation


def as_json(answer: Any) -> dict[str, Any]:
    """An answer as a table; the log is cut to its end."""
    table = {**asdict(answer), "log": answer.log[-4000:]}
    if table.get("simulation"):
        table["simulation"]["tasks"] = []
    return table


def simulation_of(table: dict[str, Any] | None) -> Simulation | None:
    """The simulation in a table, without its tasks."""
    if table is None:
        return None
    return Simulation(**{**table, "layers": tuple(Layer(**x) for x in table["layers"]), "tasks": ()})
