"""Typed errors. Each names the stage and the node, and says what to do about it."""

from __future__ import annotations


class ForgeError(Exception):
    """Base of every error that forge_eq raises on purpose.

    Args:
        stage: the pipeline stage that refused, e.g. ``"capture"``.
        node: the node, file or argument it concerns, or ``"-"``.
        reason: one sentence on what is wrong.
        remedy: one sentence on what the user can do.
    """

    def __init__(self, stage: str, node: str, reason: str, remedy: str) -> None:
        self.stage, self.node, self.reason, self.remedy = stage, node, reason, remedy
        super().__init__(f"[{stage}] {node}: {reason}\n  remedy: {remedy}")


class CaptureError(ForgeError):
    """The module could not be turned into a graph."""


class ShapeError(ForgeError):
    """The types of an operation's inputs do not fit it."""


class CheckError(ForgeError):
    """A form broke one of its own invariants; this is a bug in a stage."""


class ParseError(ForgeError):
    """A text form could not be read back."""


class RuleError(ForgeError):
    """A rule is malformed, a duplicate, or lacks evidence."""


class UnionError(ForgeError):
    """Two values of different type met in one e-class: some rule is wrong."""


class ExtractError(ForgeError):
    """No acyclic program could be chosen from the e-graph."""


class LowerError(ForgeError):
    """An operation has no instruction on any device."""


class AllocError(ForgeError):
    """The program does not fit the arena."""


class ScheduleError(ForgeError):
    """The schedule breaks a dependence or a device limit."""


class RunError(ForgeError):
    """A compiled program could not be built or executed."""


class InputError(ForgeError):
    """A call's arguments do not match the compiled program."""


class FileError(ForgeError):
    """A saved program is missing, corrupt, or of another format."""


class OptionsError(ForgeError):
    """An option has a value that makes no sense."""


class NpuError(ForgeError):
    """The NPU compiler is not there, or gives an answer that cannot be read."""
