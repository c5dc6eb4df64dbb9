"""Device affinity.

Takes a selected program and its target. Gives a device and a reason per instruction. Promises: every device can run
its instruction; deterministic.
Not here: order and transfers.

Selection already prefers an accelerator wherever it has the kernel. What is left is islands: a connected set of
accelerator instructions whose predicted time is less than the transfers that its isolation costs goes to the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forge_eq.lower.npu import Instr, Program, operand_type
from forge_eq.lower.orient import own_time
from forge_eq.lower.select import prefer
from forge_eq.targets import Target


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instruction runs, and why there."""

    device: str
    reason: str


def place(program: Program, target: Target) -> tuple[Placement, ...]:
    """One placement per instruction of a selected program, in the same order."""
    found = [_preferred(program, target, i) for i in program.instrs]
    devices = [p.device for p in found]
    definers, readers = program.definers(), _readers(program)
    for island in _islands(program, devices, target.host):
        if any(_at_home(program.instrs[p]) for p in island):
            continue
        transfers = _isolation(program, target, island, definers, readers)
        kernels = 0.0
        for p in island:
            kernels += kernel_time(program, target, program.instrs[p])
            if kernels >= transfers:
                break
        else:
            for p in island:
                reason = f"an island: transfers would cost {transfers:.4g} us, its kernels {kernels:.4g} us (predicted)"
                found[p] = Placement(target.host, reason)
    return tuple(found)


def _preferred(program: Program, target: Target, instr: Instr) -> Placement:
    assert instr.op is not None, "a selected program has no copies"
    operands = [operand_type(program, s) for s in instr.srcs]
    device, _, reason = prefer(instr.op, target, operands, [program.vregs[d].type for d in instr.dsts], instr.attrs)
    return Placement(device, reason)


def _at_home(instr: Instr) -> bool:
    """Whether the host has no such kernel: it would unpack a weight again at every call."""
    return instr.op is not None and instr.op.kernel is not None and bool(instr.op.kernel.reads)


def kernel_time(program: Program, target: Target, instr: Instr) -> float:
    """Predicted microseconds of one instruction; a view is free."""
    op = instr.op
    if op is None:
        return target.transfer_time(sum(program.vregs[d].nbytes for d in instr.dsts))
    if op.traits.view:
        return 0.0
    return own_time(program, target, instr, instr.layout)


def _readers(program: Program) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for position, instr in enumerate(program.instrs):
        for read in instr.reads:
            found.setdefault(read, []).append(position)
    return found


def _islands(program: Program, devices: Sequence[str], host: str) -> list[list[int]]:
    """Connected sets of instructions on one accelerator, joined by the values they pass on."""
    parent = list(range(len(program.instrs)))

    def find(p: int) -> int:
        while parent[p] != p:
            parent[p] = parent[parent[p]]
            p = parent[p]
        return p

    definers = program.definers()
    for position, instr in enumerate(program.instrs):
        for read in instr.reads:
            source = definers.get(read)
            if source is not None and devices[source] == devices[position]:
                parent[find(position)] = find(source)
    sets: dict[int, list[int]] = {}
    for position in range(len(program.instrs)):
        if devices[position] != host:
            sets.setdefault(find(position), []).append(position)
    return sorted(sets.values())


def _isolation(
    program: Program,
    target: Target,
    island: Sequence[int],
    definers: Mapping[int, int],
    readers: Mapping[int, list[int]],
) -> float:
    """Predicted microseconds of the transfers over the island's border that vanish when it moves to the host."""
    inside = set(island)
    entering = {r for p in island for r in program.instrs[p].reads if definers.get(r, p) not in inside}
    leaving = {d for p in island for d in program.instrs[p].dsts if not inside.issuperset(readers.get(d, ()))}
    return sum(target.transfer_time(program.vregs[v].nbytes) for v in sorted(entering | leaving))
