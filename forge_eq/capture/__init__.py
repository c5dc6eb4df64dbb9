"""Capture: from a torch module to the graph.

Reading order: ``export`` (torch.export and its refusals), ``program`` (inputs, constants, results),
``import_aten`` (calls), ``targets`` and ``template`` (what stays opaque), ``execute`` (a node by torch).
"""

from __future__ import annotations

from forge_eq.capture.export import capture

__all__ = ["capture"]
