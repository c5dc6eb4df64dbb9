"""Layer templates: which layers may stand for each other, and what finds those that may not."""

from __future__ import annotations

import itertools
from collections import UserList
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.capture import capture
from forge_eq.capture.record import record
from forge_eq.capture.tape import Unlike
from forge_eq.ops.leaves import constant, literal
from forge_eq.run.torch_module import to_module
from recordings import Body, Stack, X, agrees, bits, recorded, recorded_or_exported, same_program

TICKS: Any = itertools.count()
SHELF: Any = UserList()  # no builtin container: what is in it is not looked at
FACTOR: dict[int, float] = {}
SCALES = [1.0, 1.0, 1.0, 2.0, 1.0, 1.0]
SLOW = pytest.mark.slow  # more of the same kind


def test_like_layers_are_written_down_as_repeats() -> None:
    graph = agrees(Stack(Body, 7), X, repeats=4)
    paths = {n.origin.module for n in graph.nodes if n.origin.module.startswith("layers.4")}
    assert paths == {"layers.4", "layers.4.a", "layers.4.act", "layers.4.b"}
    assert all(n.origin.source for n in graph.nodes if not n.op.leaf)


class Indexed(Body):
    def __init__(self, k: int, use: Callable[[Any], float] = lambda k: 1.0) -> None:
        super().__init__(k)
        self.k, self.use = k, use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.use(self.k)


USES: dict[str, Callable[[Any], float]] = {
    "arithmetic": lambda k: 1.0 + k,
    "comparison": lambda k: 2.0 if k == 3 else 1.0,
    "list": lambda k: SCALES[k],
    "dict": lambda k: {3: 2.0}.get(k, 1.0),
    "set": lambda k: 2.0 if k in {3} else 1.0,
    "range": lambda k: 2.0 if len(range(k)) == 3 else 1.0,
    "text": lambda k: 2.0 if f"{k}" == "3" else 1.0,
    "truth": lambda k: 2.0 if not k else 1.0,
    "int": lambda k: float(int(k) == 3) + 1.0,
    "float": lambda k: float(k) + 1.0,
    "tensor": lambda k: torch.full((4,), k),  # type: ignore[dict-item,return-value]
    "max": lambda k: max(k, 3),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in ("arithmetic", "list") else SLOW) for n in USES])
def test_a_layer_that_uses_its_index_is_no_template(name: str) -> None:
    module = Stack(lambda k: Indexed(k, USES[name]), 6)
    assert recorded_or_exported(module).repeats == 0
    assert {type(layer.k) for layer in module.layers} == {int}
    assert all("forward" not in layer.__dict__ for layer in module.layers)


def test_an_index_that_nobody_uses_does_no_harm() -> None:
    assert recorded_or_exported(Stack(Indexed, 6)).repeats == 3


