"""The NPU IR verifier.

Takes a program and its target. Gives nothing; raises CheckError at the first broken invariant. Checks: register
numbers, single assignment, definitions before uses, types as ``op.infer`` says, aliases, unit and dtype legality per
device; that what is written in place is an argument that the program writes back, and is read no more; of a scheduled
program also that every read is on the device that holds the value.
Not here: dependences of a schedule (``schedule.check``), storage (``alloc.checker``).
"""

from __future__ import annotations

from typing import NoReturn

from forge_eq.errors import CheckError, ShapeError
from forge_eq.ir.types import TensorType, TupleType
from forge_eq.lower.layouts import feature_major, works_in
from forge_eq.lower.npu import COPY, TORCH, Instr, Program, operand_type, overwritten_by
from forge_eq.ops.shapes import given
from forge_eq.targets import Target


def check(program: Program, target: Target, scheduled: bool = False) -> None:
    """Raises CheckError unless ``program`` is well formed for ``target``.

    Args:
        scheduled: also demand that transfers are explicit, which holds after ``schedule.schedule``.
    """
    if program.target != target.name:
        _fail("lower", "-", f"the program is for {program.target}, not {target.name}")
    for position, vreg in enumerate(program.vregs):
        if vreg.id != position:
            _fail("lower", f"v{vreg.id}", f"stands at position {position}")
        if vreg.device not in target.device_names:
            _fail("lower", f"v{vreg.id}", f"is on {vreg.device}, which {target.name} lacks")
        if isinstance(vreg.type, TupleType) or (isinstance(vreg.type, TensorType) and not vreg.type.static):
            _fail("lower", f"v{vreg.id}", f"has type {vreg.type}, which no register holds")
        if not isinstance(vreg.type, TensorType) and vreg.device != target.host:
            _fail("lower", f"v{vreg.id}", f"a {vreg.type} lives on the host, not on {vreg.device}")
    defined, over = _leaves(program), overwritten_by(program)
    _check_writes(program)
    for position, instr in enumerate(program.instrs):
        _check_instr(program, target, instr, defined, scheduled)
        for read in instr.reads:
            if over.get(read, position) < position:
                _fail("lower", f"{instr.opcode} v{instr.dsts[0]}", f"reads v{read} after it was written over")
        for dst in instr.dsts:
            if dst in defined:
                _fail("lower", f"v{dst}", "is assigned twice")
            defined.add(dst)
    for vreg in program.vregs:
        if vreg.id not in defined:
            _fail("lower", f"v{vreg.id}", "is never defined")
    for out in program.outputs:
        if out not in defined:
            _fail("lower", f"v{out}", "is returned and never defined")
        if out in over:
            _fail("lower", f"v{out}", "is returned after it was written over")


def _fail(stage: str, node: str, reason: str) -> NoReturn:
    raise CheckError(stage, node, reason, "this is a bug in a stage: report it with the printed program")


def _check_writes(program: Program) -> None:
    """Write-backs have the types of their targets; what is written in place is what is written back."""
    targets = dict[int, int]()
    for output, index in program.writes:
        if not (0 <= output < len(program.outputs) and 0 <= index < len(program.inputs)):
            _fail("lower", f"write {output} -> {index}", "is not an output and an input")
        out, into = program.outputs[output], program.inputs[index]
        if program.vregs[out].type != program.vregs[into].type or into in targets:
            _fail("lower", f"v{into}", f"is written twice, or with v{out}, which has another type")
        targets[into] = out
    for root in program.state:
        if root not in targets or program.root(targets[root]) != root:
            _fail("lower", f"v{root}", "is written in place and is no argument that the program writes back")
    updates = [i.reads[0] for i in program.instrs if program.in_place(i)]
    for read in updates:
        if updates.count(read) > 1:
            _fail("lower", f"v{read}", "is written over twice")


def _leaves(program: Program) -> set[int]:
    leaves = [*program.inputs, *(v for v, _ in program.constants)]
    defined: set[int] = set()
    for leaf in leaves:
        if leaf in defined or not 0 <= leaf < len(program.vregs):
            _fail("lower", f"v{leaf}", "is not one register of one leaf")
        if program.vregs[leaf].alias_of is not None:
            _fail("lower", f"v{leaf}", "is a leaf and cannot be a view")
        defined.add(leaf)
    return defined


