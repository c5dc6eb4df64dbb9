"""How an operation is declared: one call of :func:`op` says everything about it.

Takes the declaration. Gives an :class:`Op`, entered in the registry, and the :class:`Term` trees that
calling it builds. Promises: names are unique; the signature, the shape rule and the reference agree
(``forge-eq ops check``). Everything else is derived from the declaration: the e-graph constructor, ATen
import, type facts, trait rules, constant folding, verifier inputs, cost, kernels and the docs.

Not here: any operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge_eq.errors import RuleError, ShapeError
from forge_eq.ir.types import Type

# ---------------------------------------------------------------------------------------------- terms


@dataclass(frozen=True, slots=True)
class Var:
    """A pattern variable that stands for a tensor. ``type`` is set when a definition is expanded."""

    name: str
    type: Type | None = None


@dataclass(frozen=True, slots=True)
class AttrVar:
    """A pattern variable that stands for an attribute (an axis, a shape, a number)."""

    name: str


@dataclass(frozen=True, slots=True)
class Computed:
    """An attribute worked out from others: ``fn(*values)``; ``fn`` gives None when it has no answer.

    ``args`` may name attribute variables (their value is passed) and tensor variables (their type is).
    """

    fn: Callable[..., Any]
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class App:
    """An op applied to terms: what calling an :class:`Op` gives."""

    op: Op
    args: tuple[Term, ...]
    attrs: tuple[Any, ...]


Term = Var | App


def variables(term: Any) -> tuple[list[str], list[str]]:
    """(tensor variables, attribute variables) of a term, in order of first appearance."""
    tensors: dict[str, None] = {}
    attrs: dict[str, None] = {}

    def walk(t: Any) -> None:
        if isinstance(t, Var):
            tensors.setdefault(t.name)
        elif isinstance(t, AttrVar):
            attrs.setdefault(t.name)
        elif isinstance(t, App):
            for part in (*t.args, *t.attrs):
                walk(part)

    walk(term)
    return list(tensors), list(attrs)


# -------------------------------------------------------------------------------------------- declaration


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about an op that generic rules and passes read; each trait rule is verified like any other."""

    elementwise: bool = False  # output element i depends on input elements i only (after broadcasting)
    commutative: bool = False
    symmetric: bool = False  # the first two operands can be exchanged: what "commutative" is for more than two
    idempotent: bool = False  # f(f(x)) = f(x)
    involution: bool = False  # f(f(x)) = x
    view: bool = False  # moves no data: the output may share the input's buffer
    gather: bool = False  # data-dependent reads (embedding): at home on the host
    exact: bool = True  # the same bits from every correct kernel (no rounding choice)


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one call: ``flops`` and ``bytes`` are functions of (input types, attrs, output type).

    The default is one operation per output element and every operand moved once.
    """

    flops: Callable[[Sequence[Any], tuple[Any, ...], Any], float] | None = None
    bytes: Callable[[Sequence[Any], tuple[Any, ...], Any], float] | None = None
    cost_class: str = "elementwise"  # tunable weight; matmul, attention, norm, elementwise, movement, gather
    form: str = ""  # of a linear layer (operand 1 is its weight): "plain", or "act" with an activation in the kernel


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a device runs the op: the instruction's ``unit`` and the OpenVINO nodes that compute it.

    ``openvino(g, *inputs, *attrs)`` builds nodes with ``g`` (an opset with helpers) and gives the output
    (a list of outputs for a multi-output op). The op never imports OpenVINO itself.

    ``left(g, stored, *inputs, *attrs)`` is a linear layer with its weight on the left: the result has its last two axes
    exchanged, and ``stored`` tells whether those of the first operand are. Bias is [n, 1]. A single row stays one, and
    its bias is [n].

    ``reads`` are element types that this kernel takes as an operand although the device computes nothing in them.
    """

    unit: str  # matmul | attention | vector | norm | move | gather
    openvino: Callable[..., Any]
    left: Callable[..., Any] | None = None
    reads: tuple[str, ...] = ()


ShapeRule = Callable[[Sequence[Any], tuple[Any, ...]], Type]


