"""Checks, values and expansion of graphs."""

from __future__ import annotations

import math
import operator
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from forge_eq.errors import CheckError, InputError, ShapeError
from forge_eq.ir.check import check
from forge_eq.ir.evaluate import Typed, evaluate, evaluate_term
from forge_eq.ir.expand import expand, expand_graph, expand_term
from forge_eq.ir.graph import Builder, Graph, Origin, Signature, WriteBack
from forge_eq.ir.text import parse, text
from forge_eq.ir.types import NoneType, ScalarType, Sym, TensorType, TupleType
from forge_eq.ops import attention, composite, elementwise, leaves, linalg, reduction
from forge_eq.ops.spec import AttrVar, Computed, Var, compute
from random_graphs import random_graph


def f32(*shape):
    return TensorType("f32", shape)


def inputs_of(g: Graph, seed: int = 0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=n.type.shape) for n in g.inputs]


# ------------------------------------------------------------------------------------------------ check


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_pass(seed):
    g = random_graph(random.Random(seed))
    check(g)
    check(g.live())
    check(parse(text(g)), data=False)
    check(expand_graph(g, lambda n: True))


GOOD = """
graph @g(%0 x: f32[2,3], %1 y: f32[2,3]) -> f32[2,3], f32[2,1]
  %2 = constant(name="w") : f32[2,3]
  %3 = add(%0, %2) : f32[2,3]
  %5 = mul(%3, 0.5) : f32[2,3]
  %6 = split(%5; sizes=(1, 2), axis=1) : (f32[2,1], f32[2,2])
  %7 = project(%6; index=0) : f32[2,1]
  %8 = opaque_effect(%7; target="aten.a.b", args="[]", token=3) : none
  %9 = opaque_effect(%7; target="aten.a.b", args="[]", token=4) : none
  %10 = opaque(%7; target="aten.s.b", args="[]") : int
  return %5, %7
"""


def good() -> Graph:
    g = parse(GOOD, constants={"w": torch.zeros(2, 3)})
    specs = pytree.tree_structure((0, 0)), pytree.tree_structure([0, 0, 0])
    outputs = (("value", 0), ("constant", None), ("input", 1))
    return replace(
        g, signature=Signature(("x", "y"), *specs, outputs, (WriteBack(0, "input:1"), WriteBack(1, "constant:b")))
    )


def test_the_good_graph_passes():
    check(good())


def node(g: Graph, at: int, **changes) -> Graph:
    return replace(g, nodes=tuple(replace(n, **changes) if n.id == at else n for n in g.nodes))


def sig(g: Graph, **changes) -> Graph:
    return replace(g, signature=replace(g.signature, **changes))


BROKEN = {
    "stands at position 3": lambda g: node(g, 3, id=4),
    "does not come before it": lambda g: node(g, 3, inputs=(0, 5)),
    "the vocabulary does not hold": lambda g: node(g, 3, op=replace(elementwise.add)),
    "has 1 inputs": lambda g: node(g, 3, inputs=(0,)),
    "has attributes (1,)": lambda g: node(g, 3, attrs=(1,)),
    "attribute axis is True": lambda g: node(g, 6, attrs=((1, 2), True)),
    "attribute sizes is [1, 2]": lambda g: node(g, 6, attrs=([1, 2], 1)),
    "no plain value": lambda g: node(g, 4, attrs=(np.float64(0.5),)),
    "reads the tuple %6 whole": lambda g: node(g, 7, op=elementwise.neg, attrs=(), inputs=(6,)),
    "which has no value": lambda g: node(g, 9, inputs=(8,)),
    "the host number %10": lambda g: replace(
        g, nodes=(*g.nodes, replace(g.nodes[3], id=11, op=elementwise.neg, inputs=(10,)))
    ),
    "the shape rule says f32[2,3]": lambda g: node(g, 3, type=f32(3, 2)),
    "does not fit its inputs": lambda g: node(g, 3, inputs=(0, 2), op=linalg.matmul),
    "unknown dtype": lambda g: node(g, 10, type=TensorType("f33", ())),
    "has shape (True,)": lambda g: node(g, 10, type=f32(True)),
    "take the dtype of the operand": lambda g: node(g, 10, type=TensorType("lit", ())),
    "%99 is no node": lambda g: replace(g, outputs=(5, 99)),
    "is an output of type (f32": lambda g: replace(g, outputs=(5, 6)),
    "is an output of type lit": lambda g: replace(g, outputs=(5, 4)),
    "is argument 0 where argument 1 is due": lambda g: node(g, 1, attrs=(0,)),
    "has no data": lambda g: replace(g, constants={}),
    "has data of float32 [3]": lambda g: replace(g, constants={"w": torch.zeros(3)}),
    "has data of float64": lambda g: replace(g, constants={"w": torch.zeros(2, 3, dtype=torch.float64)}),
    "has token 3 after token 3": lambda g: node(g, 9, attrs=("aten.a.b", "[]", 3)),
    "names 1 inputs": lambda g: sig(g, inputs=("x",)),
    "has 2 leaves for 3 results": lambda g: sig(g, out_spec=pytree.tree_structure([0, 0])),
    "a result is value 2 of 2": lambda g: sig(g, outputs=(("value", 2), ("constant", 0), ("input", 0))),
    "a result comes from 'x'": lambda g: sig(g, outputs=(("x", 0), ("constant", 0), ("input", 0))),
    "output 2 of 2": lambda g: sig(g, write_backs=(WriteBack(2, "input:0"),)),
    "is no target": lambda g: sig(g, write_backs=(WriteBack(0, "input:7"),)),
    "is written to input 0": lambda g: sig(g, write_backs=(WriteBack(1, "input:0"),)),
}  # fmt: skip


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_invariant_is_named(reason):
    with pytest.raises(CheckError) as found:
        check(BROKEN[reason](good()))
    assert reason in str(found.value)
    assert found.value.node.startswith(("%", "outputs", "signature"))


