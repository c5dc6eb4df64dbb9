"""Cuts: a long segment of a large model becomes two models, which OpenVINO compiles side by side.

Takes a program. Gives it with cuts. Promises: the instructions, their order and their devices stay; a cut lies near the
middle, where the fewest bytes pass it; it depends on the program alone. Not here: compiling (``run.segments``).

The plugin compiles a model on one thread, for the most part, and in more than linear time: SmolLM2's step in 1.14 s as
one model and in 0.60 s as two. What a cut costs at a call, some 50 microseconds, is a small part of one that reads
``HEAVY`` bytes of weights. Three or four models compile no faster on two cores.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate

from forge_eq.lower.layouts import is_layer
from forge_eq.lower.npu import Program, Segment, operand_type
from forge_eq.run.repeats import Repeat, find
from forge_eq.targets import Target
from forge_eq.targets.price import best_time

LONG = 64  # instructions of a segment that is cut
PART = 12_000  # microseconds that layers which are alike take together, where they are a segment of their own
HEAVY = 1 << 26  # bytes of a program's constants, from which on
MIDDLE = 8  # share of a segment, the eighth before and behind the middle, in which the cut lies


def cut(program: Program, target: Target) -> Program:
    """The program with a cut in each long segment that OpenVINO runs."""
    if program.constant_bytes < HEAVY:
        return program
    long = [s for s in program.segments if target.device(s.device).kind == "openvino" and s.stop - s.start >= LONG]
    return replace(program, cuts=tuple(p for s in long for p in _cuts(program, s, target))) if long else program


def _cuts(program: Program, segment: Segment, target: Target) -> list[int]:
    """Between layers that are alike, as many together as a call must have; else one."""
    layers = find(program, segment, passing(program, segment))
    if layers is not None:
        together = max(1, math.ceil(PART / max(_predicted(program, layers, target), 1.0)))
        if layers.count >= 2 * together:
            borders = layers.borders[::together]
            return [p for p in borders if segment.start < p < segment.stop]
    return [_narrowest(program, segment)]


def _predicted(program: Program, layers: Repeat, target: Target) -> float:
    """Microseconds that one of the layers takes: its products."""
    total = 0.0
    for instr in program.instrs[layers.start : layers.start + layers.period]:
        if is_layer(instr) and instr.op is not None:
            types = [operand_type(program, s) for s in instr.srcs]
            total += best_time(target, instr.op, types, instr.attrs, program.vregs[instr.dsts[0]].type)
    return total


def _narrowest(program: Program, segment: Segment) -> int:
    """The position near the middle that the fewest bytes pass."""
    middle, around = (segment.start + segment.stop) // 2, (segment.stop - segment.start) // MIDDLE
    near = range(max(middle - around, segment.start), min(middle + around, segment.stop) + 1)
    bytes_at = passing(program, segment)
    return min(near, key=lambda position: (bytes_at[position - segment.start], abs(position - middle), position))


def passing(program: Program, segment: Segment) -> list[int]:
    """For each position from the segment's start to its stop, the bytes made before it and read from there on."""
    made: dict[int, int] = {}
    last: dict[int, int] = {}
    for position in range(segment.start, segment.stop):
        instr = program.instrs[position]
        last.update({root: position for r in instr.reads if (root := program.root(r)) in made})
        made.update({d: position for d in instr.dsts if program.root(d) == d})
    change = [0] * (segment.stop - segment.start + 1)
    for root, position in last.items():
        change[made[root] + 1 - segment.start] += program.vregs[root].nbytes
        change[position + 1 - segment.start] -= program.vregs[root].nbytes
    return list(accumulate(change))
