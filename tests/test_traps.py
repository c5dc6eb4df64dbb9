"""The trap cases: small programs that graph optimisers have got wrong, each through the compiler.

Every case is right: structure, types and values of the results, and what the arguments hold afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
import trap_cases
from forge_eq.capture import capture
from forge_eq.ir.check import check
from forge_eq.run.torch_module import to_module

pytestmark = [
    pytest.mark.shared,
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),  # torch's own, in eager too
]

COUNT = 64


def captured(module: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any) -> Callable[..., Any]:
    """No optimisation: capture, and the graph as a module."""
    graph = capture(module, args, None, dynamic_shapes)
    check(graph)
    return to_module(graph)


def complaint(name: str, compile_case: Callable[..., Any]) -> str | None:
    """What is wrong with one case, or None. The global random state is left as it was."""
    state = torch.get_rng_state()
    try:
        found: dict[str, str] = trap_cases.cases().verify(compile_case, only=(name,), say=lambda line: None)
        return found.get(name)
    finally:
        torch.set_rng_state(state)


def test_all_cases_are_there():
    assert len(trap_cases.names()) == COUNT


def optimised(module: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any) -> Callable[..., Any]:
    """Every rule and extraction; torch runs the chosen program."""
    return forge_eq.optimize(module, args, dynamic_shapes=dynamic_shapes).module


def compiled(module: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any) -> Callable[..., Any]:
    """The whole pipeline, OpenVINO and the guard included."""
    return forge_eq.compile(module, args, dynamic_shapes=dynamic_shapes, verify="full")


# torch.export alone takes 8 s on its 6,000 nodes.
LONG = {"deep_chain"}


def cases() -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in trap_cases.names()]


# The fast tier asks the whole pipeline; which part is to blame when it fails, the slow tier tells.
@pytest.mark.slow
@pytest.mark.parametrize("name", trap_cases.names())
def test_capture_alone_is_right(name):
    assert complaint(name, captured) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", trap_cases.names())
def test_optimised_is_right(name):
    assert complaint(name, optimised) is None


@pytest.mark.parametrize("name", cases())
def test_compiled_is_right(name):
    assert complaint(name, compiled) is None


def test_a_wrong_compiler_is_told():
    def doubled(module: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any) -> Callable[..., Any]:
        right = captured(module, args, dynamic_shapes)
        return lambda *a: torch.utils._pytree.tree_map(lambda t: t * 2, right(*a))

    assert complaint("attn_scale_div3", doubled) is not None
