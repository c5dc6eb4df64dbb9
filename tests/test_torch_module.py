"""The program as a torch module: same results as eager, own memory, writes, sizes, refusals."""

from __future__ import annotations

import copy
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from forge_eq.capture import capture
from forge_eq.capture.execute import run_graph, run_node
from forge_eq.errors import InputError, RunError
from forge_eq.ir.graph import Builder, Graph, Node, Signature
from forge_eq.ir.types import TensorType
from forge_eq.ops import composite, elementwise, leaves, shapes
from forge_eq.ops.spec import Op
from forge_eq.run.torch_module import to_module
from random_graphs import random_graph
from torch_programs import Fn, seeded, values


def compiled(function, *args, dynamic=None, kwargs=None, **named):
    """(module, eager module) of one function."""
    eager = Fn(function, **named)
    shapes_ = None if dynamic is None else (dynamic,)
    return to_module(capture(eager, args, kwargs, dynamic_shapes=shapes_)), eager


def storage(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


# ------------------------------------------------------------------------------ results


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: (x**2, x**3.0, 2**x, x**-1, i**2),
        lambda x, i: (i * 1.5, i / 2, i // 2, i * True, i + x, x - i, 1 - x, 1 / x),
        lambda x, i: (x.sum(), x.mean(), x.sum((0, 1)), x.amax(), i.sum(0), (x > 0).sum(1), x.sum([])),
        lambda x, i: (x > 0.1, x == x, i > 1, i != 2.5, (x > 0) & (i > 1), ~(x > 0), (x > 0) | True),
        lambda x, i: (torch.where(x > 0, x, 0.0), torch.where(i > 1, i, 0), x.masked_fill(i > 1, -math.inf)),
        lambda x, i: (torch.where(i > 1, i, 0.5), torch.where(x > 0, 1, 0), torch.where(x > 0, x, x.double())),
        lambda x, i: (
            x.softmax(0),
            x.softmax(-1, dtype=torch.float64),
            x.log_softmax(1),
            x.clamp(-1, 0.5),
            i.clamp(1, 2),
        ),
        lambda x, i: (x.double(), x.to(torch.bfloat16), i.float(), x.to(i.dtype), x.to(torch.bool), x.type_as(i)),
        lambda x, i: (x + x.double().sum(), x.half() * x.sum(), x.half() + 0.1, i * x.double()[0, 0], x.bfloat16() * 3),
        lambda x, i: (x.view(-1)[2:9:2], x[-1], x[:, -2], x[..., None], x.squeeze(), x[None].expand(2, 3, 4), x.t()),
        lambda x, i: (x.chunk(3, 1), x.split(2, 0), torch.cat([x, x[:0]]), torch.stack([x, x]), x.unbind(0)),
        lambda x, i: (torch.maximum(x, -x), torch.minimum(i, i.flip(0)), x.neg(), x.abs(), x.floor(), i.neg(), i.abs()),
        lambda x, i: (
            x.sin(),
            i.sin(),
            i.float().exp(),
            x.sigmoid(),
            x.erf(),
            x.abs().rsqrt(),
            x.abs().log(),
            x.tanh(),
        ),
        lambda x, i: (
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.silu(x),
            F.relu(x),
            F.relu(i),
            F.dropout(x, 0.5, False),
        ),
        lambda x, i: (x @ x.t(), x @ x[0], torch.bmm(x[None], x.t()[None]), F.linear(x, x), F.linear(x, x, x[:, 0])),
        lambda x, i: (
            torch.addmm(x[:, 0], x, x.t()),
            torch.addmm(x.t()[0], x, x.t(), alpha=2),
            F.layer_norm(x, (3, 4)),
        ),
        lambda x, i: (x.transpose(0, 1).contiguous().view(-1), x.t().reshape(2, 6), x.clone().view(torch.int32)),
    ],
)
def test_same_bits_as_eager(function):
    x, i = values(1, 3, 4) * 2, torch.arange(12).reshape(3, 4) % 4
    module, eager = compiled(lambda self, x, i: function(x, i), x, i)
    due, got = eager(x, i), module(x, i)
    assert type(due) is type(got)
    flat_due, flat_got = torch.utils._pytree.tree_leaves(due), torch.utils._pytree.tree_leaves(got)
    assert len(flat_due) == len(flat_got)
    for a, b in zip(flat_due, flat_got, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))
        if a.is_floating_point():
            assert torch.equal(a.signbit() | a.isnan(), b.signbit() | b.isnan())


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
NUMBERS = [2, True, 0.1, -0.0, 3e38, 16777217, -1]
BINARY = {
    "add": torch.add, "sub": torch.sub, "rsub": lambda a, b: b - a, "mul": torch.mul, "div": torch.div, "gt": torch.gt,
    "le": torch.le, "eq": torch.eq, "maximum": torch.maximum, "where": lambda a, b: torch.where(a > 0, a, b),
    "fill": lambda a, b: a.masked_fill(a > 1, b), "pow": torch.pow, "and": torch.bitwise_and,
}  # fmt: skip