class Ticking(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(next(TICKS))


def test_a_counter_that_no_one_sees_is_found_by_the_second_layer() -> None:
    global TICKS
    TICKS = itertools.count()
    graph, repeats = recorded(Stack(Ticking, 6), X)
    assert repeats == 0
    assert [n.attrs[0] for n in graph.nodes if n.op is literal][1::2] == [float(k) for k in range(6)]


class Late(Body):
    """Reads a table that nothing in the layer refers to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * FACTOR.get(id(self), 1.0)


def late(at: int) -> nn.Module:
    module = Stack(Late, 6)
    FACTOR.clear()
    FACTOR[id(module.layers[at])] = 3.0
    return module


def test_a_last_layer_that_differs_has_every_layer_traced() -> None:
    with pytest.raises(Unlike, match=r"layers\.5"):
        record(late(5), (X,), {}, True)
    found = recorded_or_exported(late(5))
    assert found.recorded
    assert found.repeats == 0
    assert "every layer is traced" in found.told


@pytest.mark.parametrize("at", [pytest.param(2, marks=SLOW), 3, pytest.param(4, marks=SLOW)])
def test_a_middle_layer_that_differs_is_found_by_values_and_exported(at: int) -> None:
    module = late(at)
    assert recorded(module, X)[1] == 3  # the recorder alone is wrong here: this is what the comparison is for
    result = forge_eq.optimize(module, (X,))
    assert any(r.kind == "failed" and "torch.export is used" in r.reason for r in result.remarks)
    same_program(result.captured, capture(module, (X,)))
    with torch.no_grad():
        torch.testing.assert_close(result.module(X), module(X))


def test_without_a_comparison_nothing_is_recorded() -> None:
    result = forge_eq.optimize(late(3), (X,), verify="off")
    assert not any(r.stage == "capture" for r in result.remarks)
    with torch.no_grad():
        torch.testing.assert_close(result.module(X), late(3)(X))


class Order(Stack):
    order: tuple[int, ...] = ()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in self.order:
            x = self.layers[k](x)
        return x


ORDERS = [(5, 4, 3, 2, 1, 0), (0, 1, 2, 3, 4), (0, 0, 1, 1, 2, 5), (1, 5, 0, 2, 5, 3), (5,)]


@pytest.mark.parametrize("order", [pytest.param(o, marks=SLOW if k > 1 else ()) for k, o in enumerate(ORDERS)])
def test_layers_in_any_order(order: tuple[int, ...]) -> None:
    module = Order(Body, 6)
    module.order = order
    recorded_or_exported(module)


class Cache:
    def __init__(self) -> None:
        self.seen: list[Any] = []


class Taking(Body):
    def forward(self, x: torch.Tensor, given: Any, other: Any = None) -> torch.Tensor:
        if isinstance(given, Cache):
            given.seen.append(x)
        scale = given if isinstance(given, torch.Tensor | float) else 1.0
        return super().forward(x) * scale if other is None else super().forward(x) * scale + other


class Giving(Stack):
    def __init__(self, give: Callable[[Any, int], Any], count: int = 6) -> None:
        super().__init__(Taking, count)
        self.give = give

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = None
        for k, layer in enumerate(self.layers):
            given = self.give(given, k)
            x = layer(x, *(given if type(given) is tuple else (given,)))
        return x


GIVEN: dict[str, tuple[Callable[[Any, int], Any], int | None]] = {
    "a cache": (lambda old, k: old or Cache(), 0),
    "a list": (lambda old, k: [1], 0),
    "a dict": (lambda old, k: {}, 0),
    "one float": (lambda old, k: 0.5, 3),
    "another float for each": (lambda old, k: 0.5 + k, 0),
    "another float for one": (lambda old, k: 0.5 + (k == 3), None),
    "one number": (lambda old, k: torch.tensor(0.5) if old is None else old, None),
    "another number for one": (lambda old, k: torch.tensor(0.5 + (k == 3)), None),
    "nan and minus zero": (lambda old, k: -0.0 if k == 3 else 0.0, None),
    "ties": (lambda old, k: (X, X) if k != 3 else (X, X + 0), None),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("a cache", "one float", "ties") else SLOW) for n in GIVEN]
)
def test_layers_that_are_given_things(name: str) -> None:
    give, repeats = GIVEN[name]
    found = recorded_or_exported(Giving(give))
    if repeats is not None:
        assert found.repeats == repeats


class Pair(Body):
    def forward(self, x: torch.Tensor, last: Any = None) -> tuple[torch.Tensor, Any, int]:
        values, where = super().forward(x).max(1, keepdim=True)
        return x + values, where, 3


class Pairs(Stack):
    def forward(self, x: torch.Tensor) -> Any:
        where, n = None, 0
        for layer in self.layers:
            x, where, n = layer(x, last=where)
        return x, where, n


def test_layers_with_several_results() -> None:
    found = recorded_or_exported(Pairs(Pair, 6))  # only the last layer's positions are read
    assert found.recorded


class Leaving(Body):
    """Puts a value of its inside where nobody sees it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        SHELF.append(y * 2)
        return y


class Leavings(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SHELF.clear()
        return super().forward(x) + torch.stack(list(SHELF)).sum(0)


def test_values_that_leave_a_layer_unseen() -> None:
    module = Leavings(Leaving, 6)
    with pytest.raises(Unlike, match="outside"):
        record(module, (X,), {}, True)
    assert recorded_or_exported(module).repeats == 0


class Same(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_layers_that_return_their_argument() -> None:
    graph, _ = recorded(Stack(Same, 6), X)
    assert graph.signature.outputs == (("input", 0),)


class Inner(Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.tensor(0.25) + torch.arange(4) + torch.tensor([1.0, float("nan"), 0.0, -0.0])


def test_constants_made_in_layers() -> None:
    module = Stack(Inner, 6)
    graph, repeats = recorded(module, X)
    assert repeats == 3
    with torch.no_grad():
        assert bits(to_module(graph)(X)) == bits(module(X))


def settings() -> dict[str, Callable[[nn.Module], Any]]:
    def hook(module: Any) -> None:
        module.layers[3].a.register_forward_hook(lambda m, args, out: out * 2)

    def shared(module: Any) -> None:
        module.layers[3].a.weight = module.layers[2].a.weight

    def tied(module: Any) -> None:
        module.layers[3].b.weight = module.layers[3].a.weight

    def attribute(module: Any) -> None:
        module.layers[3].scale = 2.0

    def activation(module: Any) -> None:
        module.layers[3].act = nn.Tanh()

    def patched(module: Any) -> None:
        module.layers[3].forward = lambda x: x * 2

    def training(module: Any) -> None:
        module.layers[3].train()

    def double(module: Any) -> None:
        module.layers[3] = module.layers[2]

    return {f.__name__: f for f in (hook, shared, tied, attribute, activation, patched, training, double)}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in ("tied", "hook") else SLOW) for n in settings()])
def test_one_layer_with_another_setting(name: str) -> None:
    module = Stack(Body, 7).eval()
    settings()[name](module)
    agrees(module, X, places=name != "double")  # a module with two paths bears the first


def test_all_layers_with_one_weight() -> None:
    module = Stack(Body, 6)
    for layer in module.layers:
        layer.a.weight = module.layers[0].a.weight
    graph = agrees(module, X, repeats=3)
    assert sum(n.op is constant for n in graph.nodes) == 1 + 6 * 3


def test_hooks_on_every_module_are_run() -> None:
    calls: list[Any] = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, args, out: calls.append(m))
    try:
        assert recorded(Stack(Body, 6), X)[1] == 0
    finally:
        handle.remove()
    assert len(calls) == 1 + 6 * 4
