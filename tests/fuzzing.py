"""Random programs through the compiler: what kind of program a seed is, what is compared, and what the result is.

A seed has a kind, by its last digit (``KINDS``). ``examine(seeds)`` optimises the programs with every rule, runs the
chosen program by torch, and compares it with the program as it was written; with ``compiled`` it also compiles them for
OpenVINO and calls that twice, on the examples and on inputs that the guard has not seen. Programs of a kind go through
side by side, ``GROUP`` in one graph: most of the time of a small program is the engine's own. What then looks wrong is
looked at alone.

The criterion, for each output and each argument or buffer that the program writes:
- ``bits``: equal bits (NaN whatever its payload). Nothing less passes of kind ``special``: odd values, rules of class
  ``bit`` only, where every op that was captured has one correct result.
- ``close``: ``verify.criterion``: dtype, shape, places of NaN and infinities, then PyTorch's own tolerances or an error
  against float64 at most twice the original's (see docs/decisions/0005).
- ``rounding``: no further from the original than ``MARGIN`` times what the original itself moves when each of its
  operations rounds to its dtype at random, ``TRIALS`` times over. Such a program (a difference of equals, a comparison
  at a tie) has no digits there.
All else is a ``mismatch``. ``refused`` is a typed error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import forge_eq
from forge_eq.capture.execute import run_graph
from forge_eq.errors import ForgeError
from forge_eq.ir.evaluate import apply, oracle_array, oracle_dtype
from forge_eq.ir.graph import Builder, Graph, Node, Signature, tensor_type
from forge_eq.ir.text import text
from forge_eq.ir.types import FLOATS, TensorType
from forge_eq.rules import RuleSet, default
from forge_eq.run.differential import float64_outputs
from forge_eq.verify.criterion import compare
from random_modules import RandomModule
from random_programs import random_program
from random_vocabulary import inputs_of, random_vocabulary

KINDS = ("composites",) * 4 + ("wide",) * 4 + ("special", "module")  # by the last digit of the seed
GROUP = {"composites": 20, "wide": 20, "special": 20, "module": 10}
EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
TRIALS, MARGIN = 8, 4.0
ORDER = ("bits", "close", "rounding", "refused", "mismatch")  # from best to worst
Found = tuple[str, str]  # one of ORDER, and why


@dataclass(frozen=True)
class Outcome:
    """``result`` is one of ``ORDER``; ``reason`` tells about all but the first two."""

    seed: int
    kind: str
    result: str
    reason: str = ""
    repaired: tuple[str, ...] = ()  # what the guard found wrong in the backend and put right, in its group


def kind_of(seed: int) -> str:
    return KINDS[seed % len(KINDS)]


@cache
def bit_rules() -> RuleSet:
    return RuleSet(r for r in default if r.exact == "bit")


def examine(seeds: Sequence[int], compiled: bool = False, rules: RuleSet | None = None) -> list[Outcome]:
    """The outcome of each seed, the worse one where it is compiled too. ``rules`` stand in for the default ones."""
    found: list[Outcome] = []
    for kind, size in GROUP.items():
        mine = [s for s in seeds if kind_of(s) == kind]
        for first in range(0, len(mine), size):
            found += _group(mine[first : first + size], kind, compiled, rules)
    return sorted(found, key=lambda o: o.seed)


def _group(seeds: Sequence[int], kind: str, compiled: bool, rules: RuleSet | None) -> list[Outcome]:
    chosen = rules or (bit_rules() if kind == "special" else default)
    try:
        found = (_modules if kind == "module" else _graphs)(seeds, kind, compiled, chosen)
    except ForgeError as e:
        if len(seeds) > 1:
            return [o for seed in seeds for o in _group([seed], kind, compiled, rules)]
        return [Outcome(seeds[0], kind, "refused", f"{type(e).__name__}: {e.stage}: {e.reason}")]
    if len(seeds) == 1:
        return found
    alone = {o.seed: _group([o.seed], kind, compiled, rules)[0] for o in found if o.result == "mismatch"}
    beside = " (only beside others)"
    wrong = {s: o if o.result == "mismatch" else replace(o, result="mismatch", reason=beside) for s, o in alone.items()}
    return [wrong.get(o.seed, o) for o in found]


def worse(a: Found, b: Found) -> Found:
    return max(a, b, key=lambda f: ORDER.index(f[0]))


# ------------------------------------------------------------------------------------------- programs as graphs


def program(seed: int) -> Graph:
    """The graph of a seed of any kind but ``module``."""
    kind = kind_of(seed)
    return random_program(seed) if kind == "composites" else random_vocabulary(seed, kind == "special")


def joined(graphs: Sequence[Graph]) -> Graph:
    """All in one, inputs and outputs in order."""
    b, outputs, constants, count = Builder(name="joined"), list[int](), dict[str, torch.Tensor](), 0
    for k, graph in enumerate(graphs):
        ids: list[int] = []
        for node in graph.nodes:
            attrs = node.attrs
            if node.op.leaf == "input":
                attrs = (count + attrs[0],)
            if node.op.leaf == "constant":
                attrs = (f"p{k}.{node.attrs[0]}",)
                constants[attrs[0]] = graph.constants[node.attrs[0]]
            ids.append(b.add(node.op, tuple(ids[i] for i in node.inputs), attrs, node.type, node.origin))
        count += len(graph.inputs)
        outputs += [ids[i] for i in graph.outputs]
    return b.finish(tuple(outputs), constants=constants, signature=Signature(tuple(f"x{i}" for i in range(count))))


def _graphs(seeds: Sequence[int], kind: str, compiled: bool, rules: RuleSet) -> list[Outcome]:
    special = kind == "special"
    graphs = [program(s) for s in seeds]
    whole = joined(graphs).live()
    batches = [[inputs_of(g, s + k, special) for g, s in zip(graphs, seeds, strict=True)] for k in (0, 1)]
    flat = [[x for part in batch for x in part] for batch in batches]
    made = forge_eq.optimize(whole, tuple(flat[0]), rules=rules, verify="off")
    runs: list[tuple[bool, Callable[..., Any]]] = [(special, made.module)]
    repaired: tuple[str, ...] = ()
    if compiled:
        other = forge_eq.compile(whole, tuple(flat[0]), rules=rules)
        repaired = repairs(other)
        runs.append((False, other))  # OpenVINO's kernels promise no bits
    found: list[Found] = [("bits", "")] * len(seeds)
    for strict, run in runs:
        for batch, values in zip(batches, flat, strict=True):
            left = list(pytree.tree_leaves(run(*values)))
            for k, (graph, inputs) in enumerate(zip(graphs, batch, strict=True)):
                got = [left.pop(0) for _ in graph.outputs]
                exact = strict and all(n.op.traits.exact for n in graph.live().nodes)
                found[k] = worse(found[k], judge(graph, inputs, got, run_graph(graph, inputs), exact))
    shown = f"\n{text(whole)}\nbecame\n{text(made.graph)}" if len(seeds) == 1 else ""
    return [
        Outcome(s, kind, result, reason + shown * (result == "mismatch"), repaired)
        for s, (result, reason) in zip(seeds, found, strict=True)
    ]


def repairs(program: Any) -> tuple[str, ...]:
    """What the guard found wrong in the backend and put right."""
    return tuple(f"{r.node}: {r.reason}" for r in program.remarks if r.stage == "guard" and r.kind == "failed")


# ------------------------------------------------------------------------------------------- programs as modules


class Beside(nn.Module):
    """Modules side by side: one export serves them all."""

    def __init__(self, modules: Sequence[RandomModule]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def more(self, k: int) -> tuple[Any, ...]:
        return tuple(x for m in self.parts for x in m.more(k))

    def forward(self, *args: Any) -> list[Any]:
        left = list(args)
        return [m(*(left.pop(0) for _ in m.kinds)) for m in self.parts]


def _modules(seeds: Sequence[int], kind: str, compiled: bool, rules: RuleSet) -> list[Outcome]:
    module = Beside([RandomModule(s) for s in seeds]).eval()
    made = forge_eq.optimize(copy.deepcopy(module), module.more(0), rules=rules, verify="off")
    runs, repaired = [made.module], ()
    if compiled:
        other = forge_eq.compile(copy.deepcopy(module), module.more(0), rules=rules)
        repaired = repairs(other)
        runs.append(other)  # type: ignore[arg-type]
    found: list[Found] = [("bits", "")] * len(seeds)
    for run in runs:
        eager = copy.deepcopy(module)
        for k in (0, 1):  # the second call sees the buffers as the first left them
            found = [worse(f, g) for f, g in zip(found, _call(eager, run, k, made.captured), strict=True)]
    shown = f"\n{text(made.captured.live())}\nbecame\n{text(made.graph)}" if len(seeds) == 1 else ""
    return [
        Outcome(s, kind, result, reason + shown * (result == "mismatch"), repaired)
        for s, (result, reason) in zip(seeds, found, strict=True)
    ]


def _call(eager: Beside, other: Any, k: int, captured: Graph) -> list[Found]:
    """One call: results, their structure, and what the arguments hold afterwards."""
    states = [m.state.clone() for m in eager.parts]
    args, theirs = list(eager.more(k)), list(eager.more(k))
    with torch.no_grad():
        want, got = eager(*args), other(*theirs)
    found: list[Found] = []
    for module, state, w, g in zip(eager.parts, states, want, got, strict=True):
        mine = [args.pop(0) for _ in module.kinds]
        (due, due_spec), (have, spec) = (
            pytree.tree_flatten((w, mine)),
            pytree.tree_flatten((g, [theirs.pop(0) for _ in module.kinds])),
        )
        if due_spec != spec:
            found.append(("mismatch", f"call {k}: the structure is {spec} where {due_spec} is due"))
            continue
        verdict = judge(None, (), have, due, False)
        if verdict[0] == "mismatch":  # how far does the original itself move?
            verdict = _moved(module, state, module.more(k), have, due) or verdict
        found.append(verdict)
    return found


def _moved(
    module: RandomModule, state: torch.Tensor, args: Sequence[torch.Tensor], got: Sequence[Any], due: Sequence[Any]
) -> Found | None:
    """``rounding`` where the module, run by torch with each result off by a rounding, moves as much; else None."""
    trials = []
    for k in range(TRIALS):
        copied, mine = copy.deepcopy(module), [a.clone() for a in args]
        copied.state.copy_(state)
        with torch.no_grad(), Jitter(k):
            trials.append(pytree.tree_leaves((copied(*mine), mine)))
    spread = [[_wide(v) for v in each] for each in zip(*trials, strict=True)]
    fits = all(_within(g, w, s) for g, w, s in zip(got, due, spread, strict=True))
    return ("rounding", "moves as much under rounding") if fits else None


class Jitter(TorchDispatchMode):
    """Each float result of an arithmetic call is off by up to two units in the last place."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if (
            not isinstance(made, torch.Tensor)
            or not made.is_floating_point()
            or func.is_view
            or func._schema.is_mutable
        ):
            return made
        step = torch.randint(-2, 3, made.shape, generator=self.generator).to(made.dtype)
        return made + made * step * torch.finfo(made.dtype).eps


