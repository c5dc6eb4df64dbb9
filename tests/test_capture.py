"""Capture: every call kept, types and origins, constants by storage, templates, effects, refusals."""

from __future__ import annotations

import math
import operator
import warnings
from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn
from torch.export import Dim

from forge_eq.capture import capture
from forge_eq.capture.targets import has_effect, resolve, target_name, writes
from forge_eq.capture.template import ModuleRef, decode, encode
from forge_eq.errors import CaptureError, FileError, ParseError
from forge_eq.ir.check import check
from forge_eq.ir.graph import Graph
from forge_eq.ir.sizes import evaluate
from forge_eq.ir.text import parse, text
from forge_eq.ir.types import ScalarType, Sym, TensorType, TupleType
from forge_eq.ops import effects, elementwise, leaves, linalg, movement, reduction
from forge_eq.ops.aten import Ref, Unsupported
from forge_eq.run.torch_module import to_module
from torch_programs import Fn, seeded

aten = torch.ops.aten
OPAQUE = (effects.opaque, effects.opaque_effect)


def graph_of(function, *args, dynamic=None, **named) -> Graph:
    graph = capture(Fn(function, **named), args, dynamic_shapes=None if dynamic is None else (dynamic,))
    check(graph)
    back = parse(text(graph), constants=graph.constants, submodules=graph.submodules, like=graph.signature)
    assert text(back) == text(graph)
    assert back.signature == graph.signature
    assert back.notes == graph.notes
    return graph


def ops(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes if not n.op.leaf]


def targets(graph: Graph) -> list[str]:
    return [n.attrs[0] for n in graph.nodes if n.op in OPAQUE]


# ------------------------------------------------------------------------------ templates

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.complex_numbers(),
    st.sampled_from(
        [torch.float32, torch.int64, torch.strided, torch.channels_last, torch.device("cpu"), ..., aten.add.Tensor]
    ),
    st.sampled_from(
        [torch.device("meta"), torch.bfloat16, torch.preserve_format, torch.Size([2, 3]), slice(None, 4, -1)]
    ),
    st.builds(Ref, st.integers(0, 99)),
)
TREES = st.recursive(
    ATOMS,
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.lists(part, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), part, max_size=3),
        st.dictionaries(st.integers(), part, max_size=2),
        st.builds(slice, part, part, part),
    ),
    max_leaves=12,
)


