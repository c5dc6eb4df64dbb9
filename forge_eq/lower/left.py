"""Linear layers with the weight on the left: x w as the transpose of w' x'.

Takes a selected program. Gives which instructions can work feature-major (:func:`token_axes`), and the program in which
the layers that a target names do (:func:`named`). Promises: a layer differs from its neighbours only in the order in
which its result is stored; the transposition stands where a reader wants rows (``run.model``).
Not here: which layers pay by predicted time (``lower.orient``).

Intel's NPU compiler cuts the operand on the left along its rows and gives each tile all of the other. A weight on the
left is so copied in large pieces, one on the right by channels in many small ones (times in ``docs/npu.md``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from forge_eq.lower.layouts import feature_major, is_layer, result_axis, shape_of, token_axis
from forge_eq.lower.npu import Instr, Program, operand_type
from forge_eq.targets import Blocks, Target

WIDE = 1.5  # results for each feature of a layer that widens
MOST = 6 << 20  # elements of its weight: Llama's 2048 x 8192 takes longer on the left (two layers: 7532 us for 6447)


def named(program: Program, target: Target, blocks: Blocks) -> Program:
    """The program with the layers that ``blocks.left`` names feature-major."""
    axes = token_axes(program, target)
    instrs = list(program.instrs)
    for position, axis in axes.items():
        instr = instrs[position]
        if _wanted(program, instr, blocks):
            instrs[position] = replace(instr, layout=feature_major(rank_of(program, instr), axis))
    return replace(program, instrs=tuple(instrs))


def _wanted(program: Program, instr: Instr, blocks: Blocks) -> bool:
    """Whether ``blocks.left`` names the instruction. A bias that is not one for each row is an addition more."""
    if not is_layer(instr) or not left_known(program, instr):
        return False
    *outer, results = shape_of(program.vregs[instr.dsts[0]].type)
    features = shape_of(operand_type(program, instr.srcs[0]))[-1]
    if math.prod(outer) < blocks.rows:
        return False
    if blocks.left == "all" or (blocks.left == "wide" and widens(features, results, len(instr.reads) > 2)):
        return True
    return instr.dsts[0] in program.outputs


def widens(features: int, results: int, biased: bool) -> bool:
    """Whether a layer is one of those that ``wide`` names."""
    return not biased and results >= WIDE * features and results * features <= MOST


def token_axes(program: Program, target: Target) -> dict[int, int]:
    """Position of an instruction that can work feature-major -> the axis of its results that counts tokens."""
    found: dict[int, int] = {}
    known: dict[int, int] = {}  # register -> axis
    for position, instr in enumerate(program.instrs):
        axis = _axis(program, target, instr, known)
        if axis is not None:
            found[position] = axis
            known.update(dict.fromkeys(instr.dsts, axis))
    return found


def _axis(program: Program, target: Target, instr: Instr, known: Mapping[int, int]) -> int | None:
    if instr.op is None or target.device(instr.device).kind != "openvino" or rank_of(program, instr) < 2:
        return None
    if is_layer(instr):
        x = shape_of(operand_type(program, instr.srcs[0]))
        axis = token_axis(x)
        source = instr.srcs[0]
        agrees = axis is not None and isinstance(source, int) and known.get(source, axis) == axis
        return axis if agrees and len(shape_of(operand_type(program, instr.srcs[1]))) == 2 else None
    wanted = {result_axis(program, instr, k, known[r]) for k, r in enumerate(instr.reads) if r in known}
    axis = next(iter(wanted)) if len(wanted) == 1 else None
    # of one row there is no other order, and with an axis of 1 at the end kernels run element by element
    return None if axis is None or shape_of(program.vregs[instr.dsts[0]].type)[axis] == 1 else axis


def rank_of(program: Program, instr: Instr) -> int:
    """The one rank of all results; 0 when they differ."""
    ranks = {len(shape_of(program.vregs[d].type)) for d in instr.dsts}
    return next(iter(ranks)) if len(ranks) == 1 else 0


def one_row(program: Program, instr: Instr) -> bool:
    """Whether it is a layer of one row, which is given as such whatever its layout (``Kernel.left``)."""
    return is_layer(instr) and math.prod(shape_of(program.vregs[instr.dsts[0]].type)[:-1]) == 1


def left_known(program: Program, instr: Instr) -> bool:
    """Whether a layer may have its weight on the left.

    Of weights [k, n] only a constant is transposed ahead (``run.model``); read by a flag it is another kernel. For one
    row the plugin's own copy costs no more, and takes bias and activation in (docs/decisions/0014).
    """
    return instr.attrs[0] is True or (instr.srcs[1] in program.constant_names and not one_row(program, instr))