FAST = {"add", "div", "pow", "where"}  # one of each way to promote; the slow tier asks the others too


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in BINARY])
def test_promotion_is_torch_s(name):
    """Every pair of dtypes, with a tensor, a 0-dim tensor and a number as the second operand: bit for bit."""
    raw = values(1, 4) * 3
    tensors = [raw.abs().to(d) if d is torch.uint8 else raw.to(d) for d in DTYPES]
    given = (*tensors, *(t[1] for t in tensors))
    pairs = []
    for first in range(len(tensors)):
        for second in (*range(len(given)), *(-1 - k for k in range(len(NUMBERS)))):
            try:
                BINARY[name](given[first], given[second] if second >= 0 else NUMBERS[-1 - second])
            except (RuntimeError, TypeError):
                continue
            pairs.append((first, second))
    assert len(pairs) > 20

    def f(self, *args):
        return [BINARY[name](args[a], args[b] if b >= 0 else NUMBERS[-1 - b]) for a, b in pairs]

    module, eager = compiled(f, *given)
    for (a, b), due, got in zip(pairs, eager(*given), module(*given), strict=True):
        assert due.dtype == got.dtype
        same = (due == got) | (due.isnan() & got.isnan())
        assert same.all(), (given[a].dtype, b)
        if due.is_floating_point():
            assert torch.equal(due.signbit() | due.isnan(), got.signbit() | got.isnan()), (given[a].dtype, b)


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "empty row"])
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_attention_is_torch_s_own(mask, heads):
    """Bit for bit where torch's kernel is asked: it loses NaN below 16 keys, so there the definition stands."""
    q, k, v = values(1, 2, 4, 17, 8), values(2, 2, heads, 17, 8), values(3, 2, heads, 17, 8)
    keep = torch.ones(17, 17, dtype=torch.bool).tril(0 if mask != "empty row" else -1)
    kinds = {"none": None, "causal": None, "bool": keep, "empty row": keep, "float": values(4, 2, 1, 17, 17)}

    def f(self, q, k, v, *m):
        m = m[0] if m else None
        return F.scaled_dot_product_attention(q, k, v, m, is_causal=mask == "causal", enable_gqa=heads != 4)

    args = (q, k, v) if kinds[mask] is None else (q, k, v, kinds[mask])
    module, eager = compiled(f, *args)
    assert torch.equal(module(*args), eager(*args))


def test_generated_graphs_agree_with_the_reference_executor():
    for seed in range(20):
        g = random_graph(random.Random(seed))
        inputs = [torch.randn(n.type.shape, generator=torch.Generator().manual_seed(seed)) for n in g.inputs]
        for a, b in zip(run_graph(g, inputs), to_module(g)(*inputs), strict=True):
            assert torch.equal(a, b)


def test_an_op_that_has_only_a_definition_runs_by_it():
    plus_one = Op(
        name="plus_one_over", inputs=("x",), variadic=False, attrs=(("axes", "ints"),), multi=False, doc="",
        shape=shapes.same_as(), define=lambda x, axes: composite.softmax(elementwise.add(x, 1.0), axes),
    )  # fmt: skip
    b = Builder()
    x = b.add(leaves.input_, (), (0,), TensorType("f32", (2, 3)))
    g = b.finish((b.add(plus_one, (x,), ((1,),)),), signature=Signature(("x",)))
    value = values(1, 2, 3)
    assert torch.equal(to_module(g)(value)[0], (value + 1).softmax(1))


def test_an_op_that_says_nothing_is_refused():
    silent = Op(name="silent", inputs=("x",), variadic=False, attrs=(), multi=False, doc="", shape=shapes.same_as())
    with pytest.raises(RunError, match="silent"):
        run_node(Node(1, silent, (0,), (), TensorType("f32", ())), [torch.ones(())])


