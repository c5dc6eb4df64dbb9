"""Text form of an allocation, with the interval chart.

Takes an :class:`Allocation` or its text. Gives the other. Promises: ``parse(text(a)) == a``. A chart column is one
step from -1 to the exit, or several when there are more than 64; ``#`` means live in one of them. A line ``outside v1``
before the arenas names what lies in none::

    alloc @mlp granularity=instr alignment=64 steps=2 peak=1536 bound=1536 virtual=3 physical=2
      arena npu peak=1536 bound=1536 virtual=3 physical=2 strategy=linear_scan
        v0  0x0000..0x0200  [-1,1)  ##..
"""

from __future__ import annotations

import re

from forge_eq.alloc.plan import Allocation, Arena, Slot
from forge_eq.errors import ParseError
from forge_eq.ir.lexer import Cursor, ident

WIDTH = 64  # columns of the chart

_HEAD = re.compile(
    r"alloc @(.*?) granularity=(\w+) alignment=(\d+) steps=(\d+) peak=\d+ bound=\d+ virtual=\d+ physical=\d+"
)
_ARENA = re.compile(r"arena (\w+) peak=(\d+) bound=(\d+) virtual=(\d+) physical=\d+ strategy=(\w+)")
_OUTSIDE = re.compile(r"outside((?: v\d+)+)")
_SLOT = re.compile(r"v(\d+)\s+0x([0-9a-f]+)\.\.0x([0-9a-f]+)\s+\[(-?\d+),(-?\d+)\)\s+[#.]+")


def text(allocation: Allocation) -> str:
    """The allocation as text, one line per slot."""
    a = allocation
    lines = [
        f"alloc @{ident(a.name)} granularity={a.granularity} alignment={a.alignment} steps={a.steps} {_figures(a)}"
    ]
    if a.outside:
        lines.append("  outside " + " ".join(f"v{v}" for v in a.outside))
    for arena in a.arenas:
        lines.append(f"  arena {arena.device} {_figures(arena)} strategy={arena.strategy}")
        lines += [f"    {line}" for line in _slots(arena, a.steps)]
    return "\n".join(lines) + "\n"


def _figures(item: Allocation | Arena) -> str:
    return f"peak={item.peak} bound={item.bound} virtual={item.virtual} physical={item.physical}"


def _slots(arena: Arena, steps: int) -> list[str]:
    digits = max(4, len(f"{arena.peak:x}"))
    rows = [
        (f"v{s.vreg}", f"0x{s.offset:0{digits}x}..0x{s.end:0{digits}x}", f"[{s.birth},{s.death})", chart(s, steps))
        for s in arena.slots
    ]
    widths = [max((len(r[c]) for r in rows), default=0) for c in range(3)]
    return [f"{a:{widths[0]}}  {b:{widths[1]}}  {c:{widths[2]}}  {d}" for a, b, c, d in rows]


def chart(slot: Slot, steps: int) -> str:
    """One row of the chart: steps -1 .. ``steps`` in at most ``WIDTH`` columns."""
    total = steps + 2
    per = -(-total // WIDTH)
    columns = -(-total // per)
    first, stop = slot.birth + 1, slot.death + 1  # step -1 is column 0
    return "".join("#" if c * per < stop and (c + 1) * per > first else "." for c in range(columns))


def parse(source: str) -> Allocation:
    """Reads what :func:`text` wrote. Raises ParseError, which names the line."""
    lines = [(n + 1, line.strip()) for n, line in enumerate(source.splitlines()) if line.strip()]
    head = _HEAD.fullmatch(lines[0][1]) if lines else None
    if head is None:
        raise _error(1, lines[0][1] if lines else "")
    heads: list[re.Match[str]] = []
    outside: tuple[int, ...] = ()
    slots: list[list[Slot]] = []
    for number, line in lines[1:]:
        if arena := _ARENA.fullmatch(line):
            heads.append(arena)
            slots.append([])
        elif (row := _OUTSIDE.fullmatch(line)) and not heads:
            outside = tuple(int(v[1:]) for v in row[1].split())
        elif (row := _SLOT.fullmatch(line)) and slots:
            start = int(row[2], 16)
            slots[-1].append(Slot(int(row[1]), start, int(row[3], 16) - start, int(row[4]), int(row[5])))
        else:
            raise _error(number, line)
    arenas = tuple(Arena(h[1], int(h[2]), int(h[3]), h[5], tuple(s)) for h, s in zip(heads, slots, strict=True))
    return Allocation(Cursor(head[1], 1, "alloc").ident(), head[2], int(head[3]), int(head[4]), arenas, outside)


def _error(number: int, line: str) -> ParseError:
    return ParseError("alloc", f"line {number}", f"cannot read {line!r}", "compare with the example in alloc/text.py")
