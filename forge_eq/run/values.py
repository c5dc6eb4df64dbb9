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
import torch.nn.functional as F

from forge_eq.capture.execute import OPAQUE, call_of, run_graph, run_node
from forge_eq.capture.values import DTYPE_NAMES
from forge_eq.errors import ForgeError, RunError
from forge_eq.ir.graph import Graph, Node, rewrite_nodes
from forge_eq.ir.types import DTYPES, FLOATS, TensorType
from forge_eq.lower.npu import Imm, Instr, Program
from forge_eq.ops.elementwise import cast
from forge_eq.ops.linalg import embedding, linear, linear_bias
from forge_eq.verify.criterion import Parts

TORCH_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
assert TORCH_DTYPES.keys() == DTYPES.keys()
WIDE_BYTES = 1 << 20  # of a weight that are in float64 at once: they stay in the cache


def copied(value: Any) -> Any:
    """A tensor's own copy, which whoever is given it may write into; anything else as it is."""
    return value.clone() if isinstance(value, torch.Tensor) else value


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
        wide: compute floats in float64, whatever the program says. Constants are given as they are stored.
    """
    values: list[Any] = [None] * len(program.vregs)
    for register, value in zip(program.inputs, inputs, strict=True):
        values[register] = _widened(value) if wide else value
    for register in program.constant_names:
        values[register] = constant(program, register)
    read = _Widened(values) if wide else values
    with torch.no_grad():
        for instr in program.instrs:
            results = run_instr(program, _wide_instr(instr) if wide else instr, read)
            for dst, result in zip(instr.dsts, results, strict=True):
                values[dst] = result
    return values


class _Widened(Sequence[Any]):
    """Values in float64, constants too: these are made at each use, since all of them are twice the model."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __getitem__(self, register: Any) -> Any:
        return _widened(self.values[register])

    def __len__(self) -> int:
        return len(self.values)


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _wide_instr(instr: Instr) -> Instr:
    if instr.op is not cast or instr.attrs[0] not in FLOATS:
        return instr
    return replace(instr, attrs=("f64",))


def in_float64(graph: Graph) -> Callable[[Sequence[Any]], Sequence[Any] | None]:
    """A graph as a function of its flat inputs that computes in float64; None when a call insists on its own dtype.

    A weight or an input is widened where it is read and dropped then, a large weight in parts: see :func:`_run_wide`.
    A large layer whose results are an output and nothing else, as logits are, is given as ``criterion.Parts``.
    """

    def wider(node: Node) -> Node:
        return replace(node, attrs=("f64",)) if node.op is cast and node.attrs[0] in FLOATS else node

    wide = rewrite_nodes(graph, wider)
    users = graph.users()
    last = {i for i in graph.outputs if not users[i] and graph.outputs.count(i) == 1}

    def call(node: Node, operands: Sequence[Any], submodules: Mapping[str, Any] | None = None) -> Any:
        if node.id in last and _is_large_layer(node, operands):
            return Parts(partial(_by_features, *_layer(node, operands)))
        return _run_wide(node, operands, submodules)

    def run(inputs: Sequence[Any]) -> Sequence[Any] | None:
        try:
            return [_widened(v) for v in run_graph(wide, list(inputs), call)]
        except (ForgeError, RuntimeError, TypeError):
            return None

    return run


def _run_wide(node: Node, operands: Sequence[Any], submodules: Mapping[str, Any] | None = None) -> Any:
    """The node in float64, from operands that are or are not. No copy of a table or of a large layer's weight is made.

    Only the rows that are looked up are widened; a layer is computed some features at a time, which leaves every
    element the sum that it was, though BLAS may add it up in another order.
    """
    if node.op is embedding:
        return _widened(run_node(node, operands, submodules))
    if _is_large_layer(node, operands):
        x, weight, bias = _layer(node, operands)
        made = x.new_empty(*x.shape[:-1], len(weight))
        for part, values in _by_features(x, weight, bias):
            made[..., part] = values
        return made
    return run_node(node, [_widened(v) for v in operands], submodules)


def _is_large_layer(node: Node, operands: Sequence[Any]) -> bool:
    if node.op not in (linear, linear_bias) or not isinstance(operands[1], torch.Tensor):
        return False
    return operands[1].dtype is not torch.float64 and 8 * operands[1].numel() > WIDE_BYTES


def _layer(node: Node, operands: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Operand and bias in float64, and the weight [n, k] in whatever it is stored."""
    x, weight, *bias = operands
    return _widened(x), weight if node.attrs[0] else weight.t(), _widened(bias[0]) if bias else None


def _by_features(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """(features, their results) of a linear layer in float64."""
    count, size = weight.shape
    step = max(1, WIDE_BYTES // (8 * size))
    for at in range(0, count, step):
        part = slice(at, at + step)
        yield part, F.linear(x, weight[part].double(), None if bias is None else bias[part])


def fits(type: Any, value: Any) -> bool:
    """Whether a value is a tensor of this very type."""
    return (
        isinstance(type, TensorType)
        and isinstance(value, torch.Tensor)
        and value.dtype is TORCH_DTYPES[type.dtype]
        and tuple(value.shape) == type.shape
    )
