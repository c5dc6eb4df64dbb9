"""Spellings of activations, softmax and norms, as people write them in models; see ``spelling``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spelling import Choices, composite

# ---------------------------------------------------------------------------------------------- activations


def _elements(p: Choices) -> tuple[list[Any], list[Any]]:
    return [p("shape", (2, 5, 8), (3, 7), (16,), (1, 2, 3, 4))], []


def _halved(p: Choices, x: Tensor, bracket: Any) -> Tensor:
    """x (1 + t) / 2 in the groupings that people use."""
    half = 0.4 if p.twin("half is 0.4") else 0.5
    form = p("grouping", "half x", "x half", "outside", "over two", "inside", "distributed", "half bracket")
    if form == "half x":
        return half * x * p.plus("one", bracket, 1.0)
    if form == "x half":
        return p.times("order", x * half, p.plus("one", bracket, 1.0))
    if form == "outside":
        return half * p.times("order", x, p.plus("one", bracket, 1))
    if form == "over two":
        return x * p.plus("one", bracket, 1.0) / (1 / half)
    if form == "inside":
        return p.times("order", x, half * p.plus("one", bracket, 1.0))
    if form == "distributed":
        return x * p.plus("one", half * bracket, half)
    return p.times("order", p.plus("one", bracket, 1.0) * half, x)


@composite(_elements, "erf of x", "half is 0.4", "root is 0.7", "tanh for erf", "one missing")
def gelu(p: Choices, x: Tensor) -> Tensor:
    if p("how", "hand", "hand", "hand", "hand", "library") == "library" and not p.wrong:
        return p("library", F.gelu, nn.GELU())(x)
    root = p("root", "over sqrt", "times 1/sqrt", "times sqrt half", "literal", "over literal", "short")
    inner = {
        "over sqrt": lambda: x / math.sqrt(2.0),
        "times 1/sqrt": lambda: p.times("inner order", x, 1.0 / math.sqrt(2.0)),
        "times sqrt half": lambda: p.times("inner order", x, math.sqrt(0.5)),
        "literal": lambda: x * 0.70710678118654752440,
        "over literal": lambda: x / 1.4142135623730951,
        "short": lambda: x * (0.7071067811865475 if x.dtype == torch.float64 else 0.7071067812),
    }[root]()
    inner = x if p.twin("erf of x") else x * 0.7 if p.twin("root is 0.7") else inner
    bracket = torch.tanh(inner) if p.twin("tanh for erf") else p("erf", torch.erf, lambda t: t.erf())(inner)
    return x * 0.5 * bracket if p.twin("one missing") else _halved(p, x, bracket)


def _cube(p: Choices, x: Tensor) -> Tensor:
    form = p("cube", "pow", "**", "xxx", "square x", "xx2")
    if p.twin("square for cube"):
        return x**2
    forms = {
        "pow": lambda: torch.pow(x, 3.0),
        "**": lambda: x**3,
        "xxx": lambda: x * x * x,
        "square x": lambda: torch.square(x) * x,
        "xx2": lambda: x * x**2,
    }
    return forms[form]()


@composite(_elements, "coefficient is 0.05", "square for cube", "half is 0.4", "root of two pi")
def gelu_tanh(p: Choices, x: Tensor) -> Tensor:
    if p("how", "hand", "hand", "hand", "hand", "library") == "library" and not p.wrong:
        return F.gelu(x, approximate="tanh")
    c = 0.05 if p.twin("coefficient is 0.05") else 0.044715
    k = (
        math.sqrt(2.0 * math.pi)
        if p.twin("root of two pi")
        else p("root", math.sqrt(2.0 / math.pi), 0.7978845608028654)
    )
    if x.dtype == torch.float32 and p("short", True, False) and not p.wrong:
        k = 0.7978845608
    form = p("polynomial", "sum", "factored", "factored left", "running product")
    if p.twin("square for cube") or form == "sum":
        u = p.times("outer", k, p.plus("poly order", x, p.times("c order", c, _cube(p, x))))
    elif form == "factored":
        u = p.times("outer", k, x * p.plus("poly order", 1.0, p.times("c order", c, p("sq", x * x, x**2, x.square()))))
    elif form == "factored left":
        u = k * x * p.plus("poly order", 1.0, c * x * x)
    else:
        u = p.times("outer", k, p.plus("poly order", x, c * x * x * x))
    return _halved(p, x, p("tanh", torch.tanh, lambda t: t.tanh())(u))


@composite(_elements, "sigmoid of two x", "sign lost", "one is two", "sigmoid alone")
def silu(p: Choices, x: Tensor) -> Tensor:
    if p.twin("sigmoid of two x") or p.twin("sigmoid alone"):
        return x * torch.sigmoid(2 * x) if p.twin("sigmoid of two x") else torch.sigmoid(x) * 1.0
    minus = [lambda: torch.exp(-x), lambda: (-x).exp(), lambda: torch.exp(x * -1), lambda: torch.exp(-1.0 * x)]
    e = torch.exp(x) if p.twin("sign lost") else p("exp", *minus)()
    one = p.plus("one order", 2.0 if p.twin("one is two") else 1.0, e)
    form = p("sigmoid", "one over", "x over", "reciprocal", "power", "library", "method", "silu", "by tanh")
    if p.wrong:
        form = p("wrong form", "one over", "x over", "reciprocal", "power")
    forms = {
        "one over": lambda: p.times("order", x, 1.0 / one),
        "x over": lambda: x / one,
        "reciprocal": lambda: p.times("order", x, one.reciprocal()),
        "power": lambda: x * one**-1,
        "library": lambda: p.times("order", x, torch.sigmoid(x)),
        "method": lambda: x * x.sigmoid(),
        "silu": lambda: p("library", F.silu, nn.SiLU())(x),
        "by tanh": lambda: p(
            "half", lambda t: x * (0.5 * (1 + torch.tanh(x / t))), lambda t: 0.5 * x * (1 + torch.tanh(x / t))
        )(2),
    }
    return forms[form]()


def _pair(p: Choices) -> tuple[list[Any], list[Any]]:
    shape = _elements(p)[0][0]
    return ([(*shape[:-1], 2 * shape[-1])] if p("merged", True, False, False) else [shape, shape]), []


@composite(_pair, "plain sigmoid", "gelu gate", "sum for product", "gate twice")
def swiglu(p: Choices, *parts: Tensor) -> Tensor:
    if len(parts) == 1:
        how = p("cut", "chunk", "split", "slice")
        n = parts[0].shape[-1] // 2
        cuts = {
            "chunk": lambda t: t.chunk(2, dim=-1),
            "split": lambda t: torch.split(t, n, dim=-1),
            "slice": lambda t: (t[..., :n], t[..., n:]),
        }
        parts = tuple(cuts[how](parts[0]))
    gate, up = parts if p("which", "first", "second") == "first" else parts[::-1]
    if p.twin("plain sigmoid"):
        return torch.sigmoid(gate) * up
    if p.twin("gelu gate"):
        return F.gelu(gate) * up
    if p.twin("sum for product"):
        return F.silu(gate) + up
    if p.twin("gate twice"):
        return gate * F.silu(gate) * up
    order = p("activation", "silu first", "silu first", "x up first", "gate up first")
    if order == "silu first":
        return p.times("product", silu(p, gate), up)
    if order == "x up first":
        return p.times("product", gate * up, torch.sigmoid(gate))
    return p.times("product", gate, up * torch.sigmoid(gate))


# ---------------------------------------------------------------------------------------------- softmax


def _softmax_shapes(p: Choices) -> tuple[list[Any], list[Any]]:
    return [p("shape", (2, 3, 5), (4, 6), (2, 2, 3, 4))], []


def _kept(p: Choices, axis: str, reduce: Callable[..., Any], dim: int) -> Tensor:
    """A reduction that keeps its axis, by flag or by unsqueeze."""
    if p(axis, "flag", "flag", "unsqueeze") == "flag":
        return reduce(dim=dim, keepdim=True)
    return reduce(dim=dim).unsqueeze(dim)


def _softmax(p: Choices, x: Tensor, dim: int, wrong: bool = True) -> Tensor:
    how = p("softmax", "F", "method", "torch", "module", "hand", "hand", "hand", "hand")
    mistaken = wrong and p.wrong in SOFTMAX_TWINS
    if how != "hand" and not mistaken:
        kinds = {
            "F": lambda: F.softmax(x, dim=dim),
            "method": lambda: x.softmax(dim),
            "torch": lambda: torch.softmax(x, dim, dtype=p("softmax dtype", None, x.dtype)),
            "module": lambda: nn.Softmax(dim)(x),
        }
        return kinds[how]()
    shift = p("shift", "amax", "max values", "max item", "detached")
    tops = {
        "amax": lambda: _kept(p, "top", x.amax, dim),
        "max values": lambda: x.max(dim=dim, keepdim=True).values,
        "max item": lambda: torch.max(x, dim, keepdim=True)[0],
        "detached": lambda: x.detach().amax(dim, keepdim=True),
    }
    e = x if mistaken and p.twin("no shift") else x - tops[shift]()
    e = p("exp", torch.exp, lambda t: t.exp())(e)
    e = e**2 if mistaken and p.twin("squares") else e
    other = 0 if mistaken and p.twin("sum over another axis") else dim
    total = _kept(p, "total", e.sum, other)
    total = total + 1.0 if mistaken and p.twin("one more") else total
    form = p("division", "over", "over", "torch.div", "reciprocal", "one over", "power")
    forms = {
        "over": lambda: e / total,
        "torch.div": lambda: torch.div(e, total),
        "reciprocal": lambda: p.times("division order", e, total.reciprocal()),
        "one over": lambda: p.times("division order", e, 1.0 / total),
        "power": lambda: e * total.pow(-1),
    }
    return forms[form]()


SOFTMAX_TWINS = ("sum over another axis", "one more", "squares", "no shift")


@composite(_softmax_shapes, *SOFTMAX_TWINS)
def softmax(p: Choices, x: Tensor) -> Tensor:
    return _softmax(p, x, p("dim", -1, -1, 1))


# ---------------------------------------------------------------------------------------------- norms


def _root(p: Choices, y: Any, variance: Tensor, eps: float, gain: Tensor) -> Tensor:
    """y / sqrt(variance + eps) * gain in the orders that people write."""
    if p.twin("eps outside"):
        return y / (torch.sqrt(variance) + eps) * gain
    inside = variance if p.twin("eps missing") else p.plus("eps order", variance, eps)
    inside = inside if not p.twin("fourth root") else inside.sqrt()
    form = p("root", "rsqrt", "rsqrt", "over sqrt", "one over sqrt", "power", "reciprocal", "half power")
    if form in ("over sqrt", "half power"):
        below = p("sqrt", torch.sqrt, lambda t: t.sqrt())(inside) if form == "over sqrt" else inside**0.5
        return gain * y / below if p("gain first", False, True) else p.times("gain order", y / below, gain)
    scale = {
        "rsqrt": lambda: torch.rsqrt(inside),
        "one over sqrt": lambda: 1.0 / torch.sqrt(inside),
        "power": lambda: inside.pow(-0.5),
        "reciprocal": lambda: inside.sqrt().reciprocal(),
    }[form]()
    grouping = p("gain", "last", "last", "first", "with scale")
    if grouping == "last":
        return p.times("gain order", p.times("scale order", y, scale), gain)
    if grouping == "first":
        return p.times("scale order", p.times("gain order", y, gain), scale)
    return p.times("gain order", y, scale * gain)


def _mean(p: Choices, axis: str, x: Tensor) -> Tensor:
    form = p(axis, "mean", "mean", "torch.mean", "unsqueeze", "sum over size", "sum by inverse", "axis list")
    n = x.shape[-1]
    forms = {
        "mean": lambda: x.mean(-1, keepdim=True),
        "torch.mean": lambda: torch.mean(x, dim=-1, keepdim=True),
        "unsqueeze": lambda: x.mean(dim=-1).unsqueeze(-1),
        "sum over size": lambda: x.sum(-1, keepdim=True) / n,
        "sum by inverse": lambda: torch.sum(x, -1, keepdim=True) * (1.0 / n),
        "axis list": lambda: x.mean(dim=[x.dim() - 1], keepdim=True),
    }
    return forms[form]()


def _square(p: Choices, x: Tensor) -> Tensor:
    if p.twin("magnitude for square"):
        return x.abs()
    how = p("square", "pow", "**", "xx", "square", "method", "float pow")
    forms = {
        "pow": lambda: x.pow(2),
        "**": lambda: x**2,
        "xx": lambda: x * x,
        "square": lambda: torch.square(x),
        "method": lambda: x.square(),
        "float pow": lambda: torch.pow(x, 2.0),
    }
    return forms[how]()


def _cast(p: Choices, x: Tensor) -> Tensor:
    """The upcast that norms carry; here to the dtype at hand."""
    how = p("cast", "none", "none", "to", "type_as", "float", "keyword")
    if how == "float":
        return x.float() if x.dtype == torch.float32 else x.double()
    casts = {"to": lambda: x.to(x.dtype), "type_as": lambda: x.type_as(x), "keyword": lambda: x.to(dtype=x.dtype)}
    return casts[how]() if how in casts else x


def _rows(gains: int) -> Callable[[Choices], tuple[list[Any], list[Any]]]:
    def shapes(p: Choices) -> tuple[list[Any], list[Any]]:
        shape = p("shape", (2, 5, 8), (3, 7), (1, 4, 16), (2, 2, 3, 4))
        return [shape], [shape[-1:]] * gains

    return shapes


NORM_TWINS = ("eps outside", "eps missing", "fourth root", "magnitude for square", "another axis")


@composite(_rows(1), *NORM_TWINS, "mean subtracted", "narrowed")
def rms_norm(p: Choices, x: Tensor, w: Tensor) -> Tensor:
    eps = p("eps", 1e-5, 1e-6, 1e-8)
    if p("how", "hand", "hand", "hand", "hand", "hand", "library") == "library" and not p.wrong:
        return F.rms_norm(x, x.shape[-1:], w, eps)
    y = x.half().to(x.dtype) if p.twin("narrowed") else _cast(p, x)
    if p.twin("mean subtracted"):
        return (y - y.mean(-1, keepdim=True)) * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * w
    squares = _square(p, y)
    mean = squares.mean(0, keepdim=True) if p.twin("another axis") else _mean(p, "mean", squares)
    return _root(p, y, mean, eps, w)


@composite(_rows(2), *NORM_TWINS, "unbiased", "std plus eps", "bias before gain")
def layer_norm(p: Choices, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    eps = p("eps", 1e-5, 1e-6, 1e-12)
    if p("how", "hand", "hand", "hand", "hand", "hand", "library") == "library" and not p.wrong:
        return F.layer_norm(x, x.shape[-1:], w, b, eps)
    y = _cast(p, x)
    centred = y - _mean(p, "mean", y)
    if p.twin("std plus eps"):
        return centred / (y.std(-1, unbiased=False, keepdim=True) + eps) * w + b
    how = "var" if p.twin("unbiased") else p("variance", "hand", "hand", "hand", "var", "correction", "var of centred")
    how = "hand" if p.wrong in ("magnitude for square", "another axis") else how
    variances = {
        "hand": lambda: _mean(p, "mean of squares", _square(p, centred)),
        "var": lambda: y.var(-1, unbiased=p.twin("unbiased"), keepdim=True),
        "correction": lambda: torch.var(y, dim=-1, correction=0, keepdim=True),
        "var of centred": lambda: torch.var(y, -1, keepdim=True, unbiased=False),
    }
    variance = _square(p, centred).mean(0, keepdim=True) if p.twin("another axis") else variances[how]()
    if p.twin("bias before gain"):
        return (centred * torch.rsqrt(variance + eps) + b) * w
    return p.plus("bias order", _root(p, centred, variance, eps, w), b)