# ------------------------------------------------------------------------------------------- the criterion


def judge(graph: Graph | None, inputs: Sequence[Any], got: Sequence[Any], want: Sequence[Any], strict: bool) -> Found:
    """The outputs of one call; ``strict`` demands bits. With the graph, float64 is asked when it is needed."""
    if all(_same(g, w) for g, w in zip(got, want, strict=True)):
        return "bits", ""
    if strict:
        return "mismatch", f"other bits: {got} where {want} is due"
    verdict = compare(got, want, None if graph is None else lambda: float64_outputs(graph, inputs))
    if verdict:
        return "close", ""
    if graph is not None:
        trials = [_rounded(graph, inputs, np.random.default_rng(k)) for k in range(TRIALS)]
        if all(_within(g, w, s) for g, w, s in zip(got, want, zip(*trials, strict=True), strict=True)):
            return "rounding", verdict.reason
    return "mismatch", verdict.reason


def _same(g: Any, w: Any) -> bool:
    """Equal bits; NaN equals NaN."""
    if not isinstance(w, torch.Tensor):
        return bool(g == w)
    if not isinstance(g, torch.Tensor) or g.dtype != w.dtype or g.shape != w.shape:
        return False
    if not w.is_floating_point():
        return torch.equal(g, w)
    known = ~w.isnan()
    return bool(
        torch.equal(g.isnan(), ~known)
        and torch.equal(g[known], w[known])
        and torch.equal(g[known].signbit(), w[known].signbit())
    )


