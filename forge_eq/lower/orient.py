"""Orientation: which values are stored feature-major, as a minimum cut.

Takes a selected program and its target. Gives the same program with a ``layout`` on the instructions that work
feature-major. Promises: the labelling is a cheapest one under the model below; deterministic; nothing changes on a
target that does not know the kernel with the weight on the left, or where no layer gains by it.
Not here: what an instruction can do (``lower.layouts``), the nodes (``run.model``).

Orientation is no fact of a value, so it has no place among equal programs: twins of every value would square the
e-graph. It is chosen for the whole extracted program at once. Each instruction is a node; on the source's side of the
cut it works row-major, on the sink's side feature-major. Three kinds of edges carry predicted time: from the source
and to the sink what the instruction itself costs in either; between a value and its readers what storing it in the
other order costs, paid once for all readers on that side. A linear layer reads either order by a flag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from forge_eq.ir.types import TupleType, Type
from forge_eq.lower.layouts import (
    Layout,
    feature_major,
    is_layer,
    operand,
    permutation,
    row_major,
    shape_of,
)
from forge_eq.lower.left import left_known, named, one_row, rank_of, token_axes
from forge_eq.lower.mincut import sink_side
from forge_eq.lower.npu import Instr, Program, operand_type
from forge_eq.targets import Target
from forge_eq.targets.price import REORDER, left_times, move_time, nbytes, row_part, row_time

FREE = 0.05  # microseconds: an order that differs in axes of size 1 is the same bytes, yet fewer changes are better
PACKED = 0.02  # share of its time that a layer may lose, if that saves the copy of its weight that rows cost
PACKED_ROW = 0.1  # the same of one row, whose weight both stream: which is faster differs from process to process
ROWS = 0.04  # share of its time that a product with the weight on the left loses when it reads rows, by a flag
NORM = 2.0  # a norm over another axis than the last is no kernel of its own: several passes instead of one
NANO = 1000  # capacities are whole nanoseconds: sums of floats would make the cut depend on the order of edges
SOURCE, SINK = "row", "feature"


def orient(program: Program, target: Target) -> Program:
    """Chooses the layout of every instruction of a selected program.

    A target whose times are in no table names the layers instead (``Blocks.left``): only these are feature-major.
    """
    if target.blocks is not None and target.blocks.left != "none":
        return named(program, target, target.blocks)
    if not target.kernels.has("left") or not any(_gains(program, target, i) for i in program.instrs):
        return program
    axes = token_axes(program, target)
    chosen = _Network(program, target, axes).cut()
    instrs = []
    for position, instr in enumerate(program.instrs):
        layout = feature_major(rank_of(program, instr), axes[position]) if position in chosen else ()
        instrs.append(replace(instr, layout=() if layout == row_major(len(layout)) else layout))
    return replace(program, instrs=tuple(instrs))


def orient_all(program: Program, target: Target) -> Program:
    """Feature-major wherever an instruction can be: for comparison, not because it pays."""
    axes = token_axes(program, target)
    instrs = tuple(
        replace(i, layout=feature_major(rank_of(program, i), axes[p])) if p in axes else i
        for p, i in enumerate(program.instrs)
    )
    return replace(program, instrs=instrs)


def _types(program: Program, instr: Instr) -> tuple[list[Type], Type]:
    results = tuple(program.vregs[d].type for d in instr.dsts)
    return [operand_type(program, s) for s in instr.srcs], results[0] if len(results) == 1 else TupleType(results)


def _gains(program: Program, target: Target, instr: Instr) -> bool:
    """Whether the weight on the left suits a layer by itself."""
    if not is_layer(instr) or target.device(instr.device).kind != "openvino":
        return False
    left = _left_time(program, target, instr)
    return left is not None and left < _copying(program, instr) * own_time(program, target, instr, ())


def _copying(program: Program, instr: Instr) -> float:
    """What the time of a layer by rows is multiplied with, for the copy of its weight that the plugin then packs."""
    if not is_layer(instr):
        return 1.0
    return 1.0 + (PACKED_ROW if one_row(program, instr) else PACKED)


def _left_time(program: Program, target: Target, instr: Instr) -> float | None:
    times = _left_times(program, target, instr)
    return None if times is None else sum(times.values())


def _left_times(program: Program, target: Target, instr: Instr) -> dict[str, float] | None:
    """By part."""
    types, out = _types(program, instr)
    assert instr.op is not None
    return left_times(target, instr.op, types, instr.attrs, out) if left_known(program, instr) else None


def own_time(program: Program, target: Target, instr: Instr, layout: Layout) -> float:
    """Predicted microseconds of one instruction in a layout, its operands being there as wanted."""
    return sum(own_times(program, target, instr, layout).values())


def own_times(program: Program, target: Target, instr: Instr, layout: Layout | None = None) -> dict[str, float]:
    """The same by part of the prediction (``schedule.plan.parts``); in its own layout, unless another is asked."""
    assert instr.op is not None
    types, out = _types(program, instr)
    order = instr.layout if layout is None else layout
    if is_layer(instr) and order:
        left = _left_times(program, target, instr)
        if left is not None:
            return left
    part, row = row_part(target, instr.op, types, out), row_time(target, instr.op, types, instr.attrs, out)
    if not order or is_layer(instr):
        return {part: row}
    if permutation(instr, len(order)) is not None:
        return {}  # the order of storage is changed, in name only
    return {part: NORM * row if instr.unit == "norm" else row}


def reorder_time(program: Program, target: Target, register: int) -> float:
    """Predicted microseconds to store a value in the other order."""
    if _short(program, register):
        return FREE * target.weight(REORDER)
    return move_time(target, nbytes(program.vregs[register].type))


def rows_time(program: Program, target: Target, instr: Instr, layout: Layout, register: int) -> tuple[str, float]:
    """What a layer with its weight on the left loses by a row-major operand: the part, and predicted microseconds."""
    if _short(program, register):
        return REORDER, FREE * target.weight(REORDER)
    (kernel, us), *_ = own_times(program, target, instr, layout).items()
    part = f"{kernel}.rows"
    return part, ROWS * target.weights.get(part, 1.0) * us


def _short(program: Program, register: int) -> bool:
    """Whether the other order is the same bytes."""
    return sum(size > 1 for size in shape_of(program.vregs[register].type)) < 2


def border_times(program: Program, target: Target) -> dict[str, float]:
    """Predicted microseconds that a labelled program spends where a value and its reader differ in order, by part."""
    stored = {d: i.layout for i in program.instrs for d in i.dsts}
    known, moves = set(program.constant_names), dict[tuple[int, Layout], float]()
    found = defaultdict[str, float](float)
    for instr in program.instrs:
        for read in dict.fromkeys(instr.reads):
            have, rank = stored.get(read, ()), len(shape_of(program.vregs[read].type))
            if instr.op is None or read in known or permutation(instr, rank) is not None:
                continue  # a permutation's own time is that of its move
            wanted = operand(program, instr, read) or ()
            if have != wanted and is_layer(instr) and not have:
                part, us = rows_time(program, target, instr, instr.layout, read)
                found[part] += us
            elif have != wanted:
                moves[read, wanted] = reorder_time(program, target, read)
    for out in program.outputs:
        if stored.get(out, ()):
            moves[out, ()] = reorder_time(program, target, out)
    found[REORDER] += sum(moves.values())
    return found


class _Network:
    """The graph whose minimum cut is the labelling. An edge from a to b is cut when a is row-major and b is not."""

    def __init__(self, program: Program, target: Target, axes: Mapping[int, int]) -> None:
        self.program, self.target, self.axes = program, target, axes
        self.made = {d: p for p in axes for d in program.instrs[p].dsts}  # register -> the node that makes it
        self.capacity: dict[tuple[Any, Any], float] = {}
        constants = set(program.constant_names)
        for position, instr in enumerate(program.instrs):
            if position in axes:
                self.own(position)
            for read in dict.fromkeys(instr.reads):
                if read in self.made:
                    self.read(read, position)
                elif position in axes and read not in constants:
                    self.given(read, position)
        for out in dict.fromkeys(program.outputs):
            if out in self.made:
                self.as_rows(out, SOURCE)

    def cut(self) -> frozenset[int]:
        """Positions that work feature-major."""
        whole = {edge: round(us * NANO) for edge, us in self.capacity.items() if us != inf}
        endless = 1 + sum(whole.values())
        far = sink_side({edge: whole.get(edge, endless) for edge in self.capacity}, SOURCE, SINK)
        return frozenset(p for p in self.axes if p in far)

    def own(self, position: int) -> None:
        instr = self.program.instrs[position]
        order = feature_major(rank_of(self.program, instr), self.axes[position])
        copying = _copying(self.program, instr)
        self.capacity[position, SINK] = copying * own_time(self.program, self.target, instr, ())
        self.capacity[SOURCE, position] = own_time(self.program, self.target, instr, order)
        if is_layer(instr) and _left_time(self.program, self.target, instr) is None:
            self.capacity[SOURCE, position] = inf  # a kernel that the target does not know is not chosen

    def read(self, register: int, reader: int) -> None:
        """What differs between the order of a value and that of its reader."""
        instr, maker = self.program.instrs[reader], self.made[register]
        if permutation(instr, rank_of(self.program, instr)) is not None:
            if reader in self.axes:  # one transposition does both; from the other order to rows it is its own
                self.capacity[maker, reader] = self.reorder(register)
            return
        self.as_rows(register, reader if reader in self.axes else SOURCE)
        if reader in self.axes and is_layer(instr):
            self.capacity[maker, reader] = self.by_flag(register, reader)
        elif reader in self.axes:
            self.as_features(register, maker, reader)

    def given(self, register: int, reader: int) -> None:
        """An operand that is row-major for certain."""
        instr = self.program.instrs[reader]
        if is_layer(instr) and register == instr.srcs[0]:
            self.capacity[SOURCE, reader] += self.by_flag(register, reader)
        elif not is_layer(instr) and len(self.shape(register)) > self.axes[reader]:
            self.as_features(register, SOURCE, reader)

    def as_rows(self, register: int, reader: Any) -> None:
        """The value is stored as rows once, if any such reader wants rows and its maker gives the other order."""
        self.capacity[reader, ("rows of", register)] = inf
        self.capacity[("rows of", register), self.made[register]] = self.reorder(register)

    def as_features(self, register: int, maker: Any, reader: Any) -> None:
        self.capacity[("features of", register), reader] = inf
        self.capacity[maker, ("features of", register)] = self.reorder(register)

    def by_flag(self, register: int, reader: int) -> float:
        instr = self.program.instrs[reader]
        order = feature_major(rank_of(self.program, instr), self.axes[reader])
        return rows_time(self.program, self.target, instr, order, register)[1]

    def reorder(self, register: int) -> float:
        return reorder_time(self.program, self.target, register)

    def shape(self, register: int) -> tuple[int, ...]:
        return shape_of(self.program.vregs[register].type)
