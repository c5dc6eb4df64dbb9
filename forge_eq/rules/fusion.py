"""Fusion: producer and consumer, or several readers of one value, as one kernel.

A rule says that the fused form is equal, never that it pays: the Fusion-Gain cost decides.
"""

from __future__ import annotations

from typing import Any

from forge_eq.ops.composite import (
    ACTIVATIONS,
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    linear_act,
    linear_bias_act,
    rms_norm,
)
from forge_eq.ops.convolution import conv_bias
from forge_eq.ops.elementwise import add
from forge_eq.ops.linalg import linear, linear_bias
from forge_eq.ops.movement import concat, project, split
from forge_eq.ops.spec import AttrVar, Var, compute
from forge_eq.rules.dsl import Attr, Equation, build, register, rule, to, together
from forge_eq.rules.guards import weights


def _activations() -> None:
    """One pair of rules for each activation that a linear kernel can apply to its result."""
    x, w, b = Var("x"), Var("w"), Var("b")
    t = AttrVar("t")
    for name, (act, _) in ACTIVATIONS.items():
        plain = to(act(linear(x, w, t)), linear_act(x, w, t, name))
        biased = to(act(linear_bias(x, w, b, t)), linear_bias_act(x, w, b, t, name))
        for suffix, equation in (("linear", plain), ("linear_bias", biased)):
            register(
                build(
                    "fusion",
                    f"{suffix}_{name}",
                    equation,
                    doc=f"Applies {name} while the result is in registers.",
                    source=f"definition of {suffix}_act",
                    exact="real",
                    where=__file__,
                )
            )


_activations()


@rule("fusion", exact="real", source="definition of add_layer_norm")
def residual_layer_norm(x: Var, r: Var, w: Var, b: Var, a: Attr, e: Attr) -> Equation:
    """The sum is read by the norm and by the next residual: both come out of one pass."""
    both = add_layer_norm(x, r, w, b, a, e)
    return together((add(x, r), project(both, 0)), (layer_norm(add(x, r), w, b, a, e), project(both, 1)))


@rule("fusion", exact="real", source="definition of add_rms_norm")
def residual_rms_norm(x: Var, r: Var, w: Var, a: Attr, e: Attr) -> Equation:
    """The same for the norm of Llama."""
    both = add_rms_norm(x, r, w, a, e)
    return together((add(x, r), project(both, 0)), (rms_norm(add(x, r), w, a, e), project(both, 1)))


@rule("fusion", exact="bit", source="addition is commutative")
def residual_layer_norm_commutes(x: Var, r: Var, w: Var, b: Var, a: Attr, e: Attr) -> Equation:
    """Makes one class of the two operand orders, so that extraction does not weigh them against each other."""
    return to(add_layer_norm(x, r, w, b, a, e), add_layer_norm(r, x, w, b, a, e))


@rule("fusion", exact="bit", source="addition is commutative")
def residual_rms_norm_commutes(x: Var, r: Var, w: Var, a: Attr, e: Attr) -> Equation:
    """The same for the norm of Llama."""
    return to(add_rms_norm(x, r, w, a, e), add_rms_norm(r, x, w, a, e))


# ------------------------------------------------------------------------- merging layers that read one value

COLUMNS = "columns of a product are independent: x [w1 w2] = [x w1, x w2]"


def _sizes(*types: Any) -> tuple[int, ...]:
    """Output features of weights stored [n, k]."""
    return tuple(t.shape[0] for t in types)


def _last(t: Any) -> int:
    return int(t.rank - 1)


def _parts(wide: Any, x: Var, *weights: Var) -> list[Any]:
    """The merged product cut into the parts that the single ones gave."""
    whole = split(wide, compute(_sizes, *weights), compute(_last, x))
    return [project(whole, i) for i in range(len(weights))]


@rule("fusion", exact="real", source=COLUMNS, when=[weights("v", "w")])
def merge_two(x: Var, v: Var, w: Var) -> Equation:
    """Gate and up projections read one value; one product streams it once."""
    a, b = _parts(linear(x, concat(v, w, 0), True), x, v, w)
    return together((linear(x, v, True), a), (linear(x, w, True), b))


@rule("fusion", exact="real", source=COLUMNS, when=[weights("u", "v", "w")])
def merge_three(x: Var, u: Var, v: Var, w: Var) -> Equation:
    """Query, key and value projections read one value."""
    a, b, c = _parts(linear(x, concat(u, v, w, 0), True), x, u, v, w)
    return together((linear(x, u, True), a), (linear(x, v, True), b), (linear(x, w, True), c))


@rule("fusion", exact="real", source=COLUMNS, when=[weights("u", "v", "w")])
def merge_three_biased(x: Var, u: Var, v: Var, w: Var, d: Var, e: Var, f: Var) -> Equation:
    """The same with biases, as BERT has them."""
    a, b, c = _parts(linear_bias(x, concat(u, v, w, 0), concat(d, e, f, 0), True), x, u, v, w)
    return together((linear_bias(x, u, d, True), a), (linear_bias(x, v, e, True), b), (linear_bias(x, w, f, True), c))


CHANNELS = "output channels of a convolution are independent"


@rule("fusion", exact="real", source=CHANNELS, when=[weights("v", "w")])
def merge_two_convs(x: Var, v: Var, w: Var, d: Var, e: Var, s: Attr, p: Attr, q: Attr, r: Attr) -> Equation:
    """Branches that begin with convolutions of one kernel size on one value."""
    whole = conv_bias(x, concat(v, w, 0), concat(d, e, 0), s, p, q, r, 1)
    parts = split(whole, compute(_sizes, v, w), 1)
    left, right = conv_bias(x, v, d, s, p, q, r, 1), conv_bias(x, w, e, s, p, q, r, 1)
    return together((left, project(parts, 0)), (right, project(parts, 1)))
