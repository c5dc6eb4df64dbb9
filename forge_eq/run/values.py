"""One instruction by torch, and a whole program without an arena.

Takes a program and its flat inputs. Gives the value of every register. Promises: instructions in order, each computed
by ``capture.execute``'s node executor from fresh values; ``wide`` computes the same program in float64.
Not here: storage (``run.arena``), OpenVINO (``run.segments``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from forge_eq.capture.execute import OPAQUE, call_of, run_graph, run_node
from forge_eq.capture.values import DTYPE_NAMES
from forge_eq.errors import ForgeError, RunError
from forge_eq.ir.graph import Graph, Node, rewrite_nodes
from forge_eq.ir.types import DTYPES, FLOATS, TensorType
from forge_eq.lower.npu import Imm, Instr, Program
from forge_eq.ops.elementwise import cast

TORCH_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
assert TORCH_DTYPES.keys() == DTYPES.keys()


def run_instr(program: Program, instr: Instr, values: Sequence[Any]) -> tuple[Any, ...]:
    """The results of one instruction; ``values`` maps registers to what they hold.

    Raises:
        RunError: torch refuses the operands; the error of torch is its cause.
    """
    return runner(program, instr)(values)


def runner(program: Program, instr: Instr) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """One instruction as a function of the registers' values, for many runs; it raises as :func:`run_instr`."""
    if instr.op is None:
        source = instr.reads[0]
        return lambda values: (values[source],)
    node = Node(instr.node, instr.op, (), instr.attrs, program.vregs[instr.dsts[0]].type, instr.origin)
    function: Callable[..., Any]
    tail: tuple[Any, ...]
    if instr.op in OPAQUE:
        function, tail = partial(_run_opaque, node, program.submodules), ()
    else:
        function, tail, _ = call_of(node, ())
    operands = [(None, s.value) if isinstance(s, Imm) else (s, None) for s in instr.srcs]

    def run(values: Sequence[Any]) -> tuple[Any, ...]:
        given = [number if register is None else values[register] for register, number in operands]
        try:
            result = function(*given, *tail)
        except (RuntimeError, TypeError, ValueError, IndexError) as e:
            raise RunError(
                "run",
                describe(program, instr),
                f"torch refuses it: {e}",
                "check the values of the inputs; the error of torch is the cause of this one",
            ) from e
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    return run


def _run_opaque(node: Node, submodules: Mapping[str, Any], *operands: Any) -> Any:
    return run_node(node, operands, submodules)


def describe(program: Program, instr: Instr) -> str:
    """The instruction for a person: opcode, registers, node, module and source."""
    where = " ".join(w for w in (instr.origin.module, instr.origin.source) if w)
    node = f" (node %{instr.node}{' of ' + where if where else ''})" if instr.node >= 0 else ""
    return f"{instr.opcode} {', '.join(f'v{d}' for d in instr.dsts)}{node}"


def constant(program: Program, register: int) -> torch.Tensor:
    """The data of a constant's register. Raises RunError when the program carries none."""
    name = program.constant_names[register]
    value = program.data.get(name)
    if value is None or value.is_meta:
        raise RunError(
            "run", name, "the constant has no data", "capture the model with real weights, not on the meta device"
        )
    return value.detach()


def evaluate(program: Program, inputs: Sequence[Any], wide: bool = False) -> list[Any]:
    """The value of every register.

    Args:
        inputs: one per input register, tensors or host numbers.
        wide: compute floats in float64, whatever the program says.
    """
    values: list[Any] = [None] * len(program.vregs)
    for register, value in zip(program.inputs, inputs, strict=True):
        values[register] = _widened(value) if wide else value
    for register in program.constant_names:
        found = constant(program, register)
        values[register] = _widened(found) if wide else found
    with torch.no_grad():
        for instr in program.instrs:
            results = run_instr(program, _wide_instr(instr) if wide else instr, values)
            for dst, result in zip(instr.dsts, results, strict=True):
                values[dst] = result
    return values


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _wide_instr(instr: Instr) -> Instr:
    if instr.op is not cast or instr.attrs[0] not in FLOATS:
        return instr
    return replace(instr, attrs=("f64",))


class _Widened(Mapping[str, Any]):
    """Constants in float64, made at each use: all of them together are twice the model."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants

    def __getitem__(self, name: str) -> Any:
        return _widened(self.constants[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.constants)

    def __len__(self) -> int:
        return len(self.constants)


def in_float64(graph: Graph) -> Callable[[Sequence[Any]], Sequence[Any] | None]:
    """A graph as a function of its flat inputs that computes in float64; None when a call insists on its own dtype."""

    def wider(node: Node) -> Node:
        return replace(node, attrs=("f64",)) if node.op is cast and node.attrs[0] in FLOATS else node

    wide = replace(rewrite_nodes(graph, wider), constants=_Widened(graph.constants))

    def run(inputs: Sequence[Any]) -> Sequence[Any] | None:
        try:
            return run_graph(wide, [_widened(v) for v in inputs])
        except (ForgeError, RuntimeError, TypeError):
            return None

    return run


def fits(type: Any, value: Any) -> bool:
    """Whether a value is a tensor of this very type."""
    return (
        isinstance(type, TensorType)
        and isinstance(value, torch.Tensor)
        and value.dtype is TORCH_DTYPES[type.dtype]
        and tuple(value.shape) == type.shape
    )
