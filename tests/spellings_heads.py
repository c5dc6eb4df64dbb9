"""Spellings of linear layers, rotary embeddings and attention; see ``spelling``."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spelling import Choices, composite
from spellings import _softmax

# ---------------------------------------------------------------------------------------------- linear


def _layer(p: Choices) -> tuple[list[Any], list[Any]]:
    k, n = 6, 4
    stored = p("stored", "[n, k]", "[n, k]", "[k, n]")
    weight = (n, k) if stored == "[n, k]" else (k, n)
    if p.twin("weight of a square"):
        k, n, weight = 6, 6, (6, 6)
    bias = [(n,)] if p("bias", True, True, False) or p.wrong else []
    return [p("shape", (2, 5, k), (3, k), (2, 2, 3, k))], [weight, *bias]


@composite(_layer, "bias over rows", "bias times", "weight is an input", "scaled input bias")
def linear(p: Choices, x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    if p.twin("weight is an input"):
        w = w * x.mean()
    turned = p.of("stored") == "[n, k]"
    t = p("transpose", "T", "t()", "transpose", "mT", "permute")
    transposes = {"T": lambda: w.T, "t()": w.t, "transpose": lambda: w.transpose(0, 1), "mT": lambda: w.mT}
    v = (transposes.get(t, lambda: w.permute(1, 0)))() if turned else w  # [k, n]
    form = p("form", "F.linear", "@", "matmul", "flat mm", "addmm", "einsum", "flat linear", "dot", "contiguous")
    rows = x.reshape(-1, x.shape[-1])
    if bias and form == "addmm" and not p.wrong:
        return torch.addmm(bias[0], rows, v).view(*x.shape[:-1], v.shape[1])
    if bias and form == "F.linear" and not p.wrong:
        return F.linear(x, w if turned else w.t(), bias[0])
    forms = {
        "F.linear": lambda: F.linear(x, w if turned else w.t()),
        "matmul": lambda: torch.matmul(x, v),
        "flat mm": lambda: torch.mm(rows, v).reshape(*x.shape[:-1], v.shape[1]),
        "einsum": lambda: torch.einsum("...k,nk->...n" if turned else "...k,kn->...n", x, w),
        "flat linear": lambda: F.linear(rows, v.t()).view(*x.shape[:-1], v.shape[1]),
        "contiguous": lambda: x @ v.contiguous(),
        "dot": lambda: x.matmul(v),
    }
    y = forms.get(form, lambda: x @ v)()
    if p.twin("bias over rows"):
        return y + y[..., :1]
    if p.twin("bias times"):
        return y * bias[0]
    if p.twin("scaled input bias"):
        return y + bias[0] * x.mean()
    return p.plus("bias order", y, bias[0]) if bias else y


# ---------------------------------------------------------------------------------------------- rotary


def _rotary(p: Choices) -> tuple[list[Any], list[Any]]:
    b, h, s, d = p("shape", (2, 3, 5, 8), (1, 2, 4, 4))
    width = d // 2 if p("tables", "whole", "whole", "whole", "half", "doubled") != "whole" else d
    if p.wrong:
        width = d
    angle = p("angles", (1, 1, s, width), (s, width), (b, s, width))
    return [(b, h, s, d), angle, angle], []


def _halves(p: Choices, x: Tensor) -> tuple[Tensor, Tensor]:
    n = x.shape[-1] // 2
    how = p("halves", "slice", "chunk", "split", "narrow", "tensor_split", "unflatten")
    cuts = {
        "slice": lambda: (x[..., :n], x[..., n:]),
        "chunk": lambda: x.chunk(2, dim=-1),
        "split": lambda: torch.split(x, n, dim=-1),
        "narrow": lambda: (x.narrow(-1, 0, n), x.narrow(-1, n, n)),
        "tensor_split": lambda: torch.tensor_split(x, 2, dim=-1),
        "unflatten": lambda: x.unflatten(-1, (2, n)).unbind(-2),
    }
    a, b = cuts[how]()
    return a, b


@composite(_rotary, "pairs", "sign on the other half", "sum of sines", "no sign", "quarters")
def rope(p: Choices, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if p.of("angles") == (x.shape[0], x.shape[2], cos.shape[-1]):
        cos, sin = cos.unsqueeze(1), sin[:, None]
    a, b = _halves(p, x)
    if not p.wrong and p.of("tables") == "half":
        return torch.cat((a * cos - b * sin, p.plus("half order", b * cos, a * sin)), dim=-1)
    if not p.wrong and p.of("tables") == "doubled":
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), dim=-1)
    minus = p("minus", lambda t: -t, lambda t: t * -1, torch.neg, lambda t: -1.0 * t)
    turned = torch.cat((minus(b), a), dim=-1)
    if p.twin("pairs"):
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    if p.twin("sign on the other half"):
        turned = torch.cat((b, -a), dim=-1)
    if p.twin("no sign"):
        turned = torch.cat((b, a), dim=-1)
    if p.twin("quarters"):
        n = x.shape[-1] // 4
        turned = torch.cat((-x[..., n:], x[..., :n]), dim=-1)
    left, right = p.times("cos order", x, cos), p.times("sin order", turned, sin)
    return right - left if p.twin("sum of sines") else p.plus("order", left, right)


# ---------------------------------------------------------------------------------------------- attention


def _heads(p: Choices) -> tuple[list[Any], list[Any]]:
    b, g, s, t, d = p("sizes", (2, 2, 5, 5, 8), (1, 3, 4, 7, 4), (2, 1, 3, 6, 8))
    n = p("queries a key head", 1, 1, 1, 2, 3)
    if p.twin("tiled heads"):
        n, g = 2, 2
    if p.twin("keys not transposed"):
        t = d
    joined = p("layout", "heads", "heads", "joined", "rows first")
    keep = p("mask", "none", "none", "where", "masked_fill", "not fill", "bias", "bias from mask", "eq fill", "library")
    if p.wrong in ("finite mask", "mask after softmax"):
        keep = p("wrong mask", "where", "masked_fill")
    shape = p("mask shape", (s, t), (1, 1, s, t), (b, 1, s, t), (b, g * n, s, t))
    mask = [] if keep == "none" else [shape] if keep == "bias" else [("mask", *shape)]

    def lay(heads: int, rows: int) -> tuple[int, ...]:
        if joined == "joined":
            return (b, rows, heads * d)
        return (b, rows, heads, d) if joined == "rows first" else (b, heads, rows, d)

    return [lay(g * n, s), lay(g, t), lay(g, t), *mask], []


def _split(p: Choices, axis: str, x: Tensor, heads: int) -> Tensor:
    layout = p.of("layout")
    if layout == "heads":
        return x
    if layout == "joined":
        b, rows, width = x.shape
        how = p("split", "view", "reshape", "unflatten")
        cuts = {
            "view": lambda: x.view(b, rows, heads, width // heads),
            "reshape": lambda: x.reshape(b, -1, heads, width // heads),
            "unflatten": lambda: x.unflatten(-1, (heads, -1)),
        }
        x = cuts[how]()
    how = p("to heads", "transpose", "permute", "einsum", "swapaxes")
    if how == "einsum":
        return torch.einsum("bshd->bhsd", x)
    return {"transpose": lambda: x.transpose(1, 2), "permute": lambda: x.permute(0, 2, 1, 3)}.get(
        how, lambda: x.swapaxes(1, 2)
    )()


def _repeat(p: Choices, x: Tensor, n: int) -> Tensor:
    if p.twin("tiled heads"):
        return x.repeat(1, n, 1, 1)
    b, g, t, d = x.shape
    how = p("repeat", "interleave", "expand", "unsqueeze", "broadcast", "stack")
    ways = {
        "interleave": lambda: x.repeat_interleave(n, dim=1),
        "expand": lambda: x[:, :, None, :, :].expand(b, g, n, t, d).reshape(b, g * n, t, d),
        "unsqueeze": lambda: x.unsqueeze(2).expand(-1, -1, n, -1, -1).flatten(1, 2),
        "broadcast": lambda: torch.broadcast_to(x[:, :, None], (b, g, n, t, d)).reshape(b, g * n, t, d),
        "stack": lambda: x.unsqueeze(2).repeat(1, 1, n, 1, 1).view(b, g * n, t, d),
    }
    return ways[how]()


def _scores(p: Choices, q: Tensor, k: Tensor) -> Tensor:
    how = p("product", "transpose", "mT", "permute", "einsum", "bmm", "matmul")
    if p.twin("keys not transposed"):
        return q @ k
    if how == "bmm":
        b, h, s, d = q.shape
        return torch.bmm(q.reshape(b * h, s, d), k.reshape(b * h, -1, d).transpose(1, 2)).view(b, h, s, -1)
    ways = {
        "transpose": lambda: q @ k.transpose(-2, -1),
        "mT": lambda: q @ k.mT,
        "permute": lambda: torch.matmul(q, k.permute(0, 1, 3, 2)),
        "einsum": lambda: torch.einsum("bhid,bhjd->bhij", q, k),
        "matmul": lambda: torch.matmul(q, k.transpose(2, 3)),
    }
    return ways[how]()


def _masked(p: Choices, scores: Tensor, mask: Tensor) -> Tensor:
    how, off = p.of("mask"), -math.inf
    if p.twin("finite mask"):
        how, off = p.of("wrong mask"), p("low", -1e9, -100.0)
    ways = {
        "where": lambda: torch.where(mask, scores, off),
        "masked_fill": lambda: scores.masked_fill(~mask, off),
        "not fill": lambda: scores.masked_fill(mask.logical_not(), float(off)),
        "bias": lambda: p.plus("mask order", scores, mask),
        "bias from mask": lambda: scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, off),
        "eq fill": lambda: scores.masked_fill(mask == 0, off),
    }
    return ways[how]()


@composite(
    _heads,
    "finite mask",
    "mask after softmax",
    "keys not transposed",
    "tiled heads",
    "softmax over queries",
    "softcap",
    "softmax of another axis by hand",
    "no softmax",
)
def attention(p: Choices, q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    b, g, _, _, d = p.of("sizes")
    n = p.of("queries a key head") if not p.twin("tiled heads") else 2
    g = 2 if p.twin("tiled heads") else g
    q, k, v = _split(p, "q", q, g * n), _split(p, "k", k, g), _split(p, "v", v, g)
    if p.of("mask") == "library" and not p.wrong:
        return F.scaled_dot_product_attention(q, k, v, mask[0], enable_gqa=n > 1)
    if n > 1:
        k, v = _repeat(p, k, n), _repeat(p, v, n)
    where = p("scale", "scores", "scores", "q", "k", "both", "none", "after mask")
    how = p("scale form", "over sqrt", "times power", "times rsqrt", "over literal", "tensor")
    forms = {
        "over sqrt": lambda x: x / math.sqrt(d),
        "times power": lambda x: x * d**-0.5,
        "times rsqrt": lambda x: (1.0 / math.sqrt(d)) * x,
        "over literal": lambda x: x / (d**0.5),
        "tensor": lambda x: x / torch.tensor(math.sqrt(d), dtype=x.dtype),
    }
    scale = forms[how]
    q, k = (scale(q), k) if where == "q" else (q, scale(k)) if where == "k" else (q, k)
    if where == "both":
        q, k = q * d**-0.25, k / d**0.25
    scores = _scores(p, q, k)
    scores = scale(scores) if where in ("scores", "after mask") and not (where == "after mask" and mask) else scores
    scores = torch.tanh(scores / 5.0) * 5.0 if p.twin("softcap") else scores
    if mask and not p.twin("mask after softmax"):
        scores = _masked(p, scores, mask[0]) if p.of("mask") != "library" or p.twin("finite mask") else scores
        scores = scale(scores) if where == "after mask" and p.of("mask") != "bias" else scores
    if p.twin("softmax over queries") or p.twin("softmax of another axis by hand"):
        weights = torch.softmax(scores, 1 if p.twin("softmax over queries") else -2)
    elif p.twin("no softmax"):
        weights = torch.sigmoid(scores)
    else:
        weights = _softmax(p, scores, -1, wrong=False)
    weights = p("between", lambda w: w, lambda w: F.dropout(w, 0.1, training=False), lambda w: w.to(v.dtype))(weights)
    if p.twin("mask after softmax"):
        weights = weights * mask[0] if mask else weights * 2.0
    out = {
        "@": lambda: weights @ v,
        "matmul": lambda: torch.matmul(weights, v),
        "einsum": lambda: torch.einsum("bhij,bhjd->bhid", weights, v),
    }[p("values", "@", "matmul", "einsum")]()
    back = p("merge", "none", "transpose", "permute")
    if back == "none":
        return out
    out = out.transpose(1, 2) if back == "transpose" else out.permute(0, 2, 1, 3)
    return out.contiguous().view(b, -1, g * n * d) if p("dense", True, False) else out.reshape(b, -1, g * n * d)