def _within(g: Any, w: Any, trials: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether ``g`` is no further from the original than roundings move the original itself."""
    if not isinstance(g, torch.Tensor) or g.dtype != w.dtype or g.shape != w.shape:
        return False
    got, due = _wide(g), _wide(w)
    stack = np.stack([due, *trials])
    if got.dtype.kind != "f":
        return bool((got == stack).any(0).all())
    finite = np.isfinite(stack).all(0)
    # Where the original is finite in one rounding and not in another, or a comparison falls either way, all goes.
    odd = ~finite & ((got == stack) | (np.isnan(got) & np.isnan(stack))).any(0)
    room = np.where(finite, stack.max(0) - stack.min(0), 0.0)
    size = float(np.abs(due[finite]).max(initial=0.0))
    ok = finite & (np.abs(got - due) <= MARGIN * room.max(initial=0.0) + 1e-6 * size)
    return bool((ok | odd).all())


def _wide(value: torch.Tensor) -> np.ndarray[Any, Any]:
    return (value.double() if value.is_floating_point() else value).numpy()


def _rounded(graph: Graph, inputs: Sequence[Any], rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """The outputs by the references, each float result off by up to two units in the last place of its dtype."""
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node.op.leaf == "input":
                values.append(oracle_array(inputs[node.attrs[0]], tensor_type(node)))
            elif node.op.leaf == "constant":
                values.append(oracle_array(graph.constants[node.attrs[0]], tensor_type(node)))
            else:
                made = apply(
                    node.op, [values[i] for i in node.inputs], [graph.nodes[i].type for i in node.inputs], node.attrs
                )
                values.append(_noisy(node, made, rng))
    return [np.asarray(values[i]) for i in graph.outputs]


def _noisy(node: Node, made: Any, rng: np.random.Generator) -> Any:
    if node.op.leaf or not isinstance(node.type, TensorType) or node.type.dtype not in FLOATS:
        return made
    made = np.asarray(made, dtype=oracle_dtype(node.type.dtype))
    if node.op.cost.cost_class == "movement" or node.op.traits.view:
        return made
    made = made * (1 + EPS[node.type.dtype] * rng.integers(-2, 3, made.shape))
    return made.astype(np.float32).astype(np.float64) if node.type.dtype == "f32" else made
