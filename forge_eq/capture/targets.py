"""Call targets: their names, and what is known of a target before its arguments are seen.

Takes the callables that an exported graph calls. Gives names that :func:`resolve` turns back, and facts:
does it write, draw random numbers, check something, depend on how its operand is stored. Promises: what is
not known to be pure counts as an effect. Not here: arguments as text (``capture.template``).
"""

from __future__ import annotations

import math
import operator
from functools import lru_cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from forge_eq.errors import ParseError

# Plain Python functions that exports use on sizes; nothing else is ever looked up by name.
_FUNCTIONS: dict[str, Any] = {
    **{
        f"operator.{f.__name__}": f
        for f in (
            operator.add,
            operator.sub,
            operator.mul,
            operator.truediv,
            operator.floordiv,
            operator.mod,
            operator.pow,
            operator.neg,
            operator.pos,
            operator.abs,
            operator.lt,
            operator.le,
            operator.gt,
            operator.ge,
            operator.eq,
            operator.ne,
            operator.and_,
            operator.or_,
            operator.xor,
            operator.not_,
            operator.invert,
            operator.truth,
            operator.lshift,
            operator.rshift,
            operator.getitem,
            operator.index,
        )
    },
    **{f"math.{f.__name__}": f for f in (math.floor, math.ceil, math.trunc, math.sqrt, math.log, math.log2, math.exp)},
    **{f"builtins.{f.__name__}": f for f in (abs, bool, float, int, max, min, pow, round)},
    **{f"torch.{n}": f for n, f in vars(torch).items() if n.startswith(("sym_", "_sym_")) and callable(f)},
}
_NAMES = {id(f): name for name, f in _FUNCTIONS.items()}

# Namespaces whose operators keep to their schema; any other operator may do what it likes.
_KNOWN = frozenset({"aten", "prims", "quantized_decomposed", "torchvision"})
# Higher-order operators that do what their submodules do, and nothing more.
_TRANSPARENT = frozenset(
    {
        "associative_scan",
        "cond",
        "hints_wrapper",
        "invoke_subgraph",
        "map",
        "map_impl",
        "scan",
        "while_loop",
        "wrap",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    }
)
# They write through operands that their schema does not mark: (argument that switches it on).
_HIDDEN_WRITES = {"batch_norm": "training", "instance_norm": "use_input_stats"}
# The result depends on the operand's strides, not only on its elements.
_STORAGE = frozenset(
    {
        "aten.as_strided.default",
        "aten.as_strided_copy.default",
        "aten.as_strided_scatter.default",
        "aten.view.dtype",
        "aten.view_as_complex.default",
        "aten.is_contiguous.default",
        "aten.sym_stride.int",
        "aten.sym_stride.default",
        "aten.sym_storage_offset.default",
        "aten.stride.int",
        "aten.storage_offset.default",
    }
)
# Views that exist only for some strides: reshape gives the same elements for all of them.
_VIEWS = {"aten.view.default": "aten.reshape.default", "aten._unsafe_view.default": "aten.reshape.default"}


def block_name(target: HigherOrderOperator) -> str:
    """The name of a higher-order operator, e.g. ``cond``."""
    return str(target.name())  # type: ignore[no-untyped-call]


def target_name(target: Any) -> str:
    """``aten.add.Tensor``, ``higher_order.cond``, ``operator.mul``, ``math.floor``, ``torch.sym_max``.

    Raises:
        ValueError: the target has no name that could be resolved later.
    """
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{block_name(target)}"
    name = _NAMES.get(id(target))
    if name is None:
        raise ValueError(f"{target!r} is neither an operator nor a known function on sizes")
    return name


@lru_cache(maxsize=4096)
def resolve(name: str) -> Any:
    """The callable called ``name``. Raises ParseError when there is none in this process."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    parts = name.split(".")
    try:
        if parts[0] == "higher_order" and len(parts) == 2:
            return getattr(torch.ops.higher_order, parts[1])
        if len(parts) == 3:
            found = getattr(getattr(getattr(torch.ops, parts[0]), parts[1]), parts[2])
            if isinstance(found, OpOverload):
                return found
    except AttributeError:
        pass
    raise ParseError("capture", name, "no such operator in this process", "import the library that registers it")


@lru_cache(maxsize=4096)
def depends_on_storage(name: str) -> bool:
    return name in _STORAGE


def stride_free(name: str) -> str:
    """The target that gives the same elements whatever the operand's strides are."""
    return _VIEWS.get(name, name)


@lru_cache(maxsize=4096)
def _overload_facts(target: OpOverload) -> tuple[bool, bool, bool, str | None]:
    """(writes by schema, draws random numbers, only checks or is unknown, argument that switches hidden writes on)."""
    base = target._schema.name.rpartition("::")[2]
    checks = not target._schema.returns or "_assert" in base or "sym_constrain" in base
    hidden = None
    for word, argument in _HIDDEN_WRITES.items():
        if word in base and "functional" not in base and any(a.name == argument for a in target._schema.arguments):
            hidden = argument
    random = torch.Tag.nondeterministic_seeded in target.tags
    return target._schema.is_mutable, random, checks or target.namespace not in _KNOWN, hidden


@lru_cache(maxsize=4096)
def _arguments(target: OpOverload) -> tuple[tuple[str, Any], ...]:
    return tuple((a.name, a.default_value if a.has_default_value() else None) for a in target._schema.arguments)


def bound(target: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    """The call's arguments by name, defaults filled in."""
    named = dict(_arguments(target))
    named.update((name, value) for (name, _), value in zip(_arguments(target), args, strict=False))
    named.update(kwargs)
    return named


def writes(target: Any, args: Any, kwargs: Any) -> bool:
    """Whether the call may change one of its operands."""
    if not isinstance(target, OpOverload):
        return False
    mutable, _, _, hidden = _overload_facts(target)
    if mutable or hidden is None:
        return mutable
    named = bound(target, args, kwargs)
    return named[hidden] is not False and named.get("running_mean") is not None


def has_effect(target: Any, args: Any, kwargs: Any) -> bool:
    """Whether the call must run, once and in its place, whoever reads its result. Submodules are not looked at."""
    if isinstance(target, HigherOrderOperator):
        return block_name(target) not in _TRANSPARENT
    if not isinstance(target, OpOverload):
        return False
    _, random, checks, _ = _overload_facts(target)
    if checks or writes(target, args, kwargs):
        return True
    if not random:
        return False
    named = bound(target, args, kwargs)  # dropout that is switched off draws nothing
    off = any(named.get(n, True) is False for n in ("train", "training"))
    return not (off or any(named.get(n, 1) == 0 for n in ("dropout_p", "dropout")))
