"""The schedule: the program in its final order, and why.

Takes a selected program and its target. Gives a :class:`Schedule`. Promises: the checker of ``schedule.check`` accepts
it; transitions are never more than before, peak memory at most ``slack`` times what it was.
Not here: storage. Allocation comes after this stage because it needs the final order and the copies; see
``docs/decisions/0004-schedule-before-allocation.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_eq.lower.npu import Program, Segment
from forge_eq.schedule.affinity import kernel_time, place
from forge_eq.schedule.order import Figures, order
from forge_eq.schedule.transfer import materialise
from forge_eq.targets import Target


@dataclass(frozen=True)
class Schedule:
    """``program`` is in its final order with explicit copies; ``reasons`` say per instruction why it runs there.

    ``predicted_us`` is the target's estimate of one run: kernels, copies and transitions, in microseconds.
    """

    program: Program
    reasons: tuple[str, ...]
    figures: Figures
    predicted_us: float

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Maximal contiguous runs of instructions on one device."""
        return self.program.segments


def schedule(program: Program, target: Target, slack: float = 1.1) -> Schedule:
    """Gives every instruction of a selected program its device and place in the order.

    Args:
        slack: bound on peak memory (max-live bytes) relative to program order with the same devices.

    Raises:
        ScheduleError: a host number is read on an accelerator.
    """
    placements = place(program, target)
    why = {i.node: p.reason for p, i in zip(placements, program.instrs, strict=True)}
    placed = materialise(program, [p.device for p in placements], target.host)
    ordered, figures = order(placed, target, slack)
    reasons = tuple("a transfer" if i.is_copy else why[i.node] for i in ordered.instrs)
    return Schedule(ordered, reasons, figures, predict(ordered, target))


def predict(program: Program, target: Target) -> float:
    """Predicted microseconds of one run, an estimate from the target's rates."""
    kernels = sum(kernel_time(program, target, i) for i in program.instrs if not i.is_copy)
    moved = sum(program.vregs[d].nbytes for i in program.instrs if i.is_copy for d in i.dsts)
    return kernels + moved / (target.transfer_gbps * 1e3) + program.transitions * target.transfer_us
