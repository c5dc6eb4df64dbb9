"""Capture: from a torch module to the graph.

Reading order: ``export`` (torch.export and its refusals), ``program`` (inputs, constants, results),
``import_aten`` (calls), ``targets`` and ``template`` (what stays opaque), ``execute`` (a node by torch). The other
way to the same graph: ``record`` (a run without data), ``recorder`` and ``record_mode`` (calls), ``record_alike`` and
``record_layers`` (one layer for many), ``record_state`` (what must not change), ``tape``, ``record_import``.
"""

from __future__ import annotations

from forge_eq.capture.export import capture

__all__ = ["capture"]
