"""Lowering: instruction selection, the text form of NPU IR, its verifier, and expansion by definition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forge_eq import targets
from forge_eq.errors import CheckError, LowerError, ParseError
from forge_eq.ir.types import Sym, TensorType
from forge_eq.lower.check import check
from forge_eq.lower.npu import Imm, Program
from forge_eq.lower.select import expand, lower
from forge_eq.lower.text import parse, reparse, text
from forge_eq.ops import composite, effects, elementwise, leaves, linalg, movement
from npu_programs import Draft, F, mlp, random_graph, transformer

NPU = targets.load("openvino-cpu")


def test_selects_one_instruction_per_call() -> None:
    graph = transformer(2)
    program = lower(graph, NPU)
    check(program, NPU)
    assert len(program.instrs) == graph.calls
    opcodes = {i.opcode for i in program.instrs}
    assert {"cpu.gather.embedding", "npu.matmul.linear_bias", "npu.attention.attention_mask"} <= opcodes
    assert {"cpu.vector.ge", "cpu.move.broadcast_to"} <= opcodes
    assert not any("project" in o or "literal" in o for o in opcodes)


def test_everything_runs_on_the_host_of_a_one_device_target() -> None:
    program = lower(transformer(1), "torch")
    check(program, targets.load("torch"))
    assert {i.device for i in program.instrs} == {"cpu"}


def test_literals_are_immediates_and_views_share_a_buffer() -> None:
    d = Draft("g")
    y = d.op(elementwise.mul, d.input(F, 2, 3), d.lit(0.1))
    program = lower(d.done(d.op(movement.reshape, y, attrs=((6,),))), NPU)
    mul, reshape = program.instrs
    assert mul.srcs == (0, Imm(0.1))
    assert program.vregs[reshape.dsts[0]].alias_of == mul.dsts[0]
    assert program.root(reshape.dsts[0]) == mul.dsts[0]


def test_host_only_kinds_go_to_the_host() -> None:
    d = Draft("g")
    x, i = d.input(F, 4), d.input("i64", 4)
    wide = d.op(elementwise.cast, x, attrs=("f64",))
    back = d.op(elementwise.cast, wide, attrs=("f32",))
    far = d.op(elementwise.gt, i, d.lit(2))
    kept = d.op(elementwise.where, far, back, d.lit(0.0))
    unknown = d.opaque(TensorType(F, (4,)), kept)
    program = lower(d.done(unknown), NPU)
    check(program, NPU)
    assert [i.opcode for i in program.instrs] == [
        "cpu.vector.cast",
        "cpu.vector.cast",
        "cpu.vector.gt",
        "npu.vector.where",
        "cpu.torch.opaque",
    ]


@pytest.mark.parametrize("seed", range(30))
def test_text_round_trips(seed: int) -> None:
    program = lower(random_graph(seed), NPU)
    check(program, NPU)
    back = parse(text(program))
    assert back == program
    assert text(back) == text(program)


def test_text_of_a_small_program() -> None:
    assert (
        text(lower(mlp(), NPU))
        == """\
npu @mlp target=openvino-cpu
  input v0 : f32[8,64] npu
  const v1 : f32[128,64] npu fc.weight
  const v2 : f32[128] npu fc.bias
  const v5 : f32[64,128] npu out.weight
  v3 = npu.matmul.linear_bias v0, v1, v2 {transposed=True} : f32[8,128]  ; %3 - fc model.py:1
  v4 = npu.vector.gelu v3 : f32[8,128]  ; %4 composite/gelu fc model.py:1
  v6 = npu.matmul.linear v4, v5 {transposed=True} : f32[8,64]  ; %6 - fc model.py:1
  v7 = npu.vector.mul v6, 0.5 : f32[8,64]  ; %8 - fc model.py:1
  v8 = npu.vector.add v0, v7 : f32[8,64]  ; %9 - fc model.py:1
  return v8
