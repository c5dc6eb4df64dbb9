"""Remarks: what a stage did, refused or found, with the reason. Text for people, fields for programs."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("passed", "missed", "failed", "analysis")


@dataclass(frozen=True, slots=True)
class Remark:
    """One remark. ``node`` names where (``%12``, an instruction, a module), ``reason`` is a sentence."""

    kind: str  # passed: done | missed: not done, and why | failed: wrong and repaired | analysis: a figure
    stage: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind:8} {self.stage:8} {self.node}: {self.reason}"