def _check_instr(program: Program, target: Target, instr: Instr, defined: set[int], scheduled: bool) -> None:
    name = f"{instr.opcode} {', '.join(f'v{d}' for d in instr.dsts)}"
    for read in instr.reads:
        if read not in defined:
            _fail("lower", name, f"reads v{read} before its definition")
        there = program.vregs[read].device == instr.device or program.root(read) in program.state
        if scheduled and not instr.is_copy and not there:
            _fail("lower", name, f"reads v{read}, which is on {program.vregs[read].device}")
    for dst in instr.dsts:
        if not 0 <= dst < len(program.vregs) or program.vregs[dst].device != instr.device:
            _fail("lower", name, f"writes v{dst}, which is not a register of {instr.device}")
    if instr.op is None:
        _check_copy(program, instr, name)
    else:
        _check_types(program, instr, name)
        _check_alias(program, instr, name)
        _check_layout(program, instr, name)
        _check_device(program, target, instr, name)


def _check_copy(program: Program, instr: Instr, name: str) -> None:
    if instr.unit != COPY or len(instr.srcs) != 1 or len(instr.dsts) != 1 or len(instr.reads) != 1 or instr.attrs:
        _fail("lower", name, "is not a transfer of one register")
    source, dest = program.vregs[instr.reads[0]], program.vregs[instr.dsts[0]]
    if source.type != dest.type or not isinstance(source.type, TensorType):
        _fail("lower", name, f"moves {source.type} into {dest.type}")
    if source.device == dest.device or dest.alias_of is not None:
        _fail("lower", name, "moves nothing to another device")


def _check_types(program: Program, instr: Instr, name: str) -> None:
    op = instr.op
    assert op is not None
    if len(instr.attrs) != len(op.attrs) or op.leaf:
        _fail("lower", name, f"does not follow {op.signature}")
    if op.shape is given:
        return  # opaque: the capture recorded the type and nothing can derive it
    try:
        found = op.infer([operand_type(program, s) for s in instr.srcs], instr.attrs)
    except ShapeError as e:
        raise CheckError("lower", name, f"operands do not fit: {e.reason}", "this is a bug in a stage") from e
    results = found.items if isinstance(found, TupleType) else (found,)
    types = tuple(program.vregs[d].type for d in instr.dsts)
    if results != types:
        _fail("lower", name, f"has type {', '.join(map(str, types))}; the op gives {', '.join(map(str, results))}")


def _check_alias(program: Program, instr: Instr, name: str) -> None:
    assert instr.op is not None
    for dst in instr.dsts:
        alias = program.vregs[dst].alias_of
        if alias is None:
            continue
        shares = instr.op.traits.view or program.in_place(instr)
        if not shares or not instr.srcs or instr.srcs[0] != alias:
            _fail("lower", name, f"v{dst} cannot share the buffer of v{alias}")
        if program.vregs[alias].nbytes != program.vregs[dst].nbytes:
            _fail("lower", name, f"v{dst} shares the buffer of v{alias}, which has another size")


def _check_layout(program: Program, instr: Instr, name: str) -> None:
    """A layout must be an order of the axes of every result, of a kind that the instruction can work in."""
    if not instr.layout:
        return
    for dst in instr.dsts:
        type = program.vregs[dst].type
        if not isinstance(type, TensorType) or sorted(instr.layout) != list(range(type.rank)):
            _fail("lower", name, f"stores {type} in the order {instr.layout}")
    if instr.layout != feature_major(len(instr.layout), instr.layout[-1]) or not works_in(program, instr):
        _fail("lower", name, f"cannot work in the order {instr.layout}")


def _check_device(program: Program, target: Target, instr: Instr, name: str) -> None:
    assert instr.op is not None
    kernel = instr.op.kernel
    if instr.unit != (TORCH if kernel is None else kernel.unit):
        _fail("lower", name, f"{instr.op.name} does not run on unit {instr.unit}")
    if instr.device == target.host:
        return
    device = target.device(instr.device)
    operands = [operand_type(program, s) for s in instr.srcs]
    results = [program.vregs[d].type for d in instr.dsts]
    if instr.op.effectful or not device.computes(instr.unit, operands, results, () if kernel is None else kernel.reads):
        _fail("lower", name, f"{device.name} has no {instr.unit} unit for these types")
