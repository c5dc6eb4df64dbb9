"""The schedule: the program in its final order, and why.

Takes a selected program and its target. Gives a :class:`Schedule`. Promises: the checker of ``schedule.check`` accepts
it; transitions are never more than before, peak memory at most ``slack`` times what it was.
Not here: storage. Allocation comes after this stage because it needs the final order and the copies; see
``docs/decisions/0004-schedule-before-allocation.md``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from forge_eq.lower.npu import Program, Segment
from forge_eq.lower.orient import border_times, own_times
from forge_eq.schedule.affinity import kernel_time, place
from forge_eq.schedule.order import Figures, order
from forge_eq.schedule.transfer import materialise
from forge_eq.targets import Target

OPENVINO = "openvino"
JOINED = 0.05  # of its own time is what elementwise work takes inside another kernel: neither launch nor traffic


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


def folded(program: Program, target: Target) -> set[int]:
    """Positions of the instructions that OpenVINO evaluates when it compiles: they read constants only."""
    known, found = set(program.constant_names), set()
    for position, instr in enumerate(program.instrs):
        if target.device(instr.device).kind == OPENVINO and instr.reads and known.issuperset(instr.reads):
            known.update(instr.dsts)
            found.add(position)
    return found


def joined(program: Program, target: Target) -> set[int]:
    """Positions of the instructions that run in the kernel of the one before, as OpenVINO compiles chains of them.

    These are elementwise work and reductions on the result of such work. No program keeps them apart, so that the
    pieces of a norm take as long as the norm.
    """
    chained, found = set[int](), set[int]()  # registers made by such work
    for position, instr in enumerate(program.instrs):
        if target.device(instr.device).kind == OPENVINO and instr.unit in ("vector", "norm"):
            if instr.unit == "vector" and not chained.isdisjoint(instr.reads):
                found.add(position)
            chained.update(instr.dsts)
    return found


def predict(program: Program, target: Target) -> float:
    """Predicted microseconds of one run, an estimate from the target's rates and its table of kernels."""
    return math.fsum(parts(program, target).values())


def parts(program: Program, target: Target) -> dict[str, float]:
    """The prediction by cost class and part of a class, in microseconds, sorted by name; none is zero.

    ``matmul.plain`` and the like are the forms of the matrix kernels, ``.joined`` is work inside another kernel and
    ``transfer`` copies and transitions. A part is proportional to the weight of its name (``Target.weight``).
    """
    free, together = folded(program, target), joined(program, target)
    found = defaultdict(list, {name: [us] for name, us in border_times(program, target).items()})
    for position, instr in enumerate(program.instrs):
        if instr.op is None or instr.op.traits.view or position in free:
            continue
        cost_class = instr.op.cost.cost_class
        if position in together:
            name = f"{cost_class}.joined"
            found[name].append(JOINED * target.weights.get(name, 1.0) * kernel_time(program, target, instr))
        else:
            for name, us in own_times(program, target, instr).items():
                found[name].append(us)
    moved = sum(program.vregs[d].nbytes for i in program.instrs if i.is_copy for d in i.dsts)
    copies = moved / (target.transfer_gbps * 1e3) + program.transitions * target.transfer_us
    found["transfer"].append(target.weight("transfer") * copies)
    return {name: total for name, each in sorted(found.items()) if (total := math.fsum(each)) > 0.0}