def test_the_module_shows_names_and_keeps_parameter_paths():
    m = seeded(1, nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    module = to_module(capture(m, (values(1, 2, 3),)))
    assert isinstance(module, torch.fx.GraphModule)
    assert set(module.state_dict()) == set(m.state_dict())
    assert all(storage(module.state_dict()[k]) == storage(v) for k, v in m.state_dict().items())
    assert "linear_bias" in module.code
    assert next(n for n in module.graph.nodes if n.name.startswith("layer_norm")).meta["origin"].module == "1"


def test_awkward_names_do_not_clash():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Module()
            self.a.register_buffer("b", torch.tensor([1.0]))
            for i, name in enumerate(["a_b", "graph", "code", "meta", "recompile", "inputs", "result"]):
                self.register_buffer(name, torch.tensor([10.0 + i]))

        def forward(self, args, kwargs, add):
            tensors = (self.a.b, self.a_b, self.graph, self.code, self.meta, self.recompile, self.inputs, self.result)
            return torch.cat([t * args + kwargs - add for t in tensors])

    m, xs = M(), [torch.tensor([float(v)]) for v in (2, 3, 4)]
    assert torch.equal(to_module(capture(m, tuple(xs)))(*xs), m(*xs))


def test_a_deep_copy_has_its_own_state():
    module, _ = compiled(lambda self, x: self.n.add_(1) + x, torch.zeros(1), n=torch.zeros(1))
    other = copy.deepcopy(module)
    assert module(torch.zeros(1)).item() == 1
    assert module(torch.zeros(1)).item() == 2
    assert other(torch.zeros(1)).item() == 1


def test_the_module_can_be_exported_again():
    module, eager = compiled(lambda self, x: (x.exp() @ self.w, x.view(-1)), values(1, 2, 3), w=values(2, 3, 4))
    again = to_module(capture(module, (values(1, 2, 3),)))
    for x in (values(3, 2, 3), values(4, 2, 3)):
        assert all(torch.equal(a, b) for a, b in zip(again(x), eager(x), strict=True))


# ------------------------------------------------------------------------------ memory


def test_results_own_their_memory():
    def f(self, x):
        y = x * 2
        wide = self.w.expand(3, 4)
        return (
            self.w,
            wide,
            x.view(-1),
            x.detach(),
            x.t(),
            y,
            y.view(-1),
            y.clone(),
            *y.split(2),
            torch.zeros(3),
            self.w,
        )

    x, w = values(1, 4, 3), values(2, 4)
    module, eager = compiled(f, x, w=w)
    x0, w0 = x.clone(), w.clone()
    due = [t.clone() for t in eager(x)]
    for _ in range(2):
        got = module(x)
        assert all(torch.equal(a, b) for a, b in zip(got, due, strict=True))
        distinct = {id(t): t for t in got}
        assert len({storage(t) for t in distinct.values()} | {storage(x), storage(w)}) == len(distinct) + 2
        assert got[0] is got[-1]
        for t in distinct.values():
            if 0 not in t.stride():
                t.fill_(7)
        assert torch.equal(x, x0)
        assert torch.equal(w, w0)


def test_a_broadcast_result_does_not_grow():
    module, _ = compiled(lambda self, x: self.w.expand(1 << 40), torch.ones(1), w=torch.ones(1))
    got = module(torch.ones(1))
    assert got.shape == (1 << 40,)
    assert got.untyped_storage().nbytes() == 4


def test_results_that_are_arguments_keep_their_identity():
    def f(self, x, y):
        z = x * 2
        return x, y.add_(1), z, z, x

    x, y = values(1, 3), values(2, 3)
    module, _ = compiled(f, x, y)
    y0 = y.clone()
    a, b, c, d, e = module(x, y)
    assert a is x
    assert e is x
    assert b is y
    assert c is d
    assert torch.equal(y, y0 + 1)


# ------------------------------------------------------------------------------ writes and effects


def test_writes_happen_after_every_read():
    def f(self, x):
        old = self.a.clone()
        swapped = self.b.clone()
        self.b.copy_(self.a)
        self.a.copy_(swapped)
        view = x[1:]
        view.mul_(2)
        return old, self.a + 0, x.sum()

    def fresh():
        return Fn(f, a=torch.ones(2), b=torch.zeros(2))

    eager, source = fresh(), fresh()
    module = to_module(capture(source, (values(1, 3),)))
    for seed in range(3):
        x, y = values(seed, 3), values(seed, 3)
        for due, got in zip(eager(x), module(y), strict=True):
            assert torch.equal(due, got)
        assert torch.equal(x, y)
        assert torch.equal(eager.a, module.a)
        assert torch.equal(eager.b, module.b)
        assert storage(module.a) == storage(source.a)


def test_a_buffer_that_is_only_written_is_kept():
    def f(self, x):
        self.last.copy_(x)
        return x + 1

    module, _ = compiled(f, torch.zeros(2), last=torch.zeros(2))
    module(torch.tensor([3.0, 4.0]))
    assert module.last.tolist() == [3, 4]


def test_training_statistics_are_updated():
    def net():
        return nn.Sequential(seeded(1, nn.Conv1d(2, 3, 1)), nn.BatchNorm1d(3), nn.InstanceNorm1d(3)).train()

    eager, module = net(), to_module(capture(net(), (values(1, 2, 2, 5),)))
    for seed in range(3):
        x = values(seed, 2, 2, 5)
        torch.testing.assert_close(module(x), eager(x))
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value)


