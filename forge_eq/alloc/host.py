"""Storage where every device reads host memory, which is what the executor here runs on.

Takes a scheduled program and its target. Gives the program as such a machine sees it, and its allocation. Promises: a
transfer moves nothing, its result is a view of its operand; inputs are read in the caller's memory and what is returned
is made in memory that is handed over, so neither has a slot.
Not here: offsets (``alloc.linear_scan``), whose memory it is at a call (``run.handover``).
"""

from __future__ import annotations

from dataclasses import replace

from forge_eq.alloc.linear_scan import allocate
from forge_eq.alloc.liveness import SEGMENT
from forge_eq.alloc.plan import Allocation
from forge_eq.lower.npu import Program
from forge_eq.targets import Target


def without_transfers(program: Program) -> Program:
    """The program whose transfers are views: the same positions, nothing to move."""
    vregs = list(program.vregs)
    for instr in program.instrs:
        if instr.is_copy:
            vregs[instr.dsts[0]] = replace(vregs[instr.dsts[0]], alias_of=instr.reads[0])
    return replace(program, vregs=tuple(vregs))


def outside(program: Program) -> tuple[int, ...]:
    """The registers that lie in no arena: inputs, and what an instruction makes to be returned."""
    names = program.constant_names
    roots = {*program.inputs, *(program.root(o) for o in program.outputs)}
    return tuple(r for r in sorted(roots - program.state) if program.vregs[r].nbytes and r not in names)


def allocate_on_host(program: Program, target: Target) -> Allocation:
    """The arenas of a program :func:`without_transfers`. Raises AllocError when one exceeds its device."""
    return allocate(program, target, SEGMENT, outside(program))
