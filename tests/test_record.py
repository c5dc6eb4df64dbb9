"""The recorder: what it must refuse, what it must get right, and that nothing is left behind.

A silent error is the danger: each case here is a way to get one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.capture import capture, recorder
from forge_eq.capture.export import captured
from forge_eq.capture.record import record
from forge_eq.capture.record_import import to_graph
from forge_eq.capture.tape import Refused
from forge_eq.errors import CaptureError
from forge_eq.run.torch_module import to_module
from recordings import Body, Fn, Stack, X, agrees, bits, recorded, recorded_or_exported, same_program

COUNT = 0
LOG: list[Any] = []
STATE = SimpleNamespace(steps=0)


# ------------------------------------------------------------------------------------ refused


def in_place_on_fresh(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(4, 4)
    y[0] = x[0]
    return y


def caught(m: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * x.sum().item()
    except Exception:
        return x


def by_autocast(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ m.w


def by_global(m: Any, x: torch.Tensor) -> torch.Tensor:
    global COUNT
    COUNT += 1
    return x * COUNT


def by_attribute(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.steps = getattr(m, "steps", 0) + 1
    return x * m.steps


def by_object(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.state.steps += 1
    return x * m.state.steps


def by_global_object(m: Any, x: torch.Tensor) -> torch.Tensor:
    STATE.steps += 1
    return x * STATE.steps


def by_class(m: Any, x: torch.Tensor) -> torch.Tensor:
    Fn.seen = getattr(Fn, "seen", 0) + 1  # type: ignore[attr-defined]
    return x * Fn.seen  # type: ignore[attr-defined]


def by_enclosed() -> Callable[[Any, torch.Tensor], torch.Tensor]:
    steps = 0

    def run(m: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return x * steps

    return run


def rebinds(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.b = m.b + x
    return m.b * 2


def keeps(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.cache["x"] = x
    return x * 2


REFUSED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "item": lambda m, x: x * x.sum().item(),
    "bool": lambda m, x: x if x.sum() > 0 else -x,
    "int": lambda m, x: x * int(x[0, 0]),
    "float": lambda m, x: x * float(x[0, 0]),
    "tolist": lambda m, x: x * len(x.tolist()),
    "numpy": lambda m, x: x * x.numpy().size,
    "membership": lambda m, x: x * (1.0 in x),
    "text": lambda m, x: x * len(str(x)),
    "place in memory": lambda m, x: x * (x.data_ptr() % 2),
    "storage": lambda m, x: x * x.untyped_storage().nbytes(),
    "version": lambda m, x: x * (1 + x._version),
    "data": lambda m, x: x.data * 2,
    "device number": lambda m, x: x * x.get_device(),
    "another device": lambda m, x: x.to("meta"),
    "factory elsewhere": lambda m, x: torch.zeros(4, 4, device="meta"),
    "equal": lambda m, x: x * torch.equal(x, x),
    "nonzero": lambda m, x: torch.nonzero(x),
    "mask as index": lambda m, x: x[x > 0],
    "masked_select": lambda m, x: torch.masked_select(x, x > 0),
    "unique": lambda m, x: torch.unique(x),
    "item, and the error is caught": caught,
    "write to an argument": lambda m, x: x.add_(1),
    "write to a fresh tensor": in_place_on_fresh,
    "write to a buffer": lambda m, x: m.b.add_(x),
    "write with out=": lambda m, x: torch.add(x, 1, out=torch.empty(4, 4)),
    "write through .data": lambda m, x: m.b.data.add_(x),
    "batch norm in training": lambda m, x: m.norm(x),
    "dropout in training": lambda m, x: nn.functional.dropout(x, 0.5, training=True),
    "random numbers": lambda m, x: x + torch.rand(4, 4),
    "Python's random numbers": lambda m, x: x * random.random(),
    "assertion": lambda m, x: torch._assert_async((x > -100).all()) or x * 2,
    "autocast": by_autocast,
    "strides": lambda m, x: torch.as_strided(x.t(), (2, 2), (1, 2)) * 2,
    "cond": lambda m, x: torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,)),
    "vmap": lambda m, x: torch.vmap(lambda r: r * r.sum())(x),
    "a global": by_global,
    "a global object": by_global_object,
    "an enclosed variable": by_enclosed(),
    "an attribute": by_attribute,
    "an attribute of an object": by_object,
    "an attribute of the class": by_class,
    "a list": lambda m, x: m.log.append(x.shape) or x * len(m.log),
    "a global list": lambda m, x: LOG.append(1) or x * len(LOG),
    "a buffer bound anew": rebinds,
    "a tensor kept": keeps,
    "a result of another kind": lambda m, x: {"a": x, "b": SimpleNamespace()},
    "a set of tensors": lambda m, x: {x},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_sure_is_refused_and_nothing_is_left(name: str) -> None:
    parts = {"norm": nn.BatchNorm1d(4), "log": [], "cache": {}, "state": SimpleNamespace(steps=0)}
    module = Fn(REFUSED[name], **parts)
    module.register_buffer("b", torch.zeros(4, 4))
    before = {**module.__dict__}, dict(module._parameters), dict(module._buffers), COUNT, list(LOG), random.getstate()
    buffers = [b.clone() for b in module.buffers()]
    for layers in (True, False):
        with pytest.raises(Refused):
            to_graph(record(module, (X,), {}, layers), "m")
    assert before == (
        {**module.__dict__}, dict(module._parameters), dict(module._buffers), COUNT, list(LOG), random.getstate(),
    )  # fmt: skip
    assert STATE.steps == 0
    assert (module.log, module.cache, module.state.steps, hasattr(Fn, "seen")) == ([], {}, 0, False)
    assert all(torch.equal(a, b) for a, b in zip(buffers, module.buffers(), strict=True))
    assert not torch.compiler.is_exporting()


class Marked(torch.Tensor):
    """A subclass that does nothing."""


def test_arguments_that_have_no_stand_in_are_refused() -> None:
    module = Fn(lambda m, x, y=None: x * 2)
    for args in ((X.as_subclass(Marked),), (X.to_sparse(),), (X, X), (X, X[0]), (X, object()), (module.w.detach(),)):
        with pytest.raises(Refused):
            record(module, args, {}, True)
    module.w = nn.Parameter(X.as_subclass(Marked))
    with pytest.raises(Refused, match="Marked"):
        record(module, (X,), {}, True)
    with pytest.raises(Refused, match="Script"):
        record(nn.Sequential(torch.jit.script(nn.ReLU())), (X,), {}, True)


def test_an_operator_of_someone_else_is_refused() -> None:
    with torch.library._scoped_library("record_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        with pytest.raises(Refused):
            record(Fn(lambda m, x: torch.ops.record_test.twice(x)), (X,), {}, True)


# ------------------------------------------------------------------------------------ right

RIGHT: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "device": lambda m, x: x * (2.0 if x.device.type == "cpu" else 3.0),
    "is_cpu": lambda m, x: x * (2.0 if x.is_cpu and not x.is_meta and not x.is_cuda else 3.0),
    "device of a weight": lambda m, x: torch.zeros(4, device=m.w.device) + x,
    "device of a result": lambda m, x: x * (2.0 if (x @ m.w).relu().device == torch.device("cpu") else 3.0),
    "factories": lambda m, x: x + torch.arange(4) + torch.ones(4) + x.new_ones(4) + torch.zeros_like(x),
    "numbers": lambda m, x: x * torch.tensor(0.5) + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "numbers of one tensor": lambda m, x: (t := torch.full((4, 4), 3.0)) * x + t,
    "tensor that is no buffer": lambda m, x: x * m.t,
    "tensor out of the module": lambda m, x: x * X,
    "index": lambda m, x: x[torch.tensor([0, 2])],
    "parts": lambda m, x: x.split(2, 1)[1] + x.max(1, keepdim=True)[0],
    "views": lambda m, x: (x.t().contiguous().view(2, 8) * 2, x[1:, ::2]),
    "the argument itself": lambda m, x: (x, x * 2),
    "one result twice": lambda m, x: (lambda y: (y, y))(x * 2),
    "the weight itself": lambda m, x: (m.w, m.w @ x),
    "plain results": lambda m, x: {"a": x * 2, "n": 3, "s": "text", "none": None, "l": [x + 1]},
    "float64 and halves": lambda m, x: (x.double() * 2, x.half() + x.bfloat16().float()),
    "dropout at rest": lambda m, x: nn.functional.dropout(x, 0.5, training=False) * 2,
    "grad mode": lambda m, x: torch.enable_grad()(lambda: x * 2)(),
    "autocast that is off": lambda m, x: torch.autocast("cpu", enabled=False)(lambda: x @ m.w)(),
    "a weight's settings": lambda m, x: x * 3.0 if m.w.requires_grad and m.w.is_leaf else x,
    "no call at all": lambda m, x: x,
    "calls that look alike": lambda m, x: [
        *(y + n for y in (x.long(), x, x.t(), x.long()) for n in (1, 1.0, True, 1)),
        *(y.reshape(16) * y.contiguous().view(16) for y in (x, x.t(), x, x.t(), x[:, :4])),
        *(y.resolve_conj().real for y in (x.to(torch.complex64), x.to(torch.complex64).conj()) for _ in range(2)),
        *(x.sum(d, keepdim=k) for d in (0, 1, 0) for k in (True, False)),
    ],
}


QUICK = (
    "calls that look alike",
    "device",
    "factories",
    "numbers",
    "views",
    "plain results",
    "the weight itself",
    "autocast that is off",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RIGHT])
def test_what_is_sure_is_what_torch_export_gives(name: str) -> None:
    module = Fn(RIGHT[name])
    module.t = torch.full((4, 4), 5.0)
    agrees(module, X)


def test_calls_of_one_form_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that no template takes, here because it is none: torch describes its calls once."""
    ran: list[Any] = []
    execute = recorder._execute
    monkeypatch.setattr(recorder, "_execute", lambda func, *rest: ran.append(func) or execute(func, *rest))

    def layers(m: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(9):
            x = (x @ m.w).tanh()
        return x

    program = agrees(Fn(layers), X)
    assert sum(n.op.name == "tanh" for n in program.nodes) == 9
    assert ran.count(torch.ops.aten.tanh.default) == ran.count(torch.ops.aten.matmul.default) == 1


def test_an_argument_that_comes_back_is_itself() -> None:
    graph, _ = recorded(Fn(lambda m, x, y: (y.to(torch.float32), x * 2, x.contiguous())), X, X + 1)
    assert graph.signature.outputs == (("input", 1), ("value", 0), ("input", 0))
    x, y = X.clone(), X + 1
    out = to_module(graph)(x, y)
    assert out[0] is y
    assert out[2] is x


def test_structured_arguments_have_torch_export_s_names() -> None:
    module = Fn(lambda m, a, pair, *rest, flag=True, **more: a + pair[0] * pair[1]["k"] + rest[0] + more["z"])
    args, kwargs = (X, (X + 1, {"k": X + 2}), X + 3), {"flag": False, "z": X + 4}
    graph = to_graph(record(module, args, kwargs, True), "Fn")
    due = capture(module, args, kwargs)
    same_program(graph, due)
    assert graph.signature.in_spec == due.signature.in_spec
    assert graph.signature.baked == due.signature.baked
    with torch.no_grad():
        assert bits(to_module(graph)(*args, **kwargs)) == bits(module(*args, **kwargs))


# ------------------------------------------------------------------------------------ the choice


def test_record_alone_raises_with_the_reason() -> None:
    with pytest.raises(CaptureError, match="writes into a tensor"):
        capture(Fn(lambda m, x: x.clone().add_(1)), (X,), how="record")


def test_auto_tells_why_it_exported() -> None:
    found = recorded_or_exported(Fn(lambda m, x: x.clone().add_(1) * 2))
    assert not found.recorded
    assert "writes into a tensor" in found.told


def test_dynamic_sizes_are_exported() -> None:
    found = captured(Fn(lambda m, x: x * 2), (X,), None, {"args": ({0: torch.export.Dim("n")},)}, "auto")
    assert not found.recorded
    assert "dynamic" in found.remarks[0].reason


def test_the_module_s_own_values_are_asked_for_and_state_stays() -> None:
    module = Stack(Body, 5)
    module.seen = 0
    module.layers[0].register_forward_pre_hook(lambda m, args: setattr(module, "seen", module.seen + 1) or None)
    result = forge_eq.optimize(module, (X,))
    assert module.seen == 0
    assert "changes" in next(r.reason for r in result.remarks if r.stage == "capture")
    plain = forge_eq.optimize(Stack(Body, 5), (X,))
    assert "gives the module's own values" in " ".join(r.reason for r in plain.remarks)
    assert plain.job.answers is not None


def test_a_program_on_the_meta_device_is_recorded_without_a_comparison() -> None:
    with torch.device("meta"):
        result = forge_eq.optimize(Stack(Body, 6), (X.to("meta"),))
    assert "not compared" in " ".join(r.reason for r in result.remarks)
