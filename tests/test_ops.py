"""Every operation against itself: shape rule, reference, torch execution, definition and traits must agree."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from forge_eq.errors import ShapeError
from forge_eq.ir.evaluate import Typed, apply, evaluate_term
from forge_eq.ir.expand import expand_graph
from forge_eq.ir.graph import Builder, Graph
from forge_eq.ir.types import WEAK, TensorType, TupleType, Type
from forge_eq.ops import ATEN, REGISTRY
from forge_eq.ops.leaves import input_, literal
from forge_eq.ops.spec import AttrVar, Op, Var
from op_samples import GIVEN, SAMPLERS

NAMES = {torch.float64: "f64", torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.bool: "bool"}
NAMES |= {torch.int8: "i8", torch.uint8: "u8"}
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-4}
ALL = [pytest.param(op, id=op.name) for op in SAMPLERS]


def of(test) -> list[Any]:
    return [pytest.param(op, id=op.name) for op in SAMPLERS if test(op)]


def to_torch(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, tuple):
        return tuple(to_torch(v, dtype) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value.copy())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def torch_type(value: Any) -> Type:
    if isinstance(value, tuple | list):
        return TupleType(tuple(torch_type(v) for v in value))
    if isinstance(value, torch.Tensor):
        return TensorType(NAMES[value.dtype], tuple(value.shape))
    return TensorType(WEAK, ())


def calls(op: Op, dtype: torch.dtype = torch.float64):
    """(torch operands, attributes, operand types) of every sample."""
    for operands, attrs in SAMPLERS[op](np.random.default_rng(7)):
        given = [to_torch(v, dtype) for v in operands]
        yield given, attrs, [torch_type(v) for v in given]


def oracle(op: Op, given: list[Any], types: list[Type], attrs: tuple[Any, ...]) -> Any:
    with np.errstate(all="ignore"):
        return apply(op, [to_numpy(v) for v in given], types, attrs)


def to_numpy(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(to_numpy(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    return (value.double() if value.is_floating_point() else value).numpy()


def leaves_of(value: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in (value if isinstance(value, tuple | list) else [value])]


def assert_close(got: Any, due: Any, rtol: float) -> None:
    got, due = leaves_of(to_numpy(got)), leaves_of(due)
    assert len(got) == len(due)
    for a, b in zip(got, due, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def test_every_op_has_a_sampler():
    assert set(SAMPLERS) | set(GIVEN) == set(REGISTRY.values())
    assert not set(SAMPLERS) & set(GIVEN)


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in GIVEN])
def test_the_type_of_a_leaf_is_never_inferred(op):
    with pytest.raises(ShapeError):
        op.infer([], tuple(None for _ in op.attrs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("op", ALL)
def test_shape_rule_and_reference_agree_with_torch(op, dtype):
    seen = 0
    for given, attrs, types in calls(op, dtype):
        result = op.torch(*given, *attrs)
        assert torch_type(result) == op.infer(types, attrs), (types, attrs)
        assert_close(result, oracle(op, given, types, attrs), TOLERANCE[dtype])
        seen += 1
    assert seen


@pytest.mark.parametrize("op", of(lambda op: op.define))
def test_a_definition_means_the_op(op):
    """The whole expansion, run by torch, against torch's own kernel."""
    for given, attrs, types in calls(op):
        graph = call_graph(op, types, attrs)
        expanded = expand_graph(graph, lambda node: True)
        assert not any(node.op.fused for node in expanded.nodes)
        assert [expanded.nodes[i].type for i in expanded.outputs] == [graph.nodes[i].type for i in graph.outputs]
        got = run_torch(expanded, given)
        if attrs[-1:] == ("zero",):  # what empty rows give is no part of the definition
            due = oracle(op, given, types, attrs)
            assert_close([torch.where(torch.isnan(g), 0.0, g) for g in got], due, 1e-11)
        else:
            due = op.torch(*given, *attrs)
            assert_close(got, to_numpy(due if op.multi else [due]), 1e-11)


@pytest.mark.parametrize("op", of(lambda op: op.define))
def test_a_definition_evaluates_to_the_op_as_a_term(op):
    for given, attrs, types in itertools.islice(calls(op), 2):
        env = {f"v{i}": Typed(to_numpy(v), t) for i, (v, t) in enumerate(zip(given, types, strict=True))}
        env |= {f"a{i}": a for i, a in enumerate(attrs)}
        term = op(*(Var(f"v{i}") for i in range(len(given))), *(AttrVar(f"a{i}") for i in range(len(attrs))))
        with np.errstate(all="ignore"):
            assert_close(op.torch(*given, *attrs), evaluate_term(term, env), 1e-11)