def test_random_calls_draw_as_eager_does():
    def f(self, x):
        a = torch.rand_like(x)
        return F.dropout(x, 0.5, training=True) + a, torch.randn(3), torch.rand_like(x)

    module, eager = compiled(f, torch.ones(3))
    torch.manual_seed(5)
    due = eager(torch.ones(3))
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(module(torch.ones(3)), due, strict=True))


def test_assertions_run_though_nobody_reads_them():
    def f(self, x, y):
        torch._assert_async((x > 0).all(), "first")
        torch._assert_async((y > 0).all(), "second")
        return x + y

    module, _ = compiled(f, torch.ones(2), torch.ones(2))
    bad = torch.tensor([1.0, -1.0])
    module(torch.ones(2), torch.ones(2))
    with pytest.raises(RuntimeError, match="second"):
        module(torch.ones(2), bad)
    with pytest.raises(RuntimeError, match="first"):
        module(bad, bad)


def test_branches_run_by_condition():
    def f(self, x):
        return torch.cond(x.sum() > 0, lambda x: (x + self.w, x * 2), lambda x: (x - 1, x.exp()), (x,))

    module, eager = compiled(f, torch.ones(3), w=torch.ones(3))
    for x in (torch.ones(3), -torch.ones(3)):
        assert all(torch.equal(a, b) for a, b in zip(module(x), eager(x), strict=True))


# ------------------------------------------------------------------------------ calls


def test_structures_come_and_go():
    def f(self, x, pair, *rest, scale, extra=None):
        return {"a": (x + pair["b"], [pair["a"] * scale["s"]]), "n": 3, "none": None, "r": rest[0], "e": extra}

    x = values(1, 3)
    args = (x, {"b": x + 1, "a": x + 2}, x + 3)
    kwargs = {"scale": {"s": x}, "extra": x + 4}
    module, eager = compiled(f, *args, kwargs=kwargs)
    due = eager(*args, **kwargs)
    # keyword arguments and dicts in another order
    got = module(x, {"a": x + 2, "b": x + 1}, x + 3, extra=x + 4, scale={"s": x})
    assert torch.utils._pytree.tree_structure(got) == torch.utils._pytree.tree_structure(due)
    assert torch.equal(got["a"][0], due["a"][0])
    assert torch.equal(got["a"][1][0], due["a"][1][0])
    assert (got["n"], got["none"]) == (3, None)


def test_other_sizes_run():
    def f(self, x, y):
        b, s, d = x.shape
        z = x.transpose(0, 1).contiguous().view(b * s, d)
        return z.sum(0) / b, x[:, 1:] * s, torch.cat([x, y], 0), x.flatten(1) @ x.flatten(1).t(), s

    size = {0: Dim("b", min=2, max=64), 1: Dim("s", min=3)}
    module, eager = compiled(f, values(1, 3, 4, 5), values(2, 3, 4, 5), dynamic=(size, size))
    for b, s in ((3, 4), (7, 3), (2, 9)):
        x, y = values(b, b, s, 5), values(s, b, s, 5)
        *due, n = eager(x, y)
        *got, m = module(x, y)
        assert n == m == s
        assert all(torch.equal(p, q) for p, q in zip(due, got, strict=True))


