"""Synthetic extraction problems, and the brute-force optimum to compare with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from forge_eq.extract import ENode, Problem


class Builder:
    """Classes by name; an e-node is (op, children by name, cost)."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self.classes: list[list[ENode]] = []

    def add(self, name: str, op: str, cost: float, *children: str) -> str:
        if name not in self.number:
            self.number[name] = len(self.classes)
            self.classes.append([])
        kids = tuple(self.number[child] for child in children)
        self.classes[self.number[name]].append(ENode(op, kids, cost, (op, *children)))
        return name

    def problem(self, *roots: str) -> Problem:
        return Problem(tuple(map(tuple, self.classes)), tuple(self.number[r] for r in roots), tuple(self.number))


def transformer(layers: int, *, merged: float = 27.0, residual_norm: float = 4.35) -> Problem:
    """A GPT-2-like e-graph after fusion rules, with the two decisions that greedy extraction gets wrong.

    The sum h = x + linear(o) can be Add, Linear+residual or an output of residual+norm; its norm can be LayerNorm(h)
    or the other output. ``residual_norm`` is cheaper than LayerNorm after Linear+residual for the norm alone, dearer
    for both. q, k and v can be three linears or slices of one merged linear at cost ``merged``.
    """
    b = Builder()
    b.add("mask", "mask", 0.1)
    x = b.add("x0", "embed", 5.0)
    norm = _layer_norm(b, "n0.0", x, "p.g0.0")
    for layer in range(layers):
        at = f"{layer}."
        q, k, v = _qkv(b, at, norm, merged)
        o = _attention(b, at, q, k, v)
        x, norm = _residual(b, at + "a", x, o, residual_norm)
        up = _linear(b, at + "up", norm)
        act = b.add(at + "act", "gelu", 3.0, up)
        b.add(at + "act", "linear+gelu", 11.0, norm, f"{at}up.w", f"{at}up.b")
        x, norm = _residual(b, at + "m", x, act, residual_norm)
    b.add("head", "matmul", 100.0, norm)
    return b.problem("head")


def _layer_norm(b: Builder, name: str, x: str, params: str) -> str:
    b.add(params, "param:" + params, 0.01)
    return b.add(name, "layer_norm", 4.0, x, params)


def _linear(b: Builder, name: str, x: str) -> str:
    b.add(name + ".w", f"param:{name}.w", 0.01)
    b.add(name + ".b", f"param:{name}.b", 0.01)
    b.add(name + ".mm", "matmul", 9.5, x, name + ".w")
    b.add(name, "add", 2.0, name + ".mm", name + ".b")
    return b.add(name, "linear", 10.0, x, name + ".w", name + ".b")


def _qkv(b: Builder, at: str, norm: str, merged: float) -> list[str]:
    parts = [_linear(b, at + part, norm) for part in "qkv"]
    b.add(at + "wqkv", "fold", 0.03, *(f"{p}.w" for p in parts))
    b.add(at + "bqkv", "fold", 0.03, *(f"{p}.b" for p in parts))
    b.add(at + "qkv", "linear", merged, norm, at + "wqkv", at + "bqkv")
    for index, part in enumerate(parts):
        b.add(part, f"slice{index}", 0.2, at + "qkv")
    return parts


def _attention(b: Builder, at: str, q: str, k: str, v: str) -> str:
    heads = []
    for part in (q, k, v):
        b.add(part + ".r", "reshape", 0.1, part)
        heads.append(b.add(part + ".h", "transpose", 0.3, part + ".r"))
    b.add(at + "kt", "transpose", 0.3, heads[1])
    b.add(at + "qk", "matmul", 6.0, heads[0], at + "kt")
    b.add(at + "scaled", "mul", 2.0, at + "qk")
    b.add(at + "masked", "add", 2.0, at + "scaled", "mask")
    b.add(at + "probs", "softmax", 3.0, at + "masked")
    b.add(at + "mix", "matmul", 6.0, at + "probs", heads[2])
    b.add(at + "mix", "sdpa", 15.0, *heads, "mask")
    b.add(at + "mix", "sdpa_causal", 14.0, *heads)
    b.add(at + "back", "transpose", 0.3, at + "mix")
    return b.add(at + "o", "reshape", 0.1, at + "back")


