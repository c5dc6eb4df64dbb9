"""Cuts: a long segment of a large model becomes two models, which OpenVINO compiles side by side.

Takes a program. Gives it with cuts. Promises: the instructions, their order and their devices stay; a cut lies near the
middle, where the fewest bytes pass it; it depends on the program alone. Not here: compiling (``run.segments``).

The plugin compiles a model on one thread, for the most part, and in more than linear time: SmolLM2's step in 1.14 s as
one model and in 0.60 s as two. What a cut costs at a call, some 50 microseconds, is a small part of one that reads
``HEAVY`` bytes of weights. Three or four models compile no faster on two cores.
"""

from __future__ import annotations

from dataclasses import replace

from forge_eq.lower.npu import Program, Segment
from forge_eq.targets import Target

LONG = 64  # instructions of a segment that is cut
HEAVY = 1 << 26  # bytes of a program's constants, from which on
MIDDLE = 8  # share of a segment, the eighth before and behind the middle, in which the cut lies


def cut(program: Program, target: Target) -> Program:
    """The program with a cut in each long segment that OpenVINO runs."""
    if program.constant_bytes < HEAVY:
        return program
    long = [s for s in program.segments if target.device(s.device).kind == "openvino" and s.stop - s.start >= LONG]
    return replace(program, cuts=tuple(_narrowest(program, s) for s in long)) if long else program


def _narrowest(program: Program, segment: Segment) -> int:
    """The position near the middle that the fewest bytes pass: of values made before it and read from there on."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for position in range(segment.start, segment.stop):
        instr = program.instrs[position]
        last.update({root: position for r in instr.reads if (root := program.root(r)) in made})
        made.update({d: position for d in instr.dsts if program.root(d) == d})
    change = [0] * (segment.stop + 1)
    for root, position in last.items():
        change[made[root] + 1] += program.vregs[root].nbytes
        change[position + 1] -= program.vregs[root].nbytes
    middle, around = (segment.start + segment.stop) // 2, (segment.stop - segment.start) // MIDDLE
    passing, found = 0, []
    for position, more in enumerate(change):
        passing += more
        if abs(position - middle) <= around:
            found.append((passing, abs(position - middle), position))
    return min(found)[2]