# ------------------------------------------------------------------------------------------------ values


def run_torch(g: Graph, inputs):
    values = []
    for n in g.nodes:
        if n.op.leaf == "input":
            values.append(torch.from_numpy(inputs[n.attrs[0]]))
        elif n.op.leaf == "constant":
            values.append(g.constants[n.attrs[0]].double())
        elif n.op.leaf:
            values.append(n.attrs[0])
        else:
            values.append(n.op.torch(*(values[i] for i in n.inputs), *n.attrs))
    return [values[i].numpy() for i in g.outputs]


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_have_torchs_values_before_and_after_expansion(seed):
    g = random_graph(random.Random(seed))
    inputs = inputs_of(g, seed)
    for program in (g, expand_graph(g, lambda n: True), g.live()):
        for got, due in zip(evaluate(program, inputs), run_torch(g, inputs), strict=True):
            assert got.dtype == np.float64
            np.testing.assert_allclose(got, due, rtol=1e-9, atol=1e-12)


def test_half_precision_is_evaluated_in_float64():
    g = parse('graph @g(%x: bf16[2])\n %w = constant(name="w") : f16[2]\n %y = neg(%x)\n return %y, %w')
    third = torch.tensor([1.0, 1 / 3], dtype=torch.float16)
    x, w = evaluate(replace(g, constants={"w": third}), [torch.tensor([1 / 3, 2.0], dtype=torch.bfloat16)])
    assert (x.dtype, w.dtype) == (np.float64, np.float64)
    assert x[0] == -float(torch.tensor(1 / 3, dtype=torch.bfloat16))
    assert w[1] == float(third[1])


def test_symbolic_sizes_come_from_the_inputs():
    g = parse("graph @g(%x: f32[s0,4])\n %y = reshape(%x; shape=(2, $s0, 2)) : f32[2,s0,2]\n return %y")
    x = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(evaluate(g, [x])[0], x.reshape(2, 3, 2))
    with pytest.raises(InputError, match="input 0"):
        evaluate(g, [np.zeros((3, 5))])


def test_one_symbol_has_one_size():
    g = parse("graph @g(%x: f32[s0], %y: f32[s0])\n %z = add(%x, %y)\n return %z")
    assert evaluate(g, [np.ones(3), np.ones(3)])[0].tolist() == [2, 2, 2]
    with pytest.raises(InputError, match="input 1"):
        evaluate(g, [np.ones(3), np.ones(4)])
    with pytest.raises(InputError, match="1 inputs for 2"):
        evaluate(g, [np.ones(3)])


def test_opaque_nodes_go_to_the_caller_in_float64():
    g = parse(
        'graph @g(%x: f32[2], %n: int)\n %y = opaque(%x, %n; target="t", args="a") : (f32[2], int)\n'
        " %a = project(%y; index=0)\n %b = project(%y; index=1)\n return %a, %b"
    )
    seen = []

    def call(node, operands):
        seen.append((node.attr("target"), operands[0].dtype, operands[1]))
        return operands[0] * 2, operands[1] + 1

    a, b = evaluate(g, [np.array([1.0, 2.0]), 5], call)
    assert seen == [("t", torch.float64, 5)]
    assert a.tolist() == [2.0, 4.0]
    assert b == 6
    with pytest.raises(CheckError, match="outside the vocabulary"):
        evaluate(g, [np.array([1.0, 2.0]), 5])


def test_a_reference_of_another_type_is_refused():
    g = parse("graph @g(%x: f32[2])\n %y = relu(%x) : f32[3]\n return %y")
    with pytest.raises(CheckError, match=r"gives float64\[2\], f32\[3\] is due"):
        evaluate(g, [np.ones(2)])


def test_a_constant_without_data_is_named():
    g = parse('graph @g()\n %w = constant(name="w") : f32[2]\n return %w')
    with pytest.raises(CheckError, match="no data for 'w'"):
        evaluate(g, [])


# ------------------------------------------------------------------------------------------------ terms


def test_terms_take_attributes_and_types():
    x, s = Var("x"), AttrVar("s")
    term = elementwise.mul(reduction.sum_(x, compute(lambda t: (t.rank - 1,), x), True), compute(operator.mul, s, s))
    value = np.arange(6.0).reshape(2, 3)
    got = evaluate_term(term, {"x": Typed(value, f32(2, 3)), "s": 3.0})
    assert got.tolist() == [[27.0], [108.0]]


