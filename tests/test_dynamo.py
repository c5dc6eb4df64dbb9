"""torch.compile(backend=forge_eq): values, sizes, weights that change, and what is left to PyTorch."""

from __future__ import annotations

import copy
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forge_eq import dynamo
from forge_eq.errors import OptionsError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.register_buffer("shift", torch.linspace(-1, 1, 16))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.norm(nn.functional.gelu(self.up(x)) + self.shift)
        return {"y": y * x.shape[0], "last": (y[-1:], None)}


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a fall-back warns: none may happen unasked
        yield
    torch._dynamo.reset()


def compiled(module: nn.Module, made: list[dynamo.DynamoProgram] | None = None, **options: Any) -> Any:
    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        found = dynamo.backend(graph, example_inputs, options=options)
        assert isinstance(found, dynamo.DynamoProgram)
        if made is not None:
            made.append(found)
        return found

    return torch.compile(module, backend=backend)


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_values_and_structure_at_several_sizes() -> None:
    module = Block().eval()
    made: list[dynamo.DynamoProgram] = []
    fast = compiled(module, made)
    for rows in (2, 3, 5, 3):
        x = torch.randn(rows, 8)
        same(fast(x), module(x))
    programs = [p for m in made for p in m._ready.values()]
    assert programs
    assert all(p is not None for p in programs)


@torch.no_grad()
def test_weights_are_constants_of_the_program() -> None:
    module, made = Block().eval(), list[dynamo.DynamoProgram]()
    compiled(module, made)(torch.randn(2, 8))
    (program,) = made[0]._ready.values()
    assert program is not None
    assert len(program.captured.inputs) == 1
    shared = {t.data_ptr() for t in program.captured.constants.values()}
    assert module.up.weight.data_ptr() in shared


@torch.no_grad()
def test_a_weight_that_is_written_or_replaced_is_noticed() -> None:
    module = Block().eval()
    fast, x = compiled(module), torch.randn(2, 8)
    same(fast(x), module(x))
    module.up.weight.mul_(2)
    same(fast(x), module(x))
    module.up.weight = nn.Parameter(torch.randn(16, 8))
    same(fast(x), module(x))
    module.load_state_dict(Block().state_dict())
    same(fast(x), module(x))


@torch.no_grad()
def test_a_buffer_that_the_graph_writes_keeps_counting() -> None:
    module, made = Counter().eval(), list[dynamo.DynamoProgram]()
    fast, x = compiled(module, made), torch.ones(3)
    assert [float(fast(x)[0]) for _ in range(4)] == [1, 2, 3, 4]
    assert module.count == 4
    assert len(made[0]._ready) == 1


@torch.no_grad()
def test_an_input_that_the_graph_writes_is_written_once() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    fast = torch.compile(step, backend=dynamo.backend)
    assert torch.equal(fast(x), torch.full((3,), 2.0))
    assert torch.equal(x, torch.ones(3))


@torch.no_grad()
def test_a_graph_break_gives_two_programs() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return y @ y.T

    made: list[dynamo.DynamoProgram] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        made.append(dynamo.DynamoProgram(graph, dynamo.Options()))
        return made[-1]

    x = torch.randn(3, 3)
    same(torch.compile(broken, backend=backend)(x), broken(x))
    assert len(made) == 2


def test_gradients_are_left_to_pytorch_and_said_so() -> None:
    module = Block().eval()
    twin, x = copy.deepcopy(module), torch.randn(2, 8)
    fast = compiled(module)
    with pytest.warns(UserWarning, match="no_grad"):
        fast(x)["y"].sum().backward()
    twin(x)["y"].sum().backward()
    assert module.up.weight.grad is not None
    same(module.up.weight.grad, twin.up.weight.grad)


@torch.no_grad()
def test_options_reach_the_compiler_and_wrong_ones_are_refused() -> None:
    made: list[dynamo.DynamoProgram] = []
    compiled(Block().eval(), made, alpha=0.25, target="torch")(torch.randn(2, 8))
    assert made[0].options.alpha == 0.25
    with pytest.raises(OptionsError):
        dynamo.backend(torch.fx.GraphModule(nn.Module(), torch.fx.Graph()), (), options={"alhpa": 1})


def test_the_entry_point_names_this_backend() -> None:
    root = Path(__file__).resolve().parents[1]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["torch_dynamo_backends"]["forge_eq"] == "forge_eq.dynamo:backend"
