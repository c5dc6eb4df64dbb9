"""The text form: exact round trips, what reads well, and errors that help."""

from __future__ import annotations

import math
import random
import struct

import pytest
import torch
from torch.utils import _pytree as pytree

from forge_eq.errors import CheckError, ParseError, ShapeError
from forge_eq.ir.graph import Builder, Graph, Origin, Signature, WriteBack
from forge_eq.ir.lexer import Cursor, ident, plain, show
from forge_eq.ir.text import parse, reparse, text
from forge_eq.ir.types import NoneType, ScalarType, Sym, TensorType, TupleType, parse_type
from forge_eq.ops import composite, effects, elementwise, leaves, linalg, movement
from random_graphs import random_graph

VALUES = [
    '[{"%":0}]',
    'it\'s "so"',
    0,
    1,
    -7,
    2**63,
    0.0,
    -0.0,
    1.0,
    0.1,
    1e-5,
    1e22,
    -1.5e300,
    5e-324,
    math.inf,
    -math.inf,
    True,
    False,
    None,
    "",
    "f32",
    "a b",
    '[{"%":0}]',
    'it\'s "so"',
    'quo"te\\',
    "line\nbreak\u2028",
    "-",
    (),
    (1,),
    (1, 2.0),
    ((1,), ()),
    Sym("s0"),
    Sym("2*s0 + 1"),
    (Sym("s0"), 3),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_round_trip_exactly(value):
    back = Cursor(show(value)).value()
    assert repr(back) == repr(value)
    assert type(back) is type(value)


def test_random_floats_round_trip_bit_for_bit():
    rng = random.Random(0)
    for _ in range(2000):
        x = struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))[0]
        back = Cursor(show(x)).value()
        assert math.isnan(back) if math.isnan(x) else struct.pack("<d", back) == struct.pack("<d", x)


@pytest.mark.parametrize("value", [torch.float32, [1], 1j, {"a": 1}, object()], ids=lambda v: type(v).__name__)
def test_other_values_are_refused(value):
    with pytest.raises(CheckError, match="no text form"):
        show(value)


@pytest.mark.parametrize("name", ["x", "model.h.0", "a b", "", "-", "x:y", "model.py:12", '"', "<eval_with_key>.3:7"])
def test_names_round_trip(name):
    assert Cursor(plain(name)).name() == name
    assert Cursor(ident(name)).ident() == name


def _f32(*shape):
    return TensorType("f32", shape)


def attention_graph() -> Graph:
    """Written-out attention with everything that a graph can hold."""
    b = Builder(name="attn")
    q = b.add(leaves.input_, (), (0,), _f32(1, 2, 4, 8))
    k = b.add(leaves.input_, (), (1,), _f32(1, 2, 4, 8))
    b.add(leaves.constant, (), ("fc.weight",), _f32(8, 8), Origin("", "fc", ""))
    scores = b.add(linalg.matmul_nt, (q, k), origin=Origin("model.py:12", "attn", ""))
    here = Origin("my model.py:13", "", "algebra/div_as_mul")
    scale = b.add(leaves.literal, (), (0.125,), origin=here)
    scaled = b.add(elementwise.mul, (scores, scale), origin=here)
    p = b.add(composite.softmax, (scaled,), ((3,),), origin=Origin(rule="attention/softmax"))
    heads = b.add(movement.split, (p,), ((1, 1), 1))
    first = b.add(movement.project, (heads,), (0,))
    check = b.add(effects.opaque_effect, (first,), ("aten._assert_async.msg", '[%0, "a; b"]', 0), NoneType())
    size = b.add(effects.opaque, (first,), ("aten.sym_size.int", "[%0, 0]"), ScalarType("int"))
    flat = b.add(movement.reshape, (p,), ((8, 4),))
    out = b.add(linalg.linear, (flat, b.add(leaves.constant, (), ("v",), _f32(8, 4))), (True,))
    assert check < size < out
    return b.finish(
        (out, p),
        constants={"fc.weight": torch.zeros(8, 8), "v": torch.zeros(8, 4)},
        submodules={"true_graph": None},
        signature=Signature(
            ("q", "past.0"),
            pytree.tree_structure(((1,), {"past": 2})),
            pytree.tree_structure({"a": 1, "b": [2, None]}),
            (("value", 0), ("constant", 3.0), ("input", 1)),
            (WriteBack(1, "constant:cache k"), WriteBack(0, "input:1")),
        ),
    )


