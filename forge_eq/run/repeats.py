"""Repeats: layers that are alike, so that OpenVINO compiles one of them and runs it for each, with that one's weights.

Takes a program and its segments. Gives where a segment repeats itself, and which segments are alike. Promises: alike
segments compute the same function of what they read, in the same layouts; a constant that differs between them can be a
parameter of their model without another kernel being chosen for it. Not here: cutting (``run.cuts``), models.

A model's passes take time by the node, and the plugin copies a constant that it packs; a weight on the left is read
where it lies, be it a constant or not. So Qwen2-0.5B over 128 tokens needs one layer of its 24 compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from forge_eq.lower.layouts import is_layer, shape_of
from forge_eq.lower.left import one_row
from forge_eq.lower.npu import Instr, Operand, Program, Segment, operand_type
from forge_eq.run.borders import Layouts

LONGEST = 1_000  # instructions of a layer that is looked for


@dataclass(frozen=True)
class Repeat:
    """``count`` runs of ``period`` instructions from ``start`` on, each alike."""

    start: int
    period: int
    count: int

    @property
    def borders(self) -> range:
        return range(self.start, self.start + self.period * self.count + 1, self.period)


def find(program: Program, segment: Segment, passing: Sequence[int]) -> Repeat | None:
    """The longest stretch of a segment that consists of alike parts, of these the shortest part.

    Parts begin where the fewest bytes pass, of ``passing`` for each position of the segment; that may cost one of them.
    """
    known: dict[object, int] = {}
    line = np.array(
        [known.setdefault(_outer(program, i), len(known)) for i in program.instrs[segment.start : segment.stop]]
    )
    length, period, start = _longest(line)
    if not length:
        return None
    first = min(range(period), key=lambda k: (passing[start + k] + passing[start + k + period], k))
    whole = Repeat(segment.start + start + first, period, (length - first) // period)
    return _alike(program, whole)


def _longest(line: np.ndarray) -> tuple[int, int, int]:
    """(length, period, start) of the longest stretch of a sequence with a period that it holds twice; or zeros."""
    best = 0, 0, 0  # length, -period, start
    for period in range(2, min(len(line) // 2, LONGEST) + 1):
        breaks = np.flatnonzero(np.append(line[:-period] != line[period:], True))
        runs = np.diff(breaks, prepend=-1) - 1
        at = int(runs.argmax())
        if runs[at] >= period:
            best = max(best, (int(runs[at]) + period, -period, int(breaks[at] - runs[at])))
    return best[0], -best[1], best[2]


def _alike(program: Program, repeat: Repeat) -> Repeat | None:
    """The longest part of a repeat in which also the flow of values repeats itself; None without one."""
    parts = [Outline(program, range(a, a + repeat.period)) for a in repeat.borders[:-1]]
    best, at = Repeat(repeat.start, repeat.period, 1), 0
    while at < len(parts):
        end = at + 1
        while end < len(parts) and parts[end].form == parts[at].form and shareable(program, [parts[at], parts[end]]):
            end += 1
        if end - at > best.count:
            best = Repeat(repeat.start + at * repeat.period, repeat.period, end - at)
        at = end
    return best if best.count > 1 else None


class Outline:
    """Instructions without the numbers of their registers: ``form`` is equal for those that compute the same of what
    they read, and then ``registers`` correspond one by one."""

    def __init__(self, program: Program, positions: Sequence[int], layouts: Layouts = MappingProxyType({})) -> None:
        self.program, self.positions, self.layouts = program, positions, layouts
        self.made = {d: p for p in positions for d in program.instrs[p].dsts}

    @cached_property
    def form(self) -> tuple[object, ...]:
        numbers = {r: k for k, r in enumerate(self.registers)}
        constants = self.program.constant_names
        found: list[object] = []
        for instr in (self.program.instrs[p] for p in self.positions):
            operands = tuple(numbers[s] if isinstance(s, int) else repr(s) for s in self._operands(instr))
            found.append((_outer(self.program, instr), operands, tuple(numbers[d] for d in instr.dsts)))
        kinds = tuple((self.program.root(r) in constants, self.layouts.get(r)) for r in self.registers)
        return (*found, kinds)

    @cached_property
    def registers(self) -> tuple[int, ...]:
        """Each register once, in the order in which the instructions name it."""
        instrs = (self.program.instrs[p] for p in self.positions)
        named = (r for i in instrs for r in (*self._operands(i), *i.dsts) if isinstance(r, int))
        return tuple(dict.fromkeys(named))

    def _operands(self, instr: Instr) -> Sequence[Operand]:
        """Those that can be exchanged in the order in which they were made: it is chance which is written first."""
        if instr.op is None or not (instr.op.traits.commutative or instr.op.traits.symmetric):
            return instr.srcs
        a, b, *others = instr.srcs
        if not isinstance(a, int) or not isinstance(b, int):
            return instr.srcs
        return *sorted((a, b), key=lambda r: (self.made.get(r, -1), r)), *others

    @cached_property
    def readers(self) -> dict[int, list[tuple[Instr, int]]]:
        """Register -> (instruction, number of the operand) of each reader."""
        found: dict[int, list[tuple[Instr, int]]] = {}
        for instr in (self.program.instrs[p] for p in self.positions):
            for number, source in enumerate(instr.srcs):
                if isinstance(source, int):
                    found.setdefault(source, []).append((instr, number))
        return found


def differing(program: Program, outlines: Sequence[Outline]) -> list[int]:
    """Of outlines of one form: the first's constants that others have another register for."""
    rows = zip(*(o.registers for o in outlines), strict=True)
    return [row[0] for row in rows if program.root(row[0]) in program.constant_names and len(set(row)) > 1]


def shareable(program: Program, outlines: Sequence[Outline]) -> bool:
    """Whether each constant that differs between outlines of one form can be a parameter (:func:`_may_vary`)."""
    readers = outlines[0].readers
    return all(_may_vary(program, instr, k) for r in differing(program, outlines) for instr, k in readers[r])


def _may_vary(program: Program, instr: Instr, operand: int) -> bool:
    """Whether the kernel is the same for a constant operand and for one that is not.

    Feature-major it is for weights, which are read where they lie, and for vectors. A weight on the right is packed
    ahead, and in rows the plugin takes vectors into the kernel before, only if they are constants. One row times a
    weight is done in a way of its own (``NodeBuilder.row_product``), and a call of it takes no longer than a cut.
    """
    register = instr.srcs[operand]
    assert isinstance(register, int)
    vector = sum(n != 1 for n in shape_of(program.vregs[register].type)) <= 1
    return bool(instr.layout) and not one_row(program, instr) and (vector or is_layer(instr))


def _outer(program: Program, instr: Instr) -> tuple[object, ...]:
    """An instruction by all but its registers."""
    types = tuple(operand_type(program, s) for s in instr.srcs), tuple(program.vregs[d].type for d in instr.dsts)
    return instr.op, instr.device, instr.unit, repr(instr.attrs), instr.layout, types


def alike(program: Program, segments: Sequence[Segment], layouts: Layouts) -> dict[Segment, list[Outline]]:
    """Segment -> outlines of it and of those that can share its model; absent where there are no others."""
    outlines = {s: Outline(program, range(s.start, s.stop), layouts) for s in segments}
    by_form: dict[object, list[Segment]] = {}
    for segment, outline in outlines.items():
        by_form.setdefault(outline.form, []).append(segment)
    found: dict[Segment, list[Outline]] = {}
    for group in by_form.values():
        parts = [outlines[s] for s in group]
        if len(group) > 1 and shareable(program, parts):
            found |= dict.fromkeys(group, parts)
    return found
