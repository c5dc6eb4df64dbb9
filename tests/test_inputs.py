"""What users bring: programs, arguments and results of every form, through ``optimize``, ``compile``, save and load.

The fast tier takes each kind of program once with arguments that fit it; the slow one everything with everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import forge_eq
from forge_eq.errors import CaptureError, InputError

pytest.importorskip("openvino", reason="segments run on OpenVINO")


@dataclasses.dataclass
class Found:
    """What a model of one's own may give."""

    scores: torch.Tensor
    more: Any = None
    count: int = 3


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    torch.export.register_dataclass(Found, serialized_type_name="forge_eq.tests.Found")
    yield
    pytree._deregister_pytree_node(Found)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        with torch.no_grad():
            values = torch.linspace(-1.0, 1.0, 16).reshape(4, 4)
            self.layer.weight.copy_(values)
            self.layer.bias.copy_(values[0])


class Keywords(Layer):
    def forward(self, x: Any, *, y: Any, scale: float = 2.0) -> Any:
        return self.layer(x) * scale + y


class Many(Layer):
    def forward(self, first: Any, *rest: Any, **named: Any) -> Any:
        return self.layer(first) + rest[0] * named["gain"]


class Dicts(Layer):
    def forward(self, x: Any) -> Any:
        return {"a": self.layer(x), "b": [x + 1, None], "c": (self.layer(x).relu(), 3)}


class Dataclass(Layer):
    def forward(self, x: Any) -> Any:
        return Found(self.layer(x), {"twice": x * 2})


class Nones(Layer):
    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.layer(x), None, x if mask is None else x + mask


class Nested(Layer):
    def forward(self, d: Any, parts: Any) -> Any:
        return [self.layer(d["x"]) + parts[0][0], {"k": (parts[1] * 2, d["y"])}]


class NoInputs(Layer):
    def forward(self) -> Any:
        return self.layer(self.layer.weight)


class Constants(Layer):
    def forward(self, x: Any) -> Any:
        return self.layer.weight, torch.ones(2, 3), 7, self.layer(x), True, 0.5


class OnlyConstants(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.arange(4), 5, None


class Same(nn.Module):
    def forward(self, x: Any) -> Any:
        return x, [x, x + 1]


X = torch.linspace(-2.0, 2.0, 8).reshape(2, 4)
Case = tuple[Callable[[], nn.Module], tuple[Any, ...], Mapping[str, Any]]
CASES: dict[str, Case] = {
    "keywords": (Keywords, (X,), {"y": X + 1}),
    "a default that is given": (Keywords, (X,), {"scale": 3.0, "y": X + 1}),
    "all by name": (Keywords, (), {"y": X + 1, "x": X}),
    "star arguments": (Many, (X, X + 1), {"gain": X - 1}),
    "dict": (Dicts, (X,), {}),
    "dataclass": (Dataclass, (X,), {}),
    "nones": (Nones, (X,), {}),
    "none for an argument": (Nones, (X, None), {}),
    "a mask where none may be": (Nones, (X, X + 1), {}),
    "nested": (Nested, ({"x": X, "y": X + 2}, [(X + 3,), X]), {}),
    "no inputs": (NoInputs, (), {}),
    "constants": (Constants, (X,), {}),
    "only constants": (OnlyConstants, (X,), {}),
    "an argument itself": (Same, (X,), {}),
}
SOURCES = ("module", "exported program", "pt2 file", "graph module")
# torch.fx traces no **kwargs, and takes the branch that its stand-in for None takes.
UNTRACED = {"star arguments", "nones", "none for an argument"}
QUICK = {
    ("keywords", "pt2 file"),
    ("all by name", "module"),
    ("star arguments", "exported program"),
    ("dict", "graph module"),
    ("dataclass", "module"),
    ("none for an argument", "module"),
    ("nested", "graph module"),
    ("all by name", "graph module"),
    ("no inputs", "module"),
    ("constants", "exported program"),
    ("only constants", "pt2 file"),
}


def pairs() -> list[Any]:
    every = [(c, s) for c in CASES for s in SOURCES if s != "graph module" or c not in UNTRACED]
    return [pytest.param(*p, marks=() if p in QUICK else pytest.mark.slow) for p in every]


def source_of(module: nn.Module, case: Case, kind: str, folder: Path) -> Any:
    """The same program as a user might hold it."""
    if kind == "module":
        return module
    if kind == "graph module":
        return torch.fx.symbolic_trace(module)
    program = torch.export.export(module, case[1], dict(case[2]) or None, strict=False)
    if kind == "exported program":
        return program
    torch.export.save(program, folder / "model.pt2")
    return str(folder / "model.pt2")


def same(got: Any, due: Any) -> None:
    """Equal structure, kinds, types and values."""
    found, spec = pytree.tree_flatten(got)
    wanted, due_spec = pytree.tree_flatten(due)
    assert spec == due_spec
    for a, b in zip(found, wanted, strict=True):
        assert type(a) is type(b) or isinstance(b, nn.Parameter)
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b.detach(), check_stride=False)
        else:
            assert a == b