def same(a, b) -> bool:
    """Equality that keeps types, signs of zero and NaN apart."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return [*map(str, a)] == [*map(str, b)] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, slice):
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return bool(a == b)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(TREES, max_size=4), st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), TREES, max_size=3))
def test_templates_are_exactly_invertible(args, kwargs):
    written, holes = encode(args, kwargs)
    back_args, back_kwargs = decode(written, holes)
    assert same(tuple(args), back_args)
    assert same({k: kwargs[k] for k in sorted(kwargs)}, back_kwargs)
    assert encode(back_args, back_kwargs) == (written, holes)
    assert "\n" not in written


def test_templates_of_equal_looking_values_differ():
    values = [1, True, 1.0, "1", (1,), [1], 0.0, -0.0, None, "null", math.inf, -math.inf, math.nan, {}, [], ()]
    assert len({encode([v], {})[0] for v in values}) == len(values)


def test_templates_keep_operands_and_submodules_apart():
    written, holes = encode([Ref(7), [Ref(3), None, Ref(7)], ModuleRef("branch")], {"x": Ref(1)})
    assert holes == [Ref(7), Ref(3), Ref(7), Ref(1)]
    assert decode(written, "abcd", {"branch": "m"}) == (("a", ["b", None, "c"], "m"), {"x": "d"})


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "3",
        "[]",
        "[[1]]",
        "[[],[]]",
        '[[{"dtype":"nn"}],{}]',
        '[[{"%":3}],{}]',
        '[[{"what":1}],{}]',
        '[[{"op":"os.system.x"}],{}]',
    ],
)
def test_foreign_templates_are_refused(foreign):
    with pytest.raises(ParseError):
        decode(foreign, [])


def test_arguments_without_a_text_are_refused():
    with pytest.raises(Unsupported, match="object"):
        encode([object()], {})


# ------------------------------------------------------------------------------ targets


@pytest.mark.parametrize(
    "target",
    [
        aten.add.Tensor,
        aten.sort.stable,
        operator.mul,
        operator.getitem,
        math.floor,
        torch.sym_max,
        max,
        round,
        torch.ops.higher_order.cond,
    ],
    ids=target_name,
)
def test_target_names_resolve(target):
    assert resolve(target_name(target)) is target


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "operator.methodcaller", "aten.nothing.default", "torch.load", "add", ""]
)
def test_other_names_are_refused(name):
    with pytest.raises(ParseError):
        resolve(name)


@pytest.mark.parametrize(
    ("target", "args", "effect"),
    [
        (aten.rand_like.default, (0,), True),
        (aten.bernoulli.p, (0, 0.0), True),
        (aten.dropout.default, (0, 0.5, True), True),
        (aten.dropout.default, (0, 0.5, False), False),
        (aten.scaled_dot_product_attention.default, (0, 0, 0), False),
        (aten.scaled_dot_product_attention.default, (0, 0, 0, None, 0.1), True),
        (aten._assert_async.msg, (0, ""), True),
        (aten._functional_assert_async.msg, (0, "", 0), True),
        (aten.sym_constrain_range_for_size.default, (0,), True),
        (aten.add_.Tensor, (0, 0), True),
        (aten.batch_norm.default, (0, None, None, 0, 0, True, 0.1, 1e-5, False), True),
        (aten.batch_norm.default, (0, None, None, None, None, True, 0.1, 1e-5, False), False),
        (aten.batch_norm.default, (0, None, None, 0, 0, False, 0.1, 1e-5, False), False),
        (aten.cumsum.default, (0, 0), False),
        (operator.mul, (2, 3), False),
    ],
    ids=lambda v: str(v)[:30],
)
def test_effects_are_known(target, args, effect):
    assert has_effect(target, args, {}) is effect


def test_in_place_calls_write():
    assert writes(aten.add_.Tensor, (0, 0), {})
    assert writes(aten.add.out, (0, 0), {"out": 0})
    assert not writes(aten.add.Tensor, (0, 0), {})


# ------------------------------------------------------------------------------ calls


def test_known_calls_enter_the_vocabulary():
    def f(self, x, y):
        return torch.relu(x @ y.transpose(0, 1) + 1) * self.w, torch.cat([x, y], 1)[:, 2:-1], x.sum(0), x.softmax(-1)

    g = graph_of(f, torch.randn(3, 4), torch.randn(3, 4), w=torch.randn(3))
    assert not targets(g)
    assert ops(g) == ["permute", "matmul", "add", "relu", "mul", "concat", "slice", "sum", "softmax"]
    assert {n.attrs for n in g.nodes if n.op is movement.slice_} == {(1, 2, 7, 1)}


def test_unknown_calls_stay_with_their_exact_target():
    g = graph_of(lambda self, x: torch.roll(x, (1, -2), (0, 1)).cumsum(0, dtype=torch.float64), torch.randn(3, 4))
    assert targets(g) == ["aten.roll.default", "aten.cumsum.default"]
    rolled, summed = [n for n in g.nodes if n.op is effects.opaque]
    assert rolled.attrs[1] == '[[{"%":0},[1,-2],[0,1]],{}]'
    assert summed.attrs[1] == '[[{"%":0},0],{"dtype":{"dtype":"float64"}}]'
    assert summed.type == TensorType("f64", (3, 4))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("another dtype", lambda x: x.softmax(-1, dtype=torch.float64)),
        ("a scaled sum", lambda x: torch.add(x, x, alpha=2)),
        ("a sum that changes dtype", lambda x: (x > 0).sum(0)),
        ("a mean in another dtype", lambda x: x.mean(0, dtype=torch.float64)),
        ("half precision beside a number", lambda x: x.half() * 1.5),
        ("an integer power", lambda x: x.long() ** 3),
        ("bools added", lambda x: (x > 0) + (x < 1)),
        ("a where between two numbers", lambda x: torch.where(x > 0, 1.0, 0.0)),
        ("mixed comparison", lambda x: x > x.long()),
        ("bits of integers", lambda x: x.long() & 3),
        ("integer division", lambda x: x.long() // 2),
        ("a product of vectors", lambda x: x[0] @ x[1]),
        ("dropout that draws", lambda x: F.dropout(x, 0.5, training=True)),
        ("a norm without gain", lambda x: F.layer_norm(x, (4,))),
    ],
)
def test_calls_that_mean_something_else_stay_opaque(name, function):
    g = graph_of(lambda self, x: function(x), torch.randn(3, 4))
    assert len(targets(g)) >= 1, name


def test_promotion_is_written_as_casts():
    g = graph_of(
        lambda self, i, x, d: (i * 1.5, i + x, x * d),
        torch.arange(3),
        torch.randn(3),
        torch.tensor(2.0, dtype=torch.float64),
    )
    assert ops(g) == ["cast", "mul", "cast", "add", "cast", "mul"]
    assert [n.attrs for n in g.nodes if n.op is elementwise.cast] == [("f32",)] * 3
    assert [n.type.dtype for n in (g.nodes[i] for i in g.outputs)] == ["f32"] * 3


def test_numbers_keep_their_kind():
    g = graph_of(lambda self, i, x: (i * True, i + 1, x * 2, x - -0.0), torch.arange(3), torch.randn(3))
    found = [n.attrs[0] for n in g.nodes if n.op is leaves.literal]
    assert [repr(v) for v in found] == ["1", "1", "2.0", "-0.0"]


def test_several_results_are_projected():
    g = graph_of(lambda self, x: (*x.split([1, 3], 1), *torch.topk(x, 2)), torch.randn(3, 4))
    split = next(n for n in g.nodes if n.op is movement.split)
    assert split.type == TupleType((TensorType("f32", (3, 1)), TensorType("f32", (3, 3))))
    assert [n.attrs[0] for n in g.nodes if n.op is movement.project] == [0, 1, 0, 1]
    assert g.calls == 2
    assert targets(g) == ["aten.topk.default"]


def test_size_arithmetic_is_kept():
    def f(self, x):
        b, s, d = x.shape
        return x.reshape(b * s, d).sum(0) * (s // 2)

    g = graph_of(f, torch.randn(3, 4, 5), dynamic=({0: Dim("b", min=2), 1: Dim("s", min=2, max=64)},))
    assert Counter(targets(g))["aten.sym_size.int"] == 2
    assert {"operator.mul", "operator.floordiv"} <= set(targets(g))
    assert {n.type for n in g.nodes if n.op is effects.opaque and n.attrs[0].startswith("operator")} == {
        ScalarType("int")
    }
    b, s, d = g.inputs[0].type.shape
    assert isinstance(b, Sym)
    assert isinstance(s, Sym)
    assert d == 5
    assert dict((n, (low, high)) for n, low, high in g.signature.ranges) == {b.name: (2, None), s.name: (2, 64)}


def test_conditions_on_sizes_are_recorded():
    g = graph_of(lambda self, x: x.reshape(-1, 2, 4), torch.randn(6, 4), dynamic=({0: Dim.AUTO},))
    symbol = g.inputs[0].type.shape[0].name
    assert g.signature.guards
    assert all(evaluate(guard, {symbol: 8}) is True for guard in g.signature.guards)
    assert any(evaluate(guard, {symbol: 7}) is False for guard in g.signature.guards)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*a + 1", 7), ("(a // 2) != b and not a == b", True), ("max(a, b) % 4", 1), ("-a < b <= 5", True),
        ("FloorDiv(b, 2)", 2), ("c + 1", None), ("a // 0", None), ("__import__('os')", None),
        ("a.b", None), ("a +", None),
    ],
)  # fmt: skip
def test_size_expressions(expression, value):
    assert evaluate(expression, {"a": 3, "b": 5}) == value


def test_numbers_among_the_arguments_may_be_dynamic():
    g = graph_of(lambda self, x, n: x * n if n > 2 else x - n, torch.ones(3), 5, dynamic=(None, Dim.DYNAMIC))
    assert g.inputs[1].type == ScalarType("int")
    name = g.signature.inputs[1]
    assert g.signature.guards == (f"{name} > 2",)
    assert g.signature.ranges == ((name, 3, None),)


def test_origins_name_line_and_module():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.relu(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Inner(), Inner()])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x.exp()

    line = Inner.forward.__code__.co_firstlineno + 1
    g = capture(Outer(), (torch.randn(3),))
    first, second, last = [n.origin for n in g.nodes if not n.op.leaf]
    assert (first.module, second.module, last.module) == ("blocks.0", "blocks.1", "")
    assert first.source == f"{__file__}:{line}"
    assert first.rule == ""


# ------------------------------------------------------------------------------ effects and writes


def test_effects_keep_their_order_and_stay_without_readers():
    def f(self, x):
        torch._assert_async((x > 0).all(), "positive")
        noise = torch.rand_like(x)
        return x + F.dropout(noise, 0.5, training=True) * 0

    g = graph_of(f, torch.rand(3) + 1)
    found = [g.nodes[i] for i in g.effects]
    assert [n.attrs[0] for n in found] == ["aten._assert_async.msg", "aten.rand_like.default", "aten.dropout.default"]
    assert [n.attrs[2] for n in found] == [0, 1, 2]
    assert [n.attrs[0] for n in (g.live().nodes[i] for i in g.live().effects)] == [n.attrs[0] for n in found]


def test_settled_assertions_leave_a_note():
    g = graph_of(lambda self, x: x.to(torch.float64) + 1, torch.randn(3))
    assert [n for n in g.notes if n.startswith("1 x aten._assert_tensor_metadata.default")]
    assert "aten._assert_tensor_metadata.default" not in targets(g)


def test_writes_become_values_and_write_backs():
    def f(self, x, y):
        self.count.add_(1)
        x[1:] = y[:-1]
        return x * 2

    g = graph_of(f, torch.zeros(4), torch.ones(4), count=torch.zeros(()))
    assert [(w.target, g.outputs[w.output]) for w in g.signature.write_backs] == [
        ("constant:count", g.outputs[1]),
        ("input:0", g.outputs[2]),
    ]
    assert not any("_." in t for t in targets(g))


def test_functional_form_keeps_composites():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen.add_(1)
            y = F.silu(self.norm(self.lin(x)))[None]
            return F.scaled_dot_product_attention(y, y, y)

    g = capture(M().eval(), (torch.randn(2, 3, 4).reshape(2, 3, 4),))
    assert not targets(g)
    assert {"linear_bias", "layer_norm", "silu", "attention"} <= set(ops(g))


def test_writing_into_shared_storage_is_refused():
    whole = torch.zeros(4)

    def f(self, x):
        self.a.add_(1)
        return self.b + x

    with pytest.raises(CaptureError, match="b: shares its storage with a"):
        capture(Fn(f, a=whole[:2], b=whole[1:3]), (torch.zeros(2),))


def test_grad_mode_blocks_are_dissolved():
    class M(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y, z = x.exp(), x * 2
            return y + z

    program = torch.export.export(M(), (torch.randn(3),), strict=False)
    assert any("wrap_with_set_grad_enabled" in str(n.target) for n in program.graph.nodes)
    g = capture(program)
    check(g)
    assert ops(g) == ["exp", "mul", "add"]
    assert not g.submodules
    assert any("set_grad_enabled" in note for note in g.notes)


def test_autocast_blocks_stay_whole_unless_they_switch_it_off():
    def f(self, x, enabled):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return x @ x + 1

    on, off = graph_of(f, torch.ones(2, 2), True), graph_of(f, torch.ones(2, 2), False)
    assert targets(on) == ["higher_order.wrap_with_autocast"]
    assert on.nodes[on.outputs[0]].type.dtype == "bf16"
    assert ops(off) == ["matmul", "add"]
    assert any("autocast" in note for note in off.notes)


def test_operators_of_unknown_libraries_count_as_effects():
    with torch.library._scoped_library("forge_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        g = graph_of(lambda self, x: (torch.ops.forge_test.twice(x), torch.ops.forge_test.twice(x)), torch.ones(2))
    assert [n.attrs[0] for n in g.nodes if n.op is effects.opaque_effect] == ["forge_test.twice.default"] * 2


def test_branches_stay_whole_with_their_submodules():
    def f(self, x):
        return torch.cond(x.sum() > 0, lambda x: (x + 1, x * 2), lambda x: (x - 1, x.exp()), (x,))

    g = graph_of(f, torch.ones(3))
    assert targets(g) == ["higher_order.cond"]
    assert len(g.submodules) == 2
    assert [n.attrs[0] for n in g.nodes if n.op is movement.project] == [0, 1]


def test_branches_that_draw_have_an_effect():
    g = graph_of(
        lambda self, x: torch.cond(x.sum() > 0, lambda x: x + torch.rand_like(x), lambda x: x - 1, (x,)), torch.ones(3)
    )
    assert len(g.effects) == 1


# ------------------------------------------------------------------------------ constants, inputs, results


def test_tied_weights_are_one_constant_and_never_copied():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.emb.weight
            self.register_buffer("view", self.emb.weight.detach()[:2])
            self.register_buffer("twin", self.emb.weight.detach().clone())

        def forward(self, ids):
            h = self.emb(ids)
            return self.head(h), h @ self.twin.t(), self.view * 1

    m = M()
    g = capture(m, (torch.tensor([1, 2]),))
    assert len(g.constants) == 3
    tied = next(n for n in g.nodes if n.op is linalg.embedding).inputs[0]
    assert tied == next(n for n in g.nodes if n.op is linalg.linear).inputs[1]
    held = {n.attrs[0]: g.constants[n.attrs[0]] for n in g.nodes if n.op is leaves.constant}
    assert held[g.nodes[tied].attrs[0]].data_ptr() == m.emb.weight.data_ptr()
    assert held["view"].data_ptr() == m.emb.weight.data_ptr()
    assert not any(t.requires_grad for t in held.values())


def test_meta_models_are_captured_without_data():
    with torch.device("meta"):
        m = nn.Sequential(nn.Linear(1 << 14, 1 << 14), nn.ReLU(), nn.Linear(1 << 14, 8))
        g = capture(m, (torch.empty(2, 1 << 14),))
    check(g)
    assert ops(g) == ["linear_bias", "relu", "linear_bias"]
    assert len(g.constants) == 4
    assert all(t.is_meta for t in g.constants.values())


def test_inputs_are_named_leaves_and_baked_values():
    def f(self, x, pair, flag, name, nothing, n):
        return x + pair["b"] * n if flag and name == "go" and nothing is None else x

    g = graph_of(f, torch.zeros(2), {"b": torch.ones(2), "a": torch.ones(3)}, True, "go", None, 3)
    assert len(g.inputs) == 3
    assert g.signature.baked == ((3, True), (4, "go"), (5, None), (6, 3))
    assert len(g.signature.inputs) == 3


def test_results_say_where_they_come_from():
    def f(self, x, y):
        z = x * 2
        return {"same": x, "z": [z, z], "none": None, "n": 3, "w": self.w, "inplace": y.add_(1)}

    g = graph_of(f, torch.zeros(2), torch.zeros(2), w=torch.ones(2))
    assert g.signature.outputs == (
        ("input", 0), ("value", 0), ("value", 0), ("constant", None), ("constant", 3), ("value", 1), ("input", 1),
    )  # fmt: skip
    assert [w.target for w in g.signature.write_backs] == ["input:1"]
    assert g.nodes[g.outputs[1]].op is leaves.constant


def test_an_exported_program_and_its_file_give_the_same_graph(tmp_path):
    m, x = seeded(1, nn.Sequential(nn.Linear(3, 4), nn.GELU())), torch.randn(2, 3)
    program = torch.export.export(m, (x,), strict=False)
    torch.export.save(program, tmp_path / "net.pt2")
    direct, loaded = capture(program), capture(tmp_path / "net.pt2")
    assert loaded.name == "net"
    assert [(n.op, n.attrs, n.type) for n in direct.nodes] == [(n.op, n.attrs, n.type) for n in loaded.nodes]
    assert all(torch.equal(direct.constants[k], loaded.constants[k]) for k in direct.constants)


def test_a_traced_graph_module_is_captured():
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    assert ops(capture(traced, (torch.randn(2, 3),))) == ["linear_bias", "relu"]


def test_capture_is_repeatable():
    def once() -> str:
        return text(capture(Fn(lambda self, x: (x.exp() + self.w).softmax(0), w=torch.ones(3)), (torch.ones(3),)))

    assert once() == once()


# ------------------------------------------------------------------------------ refusals


def refusal(module, *args, **kw) -> CaptureError:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing of the exporter's may reach the user
        with pytest.raises(CaptureError) as found:
            capture(module, args, **kw)
    assert found.value.__cause__ is None
    assert found.value.__suppress_context__
    assert found.value.remedy
    return found.value


def test_control_flow_on_values_is_refused():
    e = refusal(Fn(lambda self, x: x + 1 if x.sum() > 0 else x - 1), torch.ones(3))
    assert "torch.cond" in e.remedy
    assert e.node == "Fn"


def test_a_model_that_fails_is_refused_with_its_reason():
    e = refusal(nn.Linear(3, 4), torch.ones(2, 5))
    assert "RuntimeError" in e.reason
    assert "[2, 5] X [3, 4]" in e.reason


def test_missing_arguments_and_foreign_objects_are_refused():
    assert "missing" in refusal(nn.Linear(3, 4)).reason
    with pytest.raises(CaptureError, match="pass an nn"):
        capture(lambda x: x, (torch.ones(2),))


def test_dynamic_shapes_that_the_model_breaks_are_refused():
    e = refusal(Fn(lambda self, x: x + torch.ones(4)), torch.ones(4), dynamic_shapes=(({0: Dim("n")},),))
    assert "dynamic_shapes" in e.remedy


def test_values_that_no_graph_can_hold_are_refused():
    class Sparse(nn.Module):
        def forward(self, x):
            return x.to_sparse()

    e = refusal(Sparse(), torch.ones(3, 3))
    assert "sparse" in e.reason
    assert "test_capture.py" in e.node


def test_a_result_that_depends_on_storage_is_refused_or_stored():
    assert "stored" in refusal(Fn(lambda self, x: x.t().as_strided((2,), (1,))), torch.ones(3, 3)).reason
    g = graph_of(lambda self, x: torch.view_as_complex(x * 2), torch.ones(3, 2))
    assert targets(g) == ["aten.contiguous.default", "aten.view_as_complex.default"]


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(FileError, match="no such file"):
        capture(tmp_path / "nothing.pt2")
    (tmp_path / "bad.pt2").write_bytes(b"not a program")
    with pytest.raises(FileError, match="not a readable"):
        capture(tmp_path / "bad.pt2")


def test_reductions_name_their_axes():
    g = graph_of(lambda self, x: (x.sum(), x.mean((0, -1), keepdim=True), x.amax(-2)), torch.randn(2, 3, 4))
    found = {n.op: n.attrs for n in g.nodes if not n.op.leaf}
    assert found == {reduction.sum_: ((0, 1, 2), False), reduction.mean: ((0, 2), True), reduction.amax: ((1,), False)}


@pytest.mark.parametrize(
    "write",
    [
        lambda state, x: state.copy_(x),
        lambda state, x: state.copy_(x > 0),
        lambda state, x: state[:].copy_(x),
        lambda state, x: state.view(2, 2).copy_(x.view(2, 2).t()),
        lambda state, x: state.copy_(x[0]),
        lambda state, x: state.add_(x),
        lambda state, x: state.copy_(x).mul_(x),
    ],
)
def test_what_is_written_takes_the_dtype_of_the_buffer(write):
    """torch.export takes the source of a copy for the buffer's new value, dtype and all; cumsum shows the dtype."""

    def step(self, x):
        write(self.state, x)
        return self.state.cumsum(0), self.state

    due, module = (Fn(step, state=torch.arange(4.0)) for _ in range(2))
    run = to_module(capture(module, (torch.ones(4, dtype=torch.float64),)))
    for k in range(2):
        x = torch.tensor([0.1, -2.0, 3.0, 0.3], dtype=torch.float64) + k
        for got, want in zip(run(x), due(x), strict=True):
            assert got.dtype == want.dtype
            assert torch.equal(got, want)
    assert torch.equal(module.state, due.state)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.expand(2, 3).masked_fill_(x > 0, 1.0),
        lambda x: x.expand(2, 3).add_(1),
    ],
)
def test_a_write_into_an_expanded_tensor_is_refused(write):
    """Eager torch refuses most of them; torch.export does not, and adds up what falls on one element."""
    e = refusal(Fn(lambda self, x: write(x) * 2), torch.tensor([1.0, -1.0, 2.0]))
    assert "share memory" in e.reason
    assert "clone" in e.remedy


@pytest.mark.parametrize("how", ["export", "record"])
@pytest.mark.parametrize("name", ["transpose", "swapaxes", "swapdims"])
def test_exchanged_axes_have_one_form(name, how):
    class Swaps(nn.Module):
        def forward(self, x):
            return getattr(x, name)(0, -1)

    graph = capture(Swaps(), (torch.randn(2, 3, 4),), how=how)
    assert [(n.op.name, n.attrs) for n in graph.nodes[1:]] == [("permute", ((2, 1, 0),))]
