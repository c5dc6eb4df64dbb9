"""forge_eq: an e-graph superoptimizer and compiler for PyTorch graphs.

    result = forge_eq.optimize(model, (tokens,))      # the best equal program, as graph and torch module
    program = forge_eq.compile(model, (tokens,))      # the same, allocated, scheduled and run on OpenVINO

Everything is imported on first use, so that ``import forge_eq`` costs nothing and needs only torch and numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from forge_eq import rules
    from forge_eq.api import Optimized, optimize
    from forge_eq.errors import ForgeError
    from forge_eq.generation import Generated, Generator, generate
    from forge_eq.options import Limits, Options
    from forge_eq.program import CompiledProgram, compile, load
    from forge_eq.rules.dsl import Attr, both, rule, to, together

_WHERE = {
    "optimize": "forge_eq.api",
    "Optimized": "forge_eq.api",
    "compile": "forge_eq.program",
    "load": "forge_eq.program",
    "CompiledProgram": "forge_eq.program",
    "generate": "forge_eq.generation",
    "Generator": "forge_eq.generation",
    "Generated": "forge_eq.generation",
    "Options": "forge_eq.options",
    "Limits": "forge_eq.options",
    "ForgeError": "forge_eq.errors",
    "rule": "forge_eq.rules.dsl",
    "to": "forge_eq.rules.dsl",
    "both": "forge_eq.rules.dsl",
    "together": "forge_eq.rules.dsl",
    "Attr": "forge_eq.rules.dsl",
}

__all__ = [
    "Attr",
    "CompiledProgram",
    "ForgeError",
    "Generated",
    "Generator",
    "Limits",
    "Optimized",
    "Options",
    "both",
    "compile",
    "generate",
    "load",
    "optimize",
    "rule",
    "rules",
    "to",
    "together",
]


def __getattr__(name: str) -> Any:
    if name == "rules":
        return import_module("forge_eq.rules")
    if name not in _WHERE:
        raise AttributeError(f"module 'forge_eq' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