def test_values_decide_sizes():
    module, eager = compiled(lambda self, x: x[x > 0] * 2, torch.tensor([1.0, -1.0, 2.0]))
    for x in (torch.tensor([1.0, 2.0, 3.0]), -torch.ones(3)):
        assert torch.equal(module(x), eager(x))


def refused(module, *args, **kwargs) -> str:
    with pytest.raises(InputError) as found:
        module(*args, **kwargs)
    assert found.value.stage == "run"
    assert found.value.remedy
    return str(found.value)


def test_arguments_that_do_not_fit_are_refused():
    def f(self, x, pair, flag, *, mask):
        return x + pair["a"] * mask if flag else x

    x = values(1, 2, 3)
    module, _ = compiled(f, x, {"a": x, "b": x}, True, kwargs={"mask": x})
    module(x, {"a": x, "b": x}, True, mask=x)
    pair = {"a": x, "b": x}
    assert "3 are due" in refused(module, x, pair, mask=x)
    assert "3 are due" in refused(module, x, pair, True, x, mask=x)
    assert "mask" in refused(module, x, pair, True)
    assert "other" in refused(module, x, pair, True, mask=x, other=x)
    assert "argument 1" in refused(module, x, {"a": x}, True, mask=x)
    assert "argument 1" in refused(module, x, [x, x], True, mask=x)
    assert "captured for True" in refused(module, x, pair, False, mask=x)
    assert "captured for True" in refused(module, x, pair, 1, mask=x)
    assert "f64[2,3], where f32[2,3]" in refused(module, x.double(), pair, True, mask=x)
    assert "f32[3,2], where f32[2,3]" in refused(module, x.t(), pair, True, mask=x)
    assert "f32[3], where f32[2,3]" in refused(module, x, pair, True, mask=x[0])
    assert "where a tensor f32[2,3] is due" in refused(module, x.tolist(), pair, True, mask=x)
    assert "where a tensor f32[2,3] is due" in refused(module, None, pair, True, mask=x)


def test_numbers_that_do_not_fit_are_refused():
    module, _ = compiled(lambda self, x, n: x * n if n > 2 else x - n, values(1, 3), 5, dynamic=(None, Dim.DYNAMIC))
    assert torch.equal(module(values(1, 3), 7), values(1, 3) * 7)
    assert "outside 3" in refused(module, values(1, 3), 1)
    assert "Python int is due" in refused(module, values(1, 3), 3.0)
    assert "Python int is due" in refused(module, values(1, 3), True)


def test_sizes_that_do_not_fit_are_refused():
    d = Dim("d", min=2, max=8)
    module, _ = compiled(
        lambda self, x, y: torch.cat([x, x]) + y, values(1, 3), values(2, 6), dynamic=({0: d}, {0: 2 * d})
    )
    assert module(values(1, 4), values(2, 8)).shape == (8,)
    assert "outside 2 to 8" in refused(module, values(1, 9), values(2, 18))
    text = refused(module, values(1, 4), values(2, 7))
    assert "is f32[7], where f32[2*" in text
    assert "= 8 is due" in text
    module, _ = compiled(lambda self, x, y: x + y, values(1, 3), values(2, 3), dynamic=({0: Dim.AUTO}, {0: Dim.AUTO}))
    assert module(values(1, 4), values(2, 4)).shape == (4,)
    refused(module, values(1, 4), values(2, 5))
    module, _ = compiled(lambda self, x: x.reshape(-1, 2), values(1, 6), dynamic=({0: Dim.AUTO},))
    assert module(values(1, 8)).shape == (4, 2)
    assert "== 0" in refused(module, values(1, 7))


def test_an_argument_that_is_written_must_not_overlap_another():
    def f(self, x, y):
        x.add_(1)
        return y * 2

    module, _ = compiled(f, values(1, 3), values(2, 3))
    x = values(1, 3)
    assert "shares its memory" in refused(module, x, x)


def test_a_graph_without_a_signature_takes_and_gives_flat_tensors():
    b = Builder()
    x = b.add(leaves.input_, (), (0,), TensorType("f32", (2,)))
    g: Graph = b.finish((b.add(elementwise.exp, (x,)), x))
    value = values(1, 2)
    first, second = to_module(g)(value)
    assert torch.equal(first, value.exp())
    assert torch.equal(second, value)
    assert storage(second) != storage(value)
    assert "1 positional are due" in refused(to_module(g), value, value)