def test_a_full_graph_round_trips():
    g = attention_graph()
    back = reparse(g)
    assert text(back) == text(g)
    assert back == g
    assert back.effects == g.effects == (9,)
    assert list(parse(text(g)).submodules) == ["true_graph"]
    assert parse(text(g)).constants == {}


def test_the_form():
    g = attention_graph()
    lines = text(g).splitlines()
    assert lines[0] == "graph @attn(%0 q: f32[1,2,4,8], %1 past.0: f32[1,2,4,8]) -> f32[8,8], f32[1,2,4,4]"
    assert lines[1] == '  %2 = constant(name="fc.weight") : f32[8,8]  ; - fc'
    assert lines[2] == "  %3 = matmul_nt(%0, %1) : f32[1,2,4,4]  ; - attn model.py:12"
    assert lines[3] == '  %5 = mul(%3, 0.125) : f32[1,2,4,4]  ; algebra/div_as_mul - "my model.py:13"'
    assert lines[4] == "  %6 = softmax(%5; axes=(3,)) : f32[1,2,4,4]  ; attention/softmax"
    assert lines[5] == "  %7 = split(%6; sizes=(1, 1), axis=1) : (f32[1,1,4,4], f32[1,1,4,4])"
    assert "  return %13, %6" in lines
    assert lines[-3:] == ['  write 1 -> "constant:cache k"', "  write 0 -> input:1", "  submodule true_graph"]


def test_a_literal_that_is_shared_or_far_has_its_own_line():
    b = Builder()
    x = b.add(leaves.input_, (), (0,), _f32(2))
    far = b.add(leaves.literal, (), (-0.0,))
    y = b.add(elementwise.add, (x, far))
    y = b.add(elementwise.mul, (y, far))
    near, last = b.add(leaves.literal, (), (1,)), b.add(leaves.literal, (), (True,))
    g = b.finish((b.add(elementwise.where, (b.add(elementwise.eq, (y, near)), last, y)),))
    printed = text(g)
    assert "%1 = literal(value=-0.0) : lit[]" in printed
    assert "%5 = literal(value=True)" in printed
    assert "eq(%3, %4)" in printed
    assert text(parse(printed)) == printed


def test_a_literal_from_elsewhere_has_its_own_line():
    b = Builder()
    x = b.add(leaves.input_, (), (0,), _f32(2))
    half = b.add(leaves.literal, (), (0.5,), origin=Origin("m.py:1"))
    g = b.finish((b.add(elementwise.mul, (x, half), origin=Origin("m.py:2")),))
    assert "  %1 = literal(value=0.5) : lit[]  ; - - m.py:1" in text(g)
    assert parse(text(g)) == g


def test_an_input_that_is_not_first_keeps_its_place():
    b = Builder()
    w = b.add(leaves.constant, (), ("w",), _f32(2))
    x = b.add(leaves.input_, (), (0,), _f32(2), Origin("m.py:3"))
    g = b.finish((b.add(elementwise.add, (w, x)),), signature=Signature(("x",)))
    assert parse(text(g)) == g
    assert text(g).splitlines()[2] == "  %1 = input(index=0) : f32[2]  ; - - m.py:3"


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_round_trip(seed):
    g = random_graph(random.Random(seed))
    back = reparse(g)
    assert back == g
    assert text(back) == text(g)


def test_hand_written_text_may_use_names_and_leave_types_out():
    g = parse("""
        graph @mlp(%x: f32[8,64], %w: f32[64,128])

          %h = matmul(%x, %w)
          %y = mul(%h, 2.0)
          return %y
    """)
    assert g.signature.inputs == ("x", "w")
    assert text(g).splitlines()[1:3] == ["  %2 = matmul(%0, %1) : f32[8,128]", "  %4 = mul(%2, 2.0) : f32[8,128]"]