def test_terms_may_be_evaluated_over_another_namespace():
    class Counted:
        calls = 0

        def __getattr__(self, name):
            Counted.calls += 1
            return getattr(np, name)

    x = (np.array([[0.0, 1.0]]), f32(1, 2))
    got = evaluate_term(composite.softmax(Var("x"), (1,)), {"x": x}, Counted())
    assert (
        Counted.calls == 8
    )  # max, subtract and exp twice, then sum and divide: the definition is evaluated as written
    assert got.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("term", "env", "reason"),
    [
        (elementwise.neg(Var("x")), {}, "unbound tensor variable"),
        (elementwise.mul(Var("x"), AttrVar("s")), {"x": (1.0, f32())}, "unbound attribute variable"),
        (elementwise.mul(Var("x"), compute(abs, "s")), {"x": (1.0, f32())}, "unbound variable of a computed"),
        (elementwise.mul(Var("x"), Computed(lambda t: None, ("x",))), {"x": (1.0, f32())}, "gives no value"),
    ],
)  # fmt: skip
def test_unbound_terms_are_refused(term, env, reason):
    with pytest.raises(CheckError, match=reason):
        evaluate_term(term, env)


def test_ill_typed_terms_are_refused():
    with pytest.raises(ShapeError):
        evaluate_term(linalg.matmul(Var("x"), Var("x")), {"x": (np.ones((2, 3)), f32(2, 3))})


# ------------------------------------------------------------------------------------------------ expansion


def test_equal_subterms_become_one_node_and_numbers_stay_apart():
    b = Builder()
    x = b.add(leaves.input_, (), (0,), f32(2))
    t = Var("x")
    twice = elementwise.mul(elementwise.add(t, 1.0), elementwise.add(t, 1.0))
    made = {}
    first = expand_term(b, twice, {"x": x}, {}, made=made)
    assert [n.op.name for n in b.nodes] == ["input", "literal", "add", "mul"]
    assert expand_term(b, elementwise.add(t, 1.0), {"x": x}, {}, made=made) == 2
    expand_term(b, elementwise.add(t, -0.0), {"x": x}, {}, made=made)
    expand_term(b, elementwise.add(t, 0.0), {"x": x}, {}, made=made)
    assert [math.copysign(1, n.attrs[0]) for n in b.nodes if n.op.leaf == "literal"] == [1, -1, 1]
    assert b.nodes[first].type == f32(2)


def test_one_level_keeps_inner_composites_and_the_origin():
    b = Builder()
    x, w = b.add(leaves.input_, (), (0,), f32(2, 3)), b.add(leaves.input_, (), (1,), f32(4, 3))
    origin = Origin("m.py:1", "mlp", "fusion/x")
    (y,) = expand(b, composite.linear_act, (x, w), (True, "gelu"), origin)
    assert [n.op for n in b.nodes[2:]] == [linalg.linear, composite.gelu]
    assert {n.origin for n in b.nodes[2:]} == {origin}
    assert y == 3


def test_only_wanted_nodes_are_expanded_and_tuples_vanish():
    g = parse("""
        graph @g(%x: f32[2,4], %r: f32[2,4], %w: f32[4])
          %t = add_rms_norm(%x, %r, %w; axes=(1,), eps=1e-05)
          %s = project(%t; index=0)
          %n = project(%t; index=1)
          %y = softmax(%n; axes=(1,))
          return %y, %s
    """)
    out = expand_graph(g, lambda n: n.op is composite.add_rms_norm)
    assert [n.op.name for n in out.nodes[3:]] == ["add", "rms_norm", "softmax"]
    assert out.outputs == (5, 3)
    check(out)


def test_what_has_no_definition_is_refused():
    b = Builder()
    x = b.add(leaves.input_, (), (0,), f32(2))
    with pytest.raises(CheckError, match="has no definition"):
        expand(b, elementwise.neg, (x,))


def test_a_definition_of_another_type_is_refused():
    b = Builder()
    x = b.add(leaves.input_, (), (0,), f32(2, 3))
    wrong = replace(composite.silu, define=lambda x: reduction.sum_(x, (0,), False))
    with pytest.raises(CheckError, match=r"is f32\[2,3\], its definition f32\[3\]"):
        expand(b, wrong, (x,))


def test_grouped_attention_expands_to_primitives():
    b = Builder()
    q, k, v = (b.add(leaves.input_, (), (i,), f32(1, h, 3, 4)) for i, h in enumerate((4, 2, 2)))
    g = b.finish((b.add(attention.attention, (q, k, v), (0.5,)),))
    whole = expand_graph(g, lambda n: True)
    check(whole)
    assert not any(n.op.fused for n in whole.nodes)
    np.testing.assert_allclose(evaluate(whole, inputs_of(g)), evaluate(g, inputs_of(g)), rtol=1e-12)


def test_types_used_here_print():
    assert [str(t) for t in (NoneType(), ScalarType("int"), TupleType((f32(2),)), f32(Sym("s0")))] == [
        "none", "int", "(f32[2])", "f32[s0]",
    ]  # fmt: skip