@dataclass(frozen=True, eq=False)
class Op:
    """An operation of the vocabulary. Call it with terms to build a term."""

    name: str
    inputs: tuple[str, ...]
    variadic: bool
    attrs: tuple[tuple[str, str], ...]  # (name, kind): int float bool str ints dtype any
    multi: bool
    doc: str
    shape: ShapeRule
    ref: Callable[..., Any] | None = None  # ref(xp, *inputs, *attrs), xp = numpy or a shim of it
    torch: Callable[..., Any] | None = None  # exact execution on torch tensors
    define: Callable[..., Any] | None = None  # definition over terms, for composites
    recognise: bool = False  # derive the recognition rule from ``define``
    aten: Mapping[str, Any] = field(default_factory=dict)  # ATen overload -> adapter or None
    traits: Traits = Traits()
    cost: Cost = Cost()
    kernel: Kernel | None = None
    update: Callable[..., Any] | None = None  # as ``torch``, written over the first operand, which has y's type
    leaf: str = ""  # input | constant | literal
    effectful: bool = False
    samples: Callable[..., Any] | None = None  # (rng, known types, known attrs) -> both, where guessing finds no call

    def __call__(self, *args: Any) -> App:
        """Builds a term: tensors first, then attributes, as in the signature."""
        count = len(args) - len(self.attrs)
        if count < 0 or (not self.variadic and count != len(self.inputs)):
            raise RuleError(
                "rules", self.name, f"{len(args)} arguments do not fit {self.signature}", "follow the signature"
            )
        return App(self, tuple(_as_term(a) for a in args[:count]), tuple(_as_attr(a) for a in args[count:]))

    @property
    def signature(self) -> str:
        """The declaration's head, rebuilt: ``softmax(x; axis: int) -> y``."""
        tensors = [("*" if self.variadic and i == len(self.inputs) - 1 else "") + n for i, n in enumerate(self.inputs)]
        attrs = ", ".join(f"{n}: {k}" for n, k in self.attrs)
        return f"{self.name}({', '.join(tensors)}{'; ' + attrs if attrs else ''}) -> {'*ys' if self.multi else 'y'}"

    @property
    def fused(self) -> bool:
        """Whether the op stands for a definition of several ops."""
        return self.define is not None

    @property
    def pure(self) -> bool:
        return not self.effectful

    def infer(self, types: Sequence[Type], attrs: tuple[Any, ...]) -> Type:
        """The output type. Raises ShapeError when the inputs do not fit."""
        try:
            return self.shape(types, attrs)
        except ShapeError:
            raise
        except (IndexError, TypeError, ValueError, AttributeError, KeyError) as e:
            shown = ", ".join(map(str, types))
            raise ShapeError("types", self.name, f"({shown}; {attrs}) does not fit: {e}", "check the operands") from e

    def __repr__(self) -> str:
        return f"<op {self.signature}>"


REGISTRY: dict[str, Op] = {}
ATEN: dict[str, tuple[Op, Any]] = {}  # ATen overload name -> (op, adapter)

_HEAD = re.compile(r"(\w+)\(([^;)]*)(?:;([^)]*))?\)\s*->\s*(\*?)\w+")


def op(head: str, doc: str, *, shape: ShapeRule, aten: str | Sequence[str] | Mapping[str, Any] = (), **rest: Any) -> Op:
    """Declares an operation and enters it in the registry.

    Args:
        head: ``"name(x, *ys; attr: kind, ...) -> y"``; ``*`` marks variadic inputs, ``-> *ys`` several outputs.
        doc: one sentence.
        shape: ``(input types, attrs) -> type``; raises ShapeError or returns None when a symbol hides it.
        aten: ATen overloads that are this op: a name, names, or name -> adapter. A plain name maps the
            arguments by position. See ``ops.aten`` for adapters.
        rest: the other fields of :class:`Op`.

    Raises:
        RuleError: malformed head, or a name or ATen overload that is taken.
    """
    found = _HEAD.fullmatch(head.strip())
    if not found:
        raise RuleError("ops", head, "the signature does not parse", "write name(x, y; axis: int) -> z")
    name, inputs, attrs, multi = found[1], found[2], found[3] or "", found[4] == "*"
    names = [p.strip() for p in inputs.split(",") if p.strip()]
    pairs = [tuple(s.strip() for s in p.split(":")) for p in attrs.split(",") if p.strip()]
    table = {aten: None} if isinstance(aten, str) else dict(aten) if isinstance(aten, Mapping) else dict.fromkeys(aten)
    made = Op(
        name=name,
        inputs=tuple(n.lstrip("*") for n in names),
        variadic=any(n[0] == "*" for n in names),
        attrs=tuple((p[0], p[1]) for p in pairs),
        multi=multi,
        doc=doc,
        shape=shape,
        aten=table,
        **rest,
    )
    if name in REGISTRY:
        raise RuleError("ops", name, "is declared twice", "rename one of them")
    REGISTRY[name] = made
    for overload, adapter in table.items():
        if overload in ATEN:
            raise RuleError("ops", name, f"{overload} already belongs to {ATEN[overload][0].name}", "keep one")
        ATEN[overload] = (made, adapter)
    return made


# ---------------------------------------------------------------------------------------------- literals


def lit(value: Any) -> App:
    """A number as an operand: it takes the dtype of the operand beside it."""
    return App(REGISTRY["literal"], (), (_as_attr(value),))


def _as_term(value: Any) -> Term:
    if isinstance(value, Var | App):
        return value
    if isinstance(value, AttrVar | Computed | int | float | bool):
        return lit(value)
    raise RuleError("rules", repr(value), "is not a term", "pass a pattern variable, a term or a number")


def _as_attr(value: Any) -> Any:
    return tuple(_as_attr(v) for v in value) if isinstance(value, list | tuple) else value


def compute(fn: Callable[..., Any], *names: Any) -> Computed:
    """An attribute computed from pattern variables: ``compute(operator.mul, a, b)``."""
    return Computed(fn, tuple(n if isinstance(n, str) else n.name for n in names))
