"""The schedule checker.

Takes a schedule, the selected program it came from and the target. Gives nothing; raises CheckError. Recomputes from
the two programs alone that the same work is done on the same values, that a value is read only after it exists and
that effects keep their order; device legality is checked by ``lower.check``.
Not here: anything that the scheduler computed; none of its code is used.
"""

from __future__ import annotations

from typing import NoReturn

from forge_eq.errors import CheckError
from forge_eq.lower.check import check as check_program
from forge_eq.lower.npu import Imm, Operand, Program
from forge_eq.schedule.plan import Schedule
from forge_eq.targets import Target

Value = tuple[object, ...]  # what a register holds: where it was made


def check(schedule: Schedule, selected: Program, target: Target) -> None:
    """Raises CheckError unless ``schedule`` is a legal schedule of ``selected``."""
    program = schedule.program
    if len(schedule.reasons) != len(program.instrs):
        _fail("-", "an instruction has no reason")
    values = _leaf_values(program)
    seen: list[Value] = []
    effects: list[Value] = []
    for instr in program.instrs:
        who = f"{instr.opcode} {', '.join(f'v{d}' for d in instr.dsts)}"
        for read in instr.reads:
            if read not in values:
                _fail(who, f"reads v{read} before it exists")
        operands = tuple(_operand(s, values) for s in instr.srcs)
        if instr.op is None:
            values[instr.dsts[0]] = operands[0]  # type: ignore[assignment]
            continue
        token: Value = (instr.node, instr.op.name, instr.attrs, operands)
        seen.append(token)
        if instr.op.effectful:
            effects.append(token)
        values.update({d: (instr.node, k) for k, d in enumerate(instr.dsts)})
    _compare(program, selected, values, seen, effects)
    check_program(program, target, scheduled=True)


def _leaf_values(program: Program) -> dict[int, Value]:
    values: dict[int, Value] = {v: ("input", k) for k, v in enumerate(program.inputs)}
    return {**values, **{v: ("constant", name) for v, name in program.constants}}


def _operand(operand: Operand, values: dict[int, Value]) -> object:
    return ("imm", repr(operand.value)) if isinstance(operand, Imm) else values[operand]


def _compare(
    program: Program, selected: Program, values: dict[int, Value], seen: list[Value], effects: list[Value]
) -> None:
    """The selected program, run in its own order on the same naming of values, must give the same work."""
    expected = _leaf_values(selected)
    work, due = [], []
    for instr in selected.instrs:
        assert instr.op is not None, "a selected program has no copies"
        token: Value = (instr.node, instr.op.name, instr.attrs, tuple(_operand(s, expected) for s in instr.srcs))
        work.append(token)
        if instr.op.effectful:
            due.append(token)
        expected.update({d: (instr.node, k) for k, d in enumerate(instr.dsts)})
    if sorted(map(repr, seen)) != sorted(map(repr, work)):
        lost = sorted(set(map(repr, work)) ^ set(map(repr, seen)))
        _fail("-", f"does other work than the program: {lost[:2] or 'something twice'}")
    if effects != due:
        _fail("-", "effects run in another order")
    if len(program.inputs) != len(selected.inputs):
        _fail("-", "takes other inputs")
    for out, wanted in zip(program.outputs, selected.outputs, strict=True):
        if values.get(out) != expected.get(wanted):
            _fail(f"v{out}", "is returned in place of another value")


def _fail(who: str, reason: str) -> NoReturn:
    raise CheckError("schedule", who, reason, "this is a bug in the scheduler: report it with the printed schedule")
