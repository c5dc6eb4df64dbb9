"""Values between two models of OpenVINO: in which order they are stored there.

Takes a program in segments. Gives the layout of each register that is not row-major where it lies. Promises: only
models of OpenVINO read or write such a register; who makes it and all who read it from another segment work in its
layout, so that nobody transposes it. Not here: layouts inside a segment (``lower.orient``).

A layer of SmolLM2 over 128 tokens hands on two values, which took 0.2 ms of its 5 to put in rows and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forge_eq.lower.layouts import Layout, operand
from forge_eq.lower.left import one_row
from forge_eq.lower.npu import Program, Segment

Layouts = Mapping[int, Layout]  # register -> layout; those that are absent are row-major


def borders(program: Program, models: Sequence[Segment]) -> dict[int, Layout]:
    """The layouts of values that pass between the segments ``models``."""
    place = {p: s.start for s in models for p in range(s.start, s.stop)}
    viewed = {v.alias_of for v in program.vregs}  # through a view each would see its own order
    made: dict[int, tuple[int, Layout]] = {}  # register -> segment and layout
    wanted: dict[int, set[Layout | None]] = {r: {()} for r in program.outputs}  # from outside the segment
    for position, instr in enumerate(program.instrs):
        here = place.get(position)
        for register in instr.reads:
            if register in made and made[register][0] != here:
                layout = operand(program, instr, register) if here is not None else None
                wanted.setdefault(register, set()).add(layout)
        if here is not None and instr.layout and not one_row(program, instr):
            own = (d for d in instr.dsts if d not in viewed and program.vregs[d].alias_of is None)
            made |= {d: (here, instr.layout) for d in own}
    return {r: layout for r, (_, layout) in made.items() if wanted.get(r) == {layout}}