BAD = [
    ("", "no graph"),
    ("grph @g()", "'graph' is due"),
    ("graph @g(%0 x: f32[2], %1: f32[2])\n return %0", "name all or none"),
    ("graph @g(%0: f32[2], %0: f32[2])\n return %0", "named twice"),
    ("graph @g(%0: f99[2])\n return %0", "not a type"),
    ("graph @g(%0: f32[2])", "does not return"),
    ("graph @g(%0: f32[2])\n return %1", "%1 is not defined above"),
    ("graph @g(%0: f32[2])\n %1 = frob(%0)\n return %1", "no op is called 'frob'"),
    ("graph @g(%0: f32[2])\n %1 = relu(%0, %0)\n return %1", "2 operands for relu"),
    ("graph @g(%0: f32[2])\n %1 = relu(%2)\n return %1", "%2 is not defined above"),
    ("graph @g(%0: f32[2])\n %0 = relu(%0)\n return %0", "defined above"),
    ("graph @g(%0: f32[2])\n %1 = relu(%0)\n %1 = relu(%0)\n return %1", "defined twice"),
    ("graph @g(%0: f32[2])\n %1 = sum(%0; axes=(0,))\n return %1", "',' is due"),
    ("graph @g(%0: f32[2])\n %1 = sum(%0; keepdim=True, axes=(0,))\n return %1", "'axes' is due"),
    ('graph @g(%0: f32[2])\n %1 = constant(name="w")\n return %1', "cannot be inferred"),
    ("graph @g(%0: f32[2])\n %1 = relu(%0) : f32[2\n return %1", "not a type"),
    ("graph @g(%0: f32[2])\n %1 = relu(%0) : f32[2] ; a b c d\n return %1", "left over"),
    ("graph @g(%0: f32[2]) -> f32[3]\n return %0", "the head says f32"),
    ("graph @g(%0: f32[2])\n return %0\n return %0", "second return"),
    ("graph @g(%0: f32[2])\n return %0\n %1 = relu(%0)", "node after return"),
    ("graph @g(%0: f32[2])\n return %0\n frob 1", "begins no line"),
    ("graph @g(%0: f32[2])\n return %0\n in_spec {", "no treespec"),
    ('graph @g(%0: f32[2])\n %1 = opaque(%0; target="a, args="b")\n return %0', "is due"),
]


@pytest.mark.parametrize(("source", "reason"), BAD, ids=[r for _, r in BAD])
def test_errors_name_the_line_and_a_remedy(source, reason):
    with pytest.raises(ParseError) as found:
        parse(source, what="case.txt")
    assert reason in str(found.value)
    assert found.value.node.startswith("case.txt:")
    assert found.value.remedy


def test_cut_text_never_parses_to_a_graph_or_raises_anything_else():
    """Every prefix and every one-character change either parses or gives a ParseError or ShapeError."""
    whole, rng = text(attention_graph()), random.Random(1)
    trials = [whole[:i] for i in range(0, len(whole), 3)]
    for _ in range(600):
        i = rng.randrange(len(whole))
        trials.append(whole[:i] + rng.choice('%;:,()="$-x0 \n') + whole[i + 1 :])
    refused = 0
    for trial in trials:
        try:
            parse(trial)
        except (ParseError, ShapeError):
            refused += 1
    assert refused > len(trials) // 3


class _Odd:
    """A pytree leaf value and context that no text form covers."""


def test_what_has_no_text_form_is_taken_from_the_signature_given():
    b = Builder()
    signature = Signature(("x",), outputs=(("value", 0), ("constant", _Odd)))
    g = b.finish((b.add(leaves.input_, (), (0,), _f32(2)),), signature=signature)
    assert "result constant ? " in text(g)
    with pytest.raises(ParseError, match="pass the signature"):
        parse(text(g))
    assert parse(text(g), like=g.signature) == reparse(g) == g


def test_symbols_in_types_may_contain_commas():
    t = TensorType("f32", (Sym("Max(1, s0)"), 2))
    assert parse_type(str(t)) == t
    assert parse_type(str(TupleType((t, t)))) == TupleType((t, t))
