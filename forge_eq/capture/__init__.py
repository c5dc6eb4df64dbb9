"""Capture: from a torch module to the graph. Reading order: ``export``, ``import_aten``, ``template``, ``targets``."""

from __future__ import annotations

from forge_eq.capture.export import capture

__all__ = ["capture"]
