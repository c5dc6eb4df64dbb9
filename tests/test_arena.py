"""Programs run for real on the bytes of their arenas give the values of the graph.

The machine here is as hostile as the promises allow: a fresh arena is poison, an instruction poisons its result
before it is written unless the write is in place, and a plugin's segment poisons all its results before it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from forge_eq import targets
from forge_eq.alloc.linear_scan import allocate
from forge_eq.alloc.plan import Allocation
from forge_eq.ir.graph import Graph
from forge_eq.ir.types import NoneType, ScalarType, TensorType, TupleType
from forge_eq.lower.npu import Imm, Instr, Program
from forge_eq.lower.select import lower
from forge_eq.ops import leaves
from forge_eq.schedule.plan import schedule
from forge_eq.targets import Target
from npu_programs import mlp, random_graph, transformer

DTYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "bool": torch.bool}
POISON = 0xA5


def leaf_value(type: TensorType, key: int) -> torch.Tensor:
    gen = torch.Generator().manual_seed(key)
    if type.dtype == "i64":
        return torch.randint(0, 4, type.shape, generator=gen)
    return torch.randn(type.shape, generator=gen, dtype=torch.float64).to(DTYPES[type.dtype]) * 0.1


def apply(op: Any, types: list[Any], values: list[Any], attrs: tuple[Any, ...]) -> list[Any]:
    """The results of one op; a call outside the vocabulary is some function of its first operand and number."""
    if op.torch is not None:
        found = op.torch(*values, *attrs)
        return list(found) if isinstance(found, tuple | list) else [found]
    if isinstance(types[0], ScalarType):
        return [int(values[0].abs().sum().item() * 1000) % 7]
    if isinstance(types[0], NoneType):
        return [None]
    return [values[0] * 1.5 + (values[1] if len(values) > 1 else 0.25)]


def run_graph(graph: Graph) -> list[torch.Tensor]:
    values: list[Any] = []
    for node in graph.nodes:
        if node.op is leaves.input_:
            values.append(leaf_value(node.type, node.attrs[0]))
        elif node.op is leaves.constant:
            values.append(leaf_value(node.type, len(node.attrs[0]) + 100))
        else:
            types = node.type.items if isinstance(node.type, TupleType) else [node.type]
            found = apply(node.op, list(types), [values[i] for i in node.inputs], node.attrs)
            values.append(found if isinstance(node.type, TupleType) else found[0])
    return [values[o] for o in graph.outputs]


class Machine:
    def __init__(self, program: Program, target: Target, allocation: Allocation) -> None:
        self.p, self.target, self.allocation = program, target, allocation
        self.memory = {
            d: torch.full((allocation.arena(d).peak,), POISON, dtype=torch.uint8) for d in target.device_names
        }
        self.host: dict[int, Any] = {v: leaf_value(program.vregs[v].type, len(n) + 100) for v, n in program.constants}

    def cell(self, vreg: int) -> torch.Tensor | None:
        slot = self.allocation.slot(self.p, vreg)
        if slot is None:
            return None
        type = self.p.vregs[vreg].type
        raw = self.memory[self.p.vregs[vreg].device][slot.offset : slot.end]
        return raw.view(DTYPES[type.dtype]).view(type.shape)

    def read(self, operand: Any) -> Any:
        if isinstance(operand, Imm):
            return operand.value
        if operand in self.host:
            return self.host[operand]
        cell = self.cell(operand)
        assert cell is not None, f"v{operand} has no storage"
        return cell

    def compute(self, instr: Instr) -> list[Any]:
        values = [self.read(s) for s in instr.srcs]
        if instr.op is None:
            return [values[0].clone()]
        found = apply(instr.op, [self.p.vregs[d].type for d in instr.dsts], values, instr.attrs)
        return [v.clone() if isinstance(v, torch.Tensor) else v for v in found]

    def poison(self, dsts: Sequence[int], keep: Sequence[Any] = ()) -> None:
        kept = {self.allocation.slot(self.p, k) for k in keep if isinstance(k, int)}
        for dst in dsts:
            slot = self.allocation.slot(self.p, dst)
            if slot is not None and self.p.vregs[dst].alias_of is None:
                if any(k is not None and k.offset == slot.offset and k.nbytes == slot.nbytes for k in kept):
                    continue
                self.memory[self.p.vregs[dst].device][slot.offset : slot.end] = POISON

    def store(self, dst: int, value: Any) -> None:
        cell = self.cell(dst)
        if cell is None:
            self.host[dst] = value
        elif self.p.vregs[dst].alias_of is None:
            cell.copy_(value)

    def run(self) -> list[torch.Tensor]:
        for index, v in enumerate(self.p.inputs):
            self.store(v, leaf_value(self.p.vregs[v].type, index))
        for segment in self.p.segments:
            body = self.p.instrs[segment.start : segment.stop]
            plugin = self.target.device(segment.device).kind == "openvino"
            if self.allocation.granularity == "segment" and plugin:
                self.poison([d for i in body for d in i.dsts])
            for instr in body:
                if not (self.allocation.granularity == "segment" and plugin):
                    in_place = instr.op is not None and instr.op.traits.elementwise
                    self.poison(instr.dsts, keep=instr.srcs if in_place else ())
                for dst, value in zip(instr.dsts, self.compute(instr), strict=True):
                    self.store(dst, value)
        return [self.read(o).clone() for o in self.p.outputs]


GRAPHS = [mlp, lambda: transformer(3), *(lambda s=s: random_graph(s) for s in range(20))]


@pytest.mark.parametrize("granularity", ["instr", "segment"])
@pytest.mark.parametrize("target", ["openvino-cpu", "torch"])
@pytest.mark.parametrize("index", range(len(GRAPHS)))
def test_arena_run_gives_the_graphs_values(index: int, target: str, granularity: str) -> None:
    torch.set_num_threads(1)
    graph, chosen = GRAPHS[index](), targets.load(target)
    program = schedule(lower(graph, chosen), chosen).program
    found = Machine(program, chosen, allocate(program, chosen, granularity)).run()
    for got, wanted in zip(found, run_graph(graph), strict=True):
        assert torch.equal(got, wanted)
        assert torch.isfinite(wanted.double()).all()


def test_a_wrong_offset_gives_wrong_values() -> None:
    """The machine above would notice: with everything at offset 0 the values are lost."""
    chosen = targets.load("torch")
    graph = mlp()
    program = schedule(lower(graph, chosen), chosen).program
    plan = allocate(program, chosen)
    (arena,) = plan.arenas
    arena = replace(arena, slots=tuple(replace(s, offset=0) for s in arena.slots))
    broken = Allocation(plan.name, plan.granularity, plan.alignment, plan.steps, (arena,))
    assert not torch.equal(Machine(program, chosen, broken).run()[0], run_graph(graph)[0])
