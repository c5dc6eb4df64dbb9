"""Write-backs in place: which instructions may write over the memory that the caller keeps from call to call.

Takes a selected program and its write-backs. Gives the program in which such an instruction's result shares the buffer
of its operand, in an order in which nothing reads the operand afterwards. Promises: the same values; an input that is
not written in place is as it was, and its write-back is a copy after the run.
Not here: whether that holds after scheduling and allocation (``lower.check``, ``alloc.checker``).
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

from forge_eq.ir.graph import Signature
from forge_eq.lower.npu import Instr, Program, readers_before


def written_inputs(signature: Signature) -> tuple[tuple[int, int], ...]:
    """(output, input) of each write-back whose target is an argument, or a buffer that was made one."""
    found = []
    for write in signature.write_backs:
        kind, _, name = write.target.partition(":")
        if kind == "input":
            found.append((write.output, int(name)))
        elif name in signature.inputs:
            found.append((write.output, len(signature.inputs) - 1 - signature.inputs[::-1].index(name)))
    return tuple(found)


def in_place(program: Program) -> Program:
    """The program with every write-back in place that can be; all are left alone if together they cannot be ordered."""
    vregs = list(program.vregs)
    for chain in _chains(program):
        for instr in chain:
            source = instr.srcs[0]
            assert isinstance(source, int)
            vregs[instr.dsts[0]] = replace(vregs[instr.dsts[0]], alias_of=source)
    made = replace(program, vregs=tuple(vregs))
    if made == program:
        return program
    order = _order(made)
    return program if order is None else replace(made, instrs=tuple(made.instrs[p] for p in order))


def _chains(program: Program) -> list[list[Instr]]:
    """For each written input, the updates that lead from it to what is written back, if there is nothing else."""
    definers, targets = program.definers(), [i for _, i in program.writes]
    found = []
    for output, index in program.writes:
        register, chain = program.outputs[output], list[Instr]()
        while (at := definers.get(register)) is not None and _updates(program, program.instrs[at]):
            chain.append(program.instrs[at])
            register = chain[-1].reads[0]
        versions = {program.inputs[index], *(i.dsts[0] for i in chain[1:])}
        kept = {program.root(o) for o in program.outputs}
        if chain and register == program.inputs[index] and targets.count(index) == 1 and not versions & kept:
            found.append(chain)
    return found


def _updates(program: Program, instr: Instr) -> bool:
    """Whether the instruction can write over its first operand."""
    if instr.op is None or instr.op.update is None or not isinstance(instr.srcs[0], int):
        return False
    return program.vregs[instr.srcs[0]].type == program.vregs[instr.dsts[0]].type


def _order(program: Program) -> list[int] | None:
    """Program order, save that an update follows what reads the value before it; None when that goes in a circle."""
    definers, effect = program.definers(), None
    before: list[set[int]] = []
    readers = readers_before(program)
    for position, instr in enumerate(program.instrs):
        due = {definers[r] for r in instr.reads if r in definers} | readers.get(position, set())
        if instr.effectful:
            due |= {effect} if effect is not None else set()
            effect = position
        before.append(due)
    after: list[list[int]] = [[] for _ in before]
    for position, due in enumerate(before):
        for b in due:
            after[b].append(position)
    waiting = [len(due) for due in before]
    ready = [p for p, count in enumerate(waiting) if count == 0]
    heapify(ready)
    done: list[int] = []
    while ready:
        done.append(heappop(ready))
        for a in after[done[-1]]:
            waiting[a] -= 1
            if waiting[a] == 0:
                heappush(ready, a)
    return done if len(done) == len(before) else None