"""
    )


def test_text_keeps_awkward_attributes() -> None:
    d = Draft("g")
    x = d.input(F, 2, 2)
    y = d.op(elementwise.clamp, x, attrs=(None, 1e-300))
    y = d.op(elementwise.mul, y, d.lit(float("-inf")))
    d.module = 'a "b" ; c'
    y = d.b.add(effects.opaque, (y,), ('na"n ; {x}', "(?,) : #\n"), d.b.nodes[y].type)
    program = lower(d.done(y), NPU)
    assert parse(text(program)) == program


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("npu @mlp", "nqu @mlp"),
        ("gelu", "gelux"),
        ("{transposed=True}", "{transposed=}"),
        ("{transposed=True}", ""),
        (": f32[8,64]  ; %9", ": f99[8,64]  ; %9"),
        ("v8 = ", "v9 = "),
        ("v4 = ", "v3 = "),
        ("  return v8\n", ""),
        ("return v8", "return %8"),
        ("0.5", "x"),
    ],
)
def test_broken_text_is_refused(old: str, new: str) -> None:
    source = text(lower(mlp(), NPU))
    assert old in source
    with pytest.raises(ParseError, match="remedy"):
        parse(source.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("v4 = npu.vector.gelu v3", "v4 = npu.vector.gelu v6", "before its definition"),
        (": f32[8,64]  ; %9", ": f32[8,65]  ; %9", "the op gives"),
        ("npu.vector.gelu", "npu.norm.gelu", "does not run on unit"),
        ("v4 = npu.vector.gelu v3", "v4~v3 = npu.vector.gelu v3", "cannot share the buffer"),
        ("target=openvino-cpu", "target=torch", "is for torch"),
        ("v0 : f32[8,64] npu", "v0 : f32[8,64] gpu", "lacks"),
    ],
)
def test_verifier_rejects(old: str, new: str, why: str) -> None:
    source = text(lower(mlp(), NPU))
    assert old in source
    with pytest.raises(CheckError, match=why):
        check(parse(source.replace(old, new)), NPU)


def test_verifier_rejects_double_assignment_and_wrong_device() -> None:
    program = lower(mlp(), NPU)
    twice = replace(program, instrs=(*program.instrs, program.instrs[-1]))
    with pytest.raises(CheckError, match="assigned twice"):
        check(twice, NPU)
    moved = _move_to_host(program, 1)
    check(moved, NPU)
    with pytest.raises(CheckError, match="which is on npu"):
        check(moved, NPU, scheduled=True)


def _move_to_host(program: Program, position: int) -> Program:
    instrs, vregs = list(program.instrs), list(program.vregs)
    instrs[position] = replace(instrs[position], device="cpu")
    for dst in instrs[position].dsts:
        vregs[dst] = replace(vregs[dst], device="cpu")
    return replace(program, instrs=tuple(instrs), vregs=tuple(vregs))


def test_verifier_rejects_a_dtype_that_the_device_lacks() -> None:
    d = Draft("g")
    program = lower(d.done(d.op(elementwise.neg, d.input("f64", 3))), NPU)
    source = text(program).replace("cpu.vector.neg", "npu.vector.neg")
    with pytest.raises(CheckError, match="npu has no vector unit"):
        check(parse(source), NPU)


def test_a_symbolic_size_is_refused_with_a_remedy() -> None:
    d = Draft("g")
    x = d.b.add(leaves.input_, (), (0,), TensorType(F, (Sym("s0"), 4)))
    with pytest.raises(LowerError, match="specialises shapes"):
        lower(d.done(d.op(elementwise.neg, x)), NPU)


def test_a_composite_without_kernel_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Draft("g")
    x, w, b = d.input(F, 2, 8), d.const("w", F, 8), d.const("b", F, 8)
    parts = d.op(composite.add_layer_norm, x, x, w, b, attrs=((1,), 1e-5))
    graph = d.done(*(d.op(movement.project, parts, attrs=(i,)) for i in (1, 0)))
    assert expand(graph) is graph
    for op in (composite.add_layer_norm, composite.layer_norm):
        monkeypatch.setitem(op.__dict__, "kernel", None)
    opened = expand(graph)
    names = [n.op.name for n in opened.nodes]
    assert not {"add_layer_norm", "layer_norm", "project"} & set(names)
    assert [opened.nodes[o].type for o in opened.outputs] == [graph.nodes[o].type for o in graph.outputs]
    check(lower(graph, NPU), NPU)


def test_expansion_computes_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    d = Draft("g")
    x = d.input(F, 3, 5)
    graph = d.done(d.op(composite.softmax, x, attrs=((1,),)))
    monkeypatch.setitem(composite.softmax.__dict__, "kernel", None)
    opened = expand(graph)
    given = np.random.default_rng(0).normal(size=(3, 5))
    values: list[object] = []
    for node in opened.nodes:
        inputs = [values[i] for i in node.inputs]
        values.append(given if node.op is leaves.input_ else node.op.ref(np, *inputs, *node.attrs))
    wanted = np.exp(given) / np.exp(given).sum(1, keepdims=True)
    np.testing.assert_allclose(values[opened.outputs[0]], wanted, rtol=1e-12)
    assert sum(n.op is elementwise.exp for n in opened.nodes) == 1  # equal subterms are built once


def test_a_multi_output_value_cannot_be_returned_whole() -> None:
    d = Draft("g")
    with pytest.raises(LowerError, match="output of type"):
        lower(d.done(d.op(movement.split, d.input(F, 2, 4), attrs=((2, 2), 1))), NPU)


def test_no_dead_code_and_no_lost_effect() -> None:
    d = Draft("g")
    x = d.input(F, 2)
    d.op(linalg.matmul, *(d.input(F, 2, 2),) * 2)
    d.opaque(TensorType(F, (2,)), x, effect=True)
    program = lower(d.done(x), NPU)
    assert [i.opcode for i in program.instrs] == ["cpu.torch.opaque_effect"]


def test_reparsing_keeps_what_text_leaves_out() -> None:
    import torch

    d = Draft("g")
    graph = d.done(d.op(elementwise.neg, d.const("w", F, 2)))
    program = lower(replace(graph, constants={"w": torch.ones(2)}, submodules={"m": torch.nn.Identity()}), NPU)
    back = reparse(program)
    assert back == program
    assert back.data is program.data
    assert back.submodules is program.submodules
    assert back.signature is program.signature