def _residual(b: Builder, at: str, x: str, inner: str, residual_norm: float) -> tuple[str, str]:
    proj = _linear(b, at + "proj", inner)
    b.add(at + "ln", f"param:{at}ln", 0.01)
    b.add(at + "both", "residual+norm", residual_norm, x, proj, at + "ln")
    h = b.add(at + "h", "add", 2.0, x, proj)
    b.add(h, "linear+residual", 10.5, inner, proj + ".w", proj + ".b", x)
    b.add(h, "output0", 0.1, at + "both")
    norm = b.add(at + "n", "layer_norm", 4.0, h, at + "ln")
    b.add(norm, "output1", 0.1, at + "both")
    return h, norm


def random_problem(seed: int, *, classes: int = 7, cyclic: bool = True) -> Problem:
    """A small random problem whose roots have finite terms; costs are drawn so that ties occur."""
    rng = random.Random(seed)
    rows: list[list[ENode]] = []
    for c in range(classes):
        row = []
        for _ in range(rng.randint(1, 3)):
            pool = range(classes) if cyclic and rng.random() < 0.5 else range(c)
            kids = tuple(rng.choice(pool) for _ in range(rng.randint(0, 3))) if len(pool) else ()
            op = f"op{rng.randint(0, 4)}"
            row.append(ENode(op, kids, rng.choice((0.1, 1.0, 1.0, 2.5, rng.uniform(0.01, 9.0))), (op, *kids)))
        rows.append(row)
    if not any(not node.children for node in rows[0]):
        rows[0].append(ENode("leaf", (), 1.0, ("leaf",)))
    finite = {c for c in range(classes) if tree_costs(rows)[c] < math.inf}
    roots = rng.sample(sorted(finite), min(len(finite), rng.randint(1, 2)))
    return Problem(tuple(map(tuple, rows)), tuple(roots))


def tree_costs(rows: list[list[ENode]]) -> list[float]:
    """The least tree cost of each class by plain relaxation."""
    cost = [math.inf] * len(rows)
    for _ in rows:
        cost = [min([math.inf, *(n.cost + sum(cost[k] for k in n.children) for n in row)]) for row in rows]
    return cost


def brute_force(problem: Problem) -> float:
    """The least DAG cost over every acyclic choice, by enumeration; inf when there is none."""
    best = math.inf

    def extend(choice: dict[int, int], todo: frozenset[int], paid: float) -> None:
        nonlocal best
        if paid >= best:
            return
        if not todo:
            if acyclic(problem, choice):
                best = paid
            return
        c = max(todo)
        for i, node in enumerate(problem.classes[c]):
            then = choice | {c: i}
            extend(then, (todo | frozenset(node.children)) - then.keys(), paid + node.cost)

    extend({}, frozenset(problem.roots), 0.0)
    return best


def acyclic(problem: Problem, choice: dict[int, int]) -> bool:
    left = {c: set(problem.classes[c][i].children) for c, i in choice.items()}
    while left:
        ready = [c for c, kids in left.items() if not kids & left.keys()]
        if not ready:
            return False
        for c in ready:
            del left[c]
    return True


def shuffled(problem: Problem, seed: int) -> tuple[Problem, Callable[[int, int], ENode]]:
    """The same problem with classes and e-nodes in another order, and the original e-node of a shuffled index."""
    rng = random.Random(seed)
    order = rng.sample(range(len(problem.classes)), len(problem.classes))
    number = {old: new for new, old in enumerate(order)}
    rows, origin = [], []
    for old in order:
        nodes = rng.sample(problem.classes[old], len(problem.classes[old]))
        origin.append(nodes)
        rows.append(tuple(ENode(n.op, tuple(number[k] for k in n.children), n.cost, n.key, n.payload) for n in nodes))
    other = Problem(tuple(rows), tuple(number[r] for r in problem.roots))
    return other, lambda c, i: origin[c][i]
