"""Transfers made explicit.

Takes a selected program and a device per instruction. Gives the same program, in the same order, in which every read
is on the device that holds the value. Promises: a value crosses to a device at most once, right before its first
reader there; a constant lives on every device that reads it and is never transferred; neither is state, which is
read where it lies.
Not here: which device, which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forge_eq.errors import ScheduleError
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import COPY, Instr, Operand, Program, VReg
from forge_eq.lower.select import home_leaves


def materialise(program: Program, devices: Sequence[str], host: str) -> Program:
    """``program`` with final devices and explicit copies.

    Raises ScheduleError when an accelerator would read or write a host number.
    """
    pairs = zip(program.instrs, devices, strict=True)
    instrs = tuple(i if i.device == d else replace(i, device=d) for i, d in pairs)
    vregs = list(program.vregs)
    for instr in instrs:
        for dst in instr.dsts:
            if vregs[dst].device != instr.device:
                vregs[dst] = replace(vregs[dst], device=instr.device)
    placed = home_leaves(replace(program, instrs=instrs, vregs=tuple(vregs)), host)
    return _Transfers(placed).run()


class _Transfers:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.vregs = list(program.vregs)
        self.names = program.constant_names
        self.constants = list(program.constants)
        self.instrs: list[Instr] = []
        self.twins: dict[tuple[int, str], int] = {}  # (register, device) -> the same value there

    def run(self) -> Program:
        for instr in self.program.instrs:
            srcs = tuple(self.on(s, instr.device, instr) for s in instr.srcs)
            for dst in instr.dsts:
                known = self.vregs[dst].alias_of
                if known is not None and known != (alias := srcs[0]):
                    assert isinstance(alias, int), "a view looks at a register"
                    self.vregs[dst] = replace(self.vregs[dst], alias_of=alias)
            self.instrs.append(instr if srcs == instr.srcs else replace(instr, srcs=srcs))
        return replace(
            self.program, vregs=tuple(self.vregs), constants=tuple(self.constants), instrs=tuple(self.instrs)
        )

    def on(self, source: Operand, device: str, reader: Instr) -> Operand:
        """The operand as ``device`` can read it."""
        if not isinstance(source, int) or self.vregs[source].device == device:
            return source
        if self.program.root(source) in self.program.state:
            return source
        if (source, device) not in self.twins:
            self.twins[source, device] = self.twin(source, device, reader)
        return self.twins[source, device]

    def twin(self, source: int, device: str, reader: Instr) -> int:
        vreg = self.vregs[source]
        if not isinstance(vreg.type, TensorType):
            raise ScheduleError(
                "schedule",
                f"{reader.opcode} v{source}",
                f"a host number of type {vreg.type} is read on {device}",
                "place the reader on the host",
            )
        made = VReg(len(self.vregs), vreg.type, device)
        self.vregs.append(made)
        if source in self.names:
            self.constants.append((made.id, self.names[source]))
        else:
            self.instrs.append(Instr(None, (made.id,), (source,), (), device, COPY, reader.node, reader.origin))
        return made.id
