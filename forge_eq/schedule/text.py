"""Text form of a schedule: the timeline, then the program in its final order.

Takes a :class:`Schedule` or its text. Gives the other. Promises: ``parse(text(s)) == s``. One line per instruction;
``after`` lists the positions it waits for::

    schedule @mlp npu=1 cpu=0 transitions=0 before=0 least=0 copies=0 copy_bytes=0 peak=1536 peak_before=1536 ...
      t0 npu.matmul.linear v2 after -  ; has the kernel
    npu @mlp target=openvino-cpu
      ...
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from forge_eq.errors import ParseError
from forge_eq.ir.lexer import ident
from forge_eq.lower.npu import Program
from forge_eq.lower.text import parse as parse_program
from forge_eq.lower.text import reparse as reparse_program
from forge_eq.lower.text import text as program_text
from forge_eq.schedule.order import Figures, dependences
from forge_eq.schedule.plan import Schedule

_HEAD = re.compile(
    r"schedule @.*? transitions=(\d+) before=(\d+) least=(\d+) copies=(\d+) copy_bytes=(\d+) peak=(\d+) "
    r"peak_before=(\d+) predicted_us=(\S+) strategy=(.+)"
)
_LINE = re.compile(r"t(\d+) .*?  ; (.*)")


def text(schedule: Schedule) -> str:
    """The timeline and the program."""
    f, p = schedule.figures, schedule.program
    count = Counter(i.device for i in p.instrs)
    counts = "".join(f"{d}={count[d]} " for d in sorted(count, reverse=True))
    head = (
        f"schedule @{ident(p.name)} {counts}transitions={f.transitions} before={f.transitions_before} "
        f"least={f.transitions_least} copies={f.copies} copy_bytes={f.copy_bytes} peak={f.peak} "
        f"peak_before={f.peak_before} predicted_us={schedule.predicted_us!r} strategy={f.strategy}"
    )
    return "\n".join([head, *_timeline(p, schedule.reasons)]) + "\n" + program_text(p)


def _timeline(program: Program, reasons: tuple[str, ...]) -> list[str]:
    lines = []
    for position, (instr, before) in enumerate(zip(program.instrs, dependences(program), strict=True)):
        dsts = ", ".join(f"v{d}" for d in instr.dsts)
        after = ", ".join(f"t{b}" for b in before) or "-"
        lines.append(f"  t{position} {instr.opcode} {dsts} after {after}  ; {reasons[position]}")
    return lines


def parse(source: str) -> Schedule:
    """Reads what :func:`text` wrote. Raises ParseError, which names the line."""
    lines = source.splitlines()
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise _error(1, lines[0] if lines else "")
    start = next((k for k, line in enumerate(lines) if line.startswith("npu @")), len(lines))
    reasons: list[str] = []
    for number, line in enumerate(lines[1:start], 2):
        found = _LINE.fullmatch(line.strip())
        if found is None or int(found[1]) != len(reasons):
            raise _error(number, line)
        reasons.append(found[2])
    program = parse_program("\n".join(lines[start:]))
    if len(reasons) != len(program.instrs):
        raise _error(start, f"{len(reasons)} steps, {len(program.instrs)} instructions")
    after, before, least, copies, size, peak, peak_before = (int(head[k]) for k in range(1, 8))
    figures = Figures(before, after, least, copies, size, peak_before, peak, head[9])
    return Schedule(program, tuple(reasons), figures, float(head[8]))


def reparse(schedule: Schedule) -> Schedule:
    """The schedule as its own text reads, with the weights and the calling convention that text leaves out."""
    return replace(parse(text(schedule)), program=reparse_program(schedule.program))


def _error(number: int, line: str) -> ParseError:
    return ParseError("schedule", f"line {number}", f"cannot read {line.strip()!r}", "compare with schedule/text.py")