def fresh(leaf: Any) -> Any:
    """Another value of the same type, for a call with arguments that nobody has seen before."""
    return leaf * 0.5 - 0.25 if isinstance(leaf, torch.Tensor) else leaf


@pytest.mark.parametrize(("name", "kind"), pairs())
def test_every_form_comes_through(name: str, kind: str, tmp_path: Path) -> None:
    make, args, kwargs = CASES[name]
    module = make().eval()
    source = source_of(module, CASES[name], kind, tmp_path)
    program = forge_eq.compile(source, args, kwargs or None, threads=1)
    path = tmp_path / "model.forge"
    program.save(path)
    optimised = forge_eq.optimize(source, args, kwargs or None, verify="off").module
    for inputs, named in ((args, kwargs), pytree.tree_map(fresh, (args, dict(kwargs)))):
        with torch.no_grad():
            due = module(*inputs, **named)
        for run in (optimised, program, forge_eq.load(path)):
            same(run(*inputs, **named), due)


def test_results_that_are_an_argument_stay_that_argument(tmp_path: Path) -> None:
    program = forge_eq.compile(Same(), (X,), threads=1)
    program.save(tmp_path / "same.forge")
    for run in (program, forge_eq.load(tmp_path / "same.forge")):
        x = X.clone()
        first, (second, third) = run(x)
        assert first is x
        assert second is x
        assert torch.equal(third, x + 1)


def test_constant_results_are_fresh_at_every_call() -> None:
    program = forge_eq.compile(module := Constants().eval(), (X,), threads=1)
    first = program(X)
    first[0].zero_()
    first[1].zero_()
    same(program(X), module(X))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((X,), {}, "y"),
        ((X,), {"y": X, "more": X}, "more"),
        ((X, X), {"y": X}, "positional"),
        ((X,), {"y": X, "scale": 3.0}, "scale"),
        ((X,), {"y": [X]}, "y"),
    ],
)
def test_a_call_of_another_form_is_refused(args: Any, kwargs: Any, words: str) -> None:
    program = forge_eq.compile(Keywords().eval(), (X,), {"y": X}, threads=1, verify="off")
    with pytest.raises(InputError, match=words):
        program(*args, **kwargs)


def test_a_number_that_was_captured_is_the_only_one() -> None:
    program = forge_eq.compile(Keywords().eval(), (X,), {"y": X, "scale": 3.0}, threads=1, verify="off")
    with pytest.raises(InputError, match="captured for"):
        program(X, y=X, scale=4.0)


def test_a_traced_graph_takes_its_arguments_in_order_or_not_at_all() -> None:
    """torch.export would give a program of other arguments (seen in 2.13)."""
    traced = torch.fx.symbolic_trace(Keywords().eval())
    with pytest.raises(CaptureError, match="y: is left out"):
        forge_eq.optimize(traced, (X,), {"scale": 3.0})
    with pytest.raises(CaptureError, match="gain: is no argument"):
        forge_eq.optimize(traced, (X,), {"y": X, "gain": X})


def test_a_container_that_nobody_registered_is_refused() -> None:
    @dataclasses.dataclass
    class Private:
        x: Any

    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return Private(x + 1)

    with pytest.raises(CaptureError, match="register"):
        forge_eq.optimize(Model(), (X,))