def call_graph(op: Op, types: list[Type], attrs: tuple[Any, ...]) -> Graph:
    b = Builder()
    node = b.add(op, tuple(b.add(input_, (), (i,), t) for i, t in enumerate(types)), attrs)
    count = len(b.nodes[node].type.items) if op.multi else 0
    parts = [b.add(REGISTRY["project"], (node,), (i,)) for i in range(count)]
    return b.finish(tuple(parts or [node]))


def run_torch(graph: Graph, given: list[Any]) -> list[Any]:
    values: list[Any] = []
    for node in graph.nodes:
        if node.op is input_:
            values.append(given[node.attrs[0]])
        elif node.op is literal:
            values.append(node.attrs[0])
        else:
            values.append(node.op.torch(*(values[i] for i in node.inputs), *node.attrs))
    return [values[i] for i in graph.outputs]


# ------------------------------------------------------------------------------------------------ traits


@pytest.mark.parametrize("op", of(lambda op: op.traits.commutative))
def test_commutative_ops_commute(op):
    for given, attrs, types in calls(op):
        due = op.torch(*given, *attrs)
        assert_close(op.torch(*given[::-1], *attrs), to_numpy(due), 0.0)
        assert op.infer(types[::-1], attrs) == op.infer(types, attrs)


@pytest.mark.parametrize("op", of(lambda op: op.traits.symmetric))
def test_the_first_two_operands_of_symmetric_ops_can_be_exchanged(op):
    for given, attrs, types in calls(op):
        due, found = (op.torch(*first, *given[2:], *attrs) for first in (given[:2], given[1::-1]))
        for a, b in zip(found, due, strict=True):
            assert_close(a, to_numpy(b), 0.0)
        assert op.infer([*types[1::-1], *types[2:]], attrs) == op.infer(types, attrs)


@pytest.mark.parametrize("op", of(lambda op: op.traits.idempotent))
def test_idempotent_ops_change_nothing_twice(op):
    for given, attrs, _ in calls(op):
        once = op.torch(*given, *attrs)
        assert_close(op.torch(once, *attrs), to_numpy(once), 0.0)


@pytest.mark.parametrize("op", of(lambda op: op.traits.involution))
def test_involutions_undo_themselves(op):
    for given, attrs, _ in calls(op):
        assert_close(op.torch(op.torch(*given, *attrs), *attrs), to_numpy(given[0]), 0.0)


@pytest.mark.parametrize("op", of(lambda op: op.traits.elementwise))
def test_elementwise_ops_look_at_one_place_only(op):
    """Operands brought to one shape and then cut to one place give that place of the result."""
    for given, attrs, types in calls(op):
        shape = op.infer(types, attrs).shape
        wide = [v.broadcast_to(shape) if isinstance(v, torch.Tensor) else v for v in given]
        whole = op.torch(*wide, *attrs)
        for index in itertools.islice(np.ndindex(*shape), 12):
            place = op.torch(*(v[index] if isinstance(v, torch.Tensor) else v for v in wide), *attrs)
            assert_close(place, to_numpy(whole[index]), 1e-13)


@pytest.mark.parametrize("op", of(lambda op: op.traits.view))
def test_views_keep_every_element_in_its_place(op):
    for given, attrs, _ in calls(op):
        assert_close(op.torch(*given, *attrs).reshape(-1), to_numpy(given[0].reshape(-1)), 0.0)


@pytest.mark.parametrize("op", of(lambda op: op.traits.exact and op.ref))
def test_exact_ops_give_the_same_bits_in_numpy_and_torch(op):
    for given, attrs, types in calls(op):
        got = leaves_of(to_numpy(op.torch(*given, *attrs)))
        for a, b in zip(got, leaves_of(oracle(op, given, types, attrs)), strict=True):
            np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------------ declarations


@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in REGISTRY.values()])
def test_the_declaration_is_complete(op):
    assert op.doc.endswith(".")
    assert op.leaf or op in GIVEN or op.torch is not None
    assert op.leaf or op in GIVEN or op.ref or op.define, "an oracle is due"
    assert {kind for _, kind in op.attrs} <= {"int", "float", "bool", "str", "ints", "dtype", "any"}


def test_aten_names_are_real_overloads():
    missing = []
    for name in ATEN:
        _, packet, overload = name.split(".")
        found = getattr(torch.ops.aten, packet, None)
        if found is None or overload not in found.overloads():
            missing.append(name)
    assert missing == []
