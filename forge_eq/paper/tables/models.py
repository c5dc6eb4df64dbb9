"""Tables with a row for each model that need no weights, and fidelity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_eq.errors import ForgeError
from forge_eq.paper.plan import TRAINED
from forge_eq.paper.tables.frame import NO_NPU, NONE, Context, beside, change, fewer
from forge_eq.report.sheet import Table


def sizes(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f = context.found("model", spec)
        return f["name"], (f"{f['parameters'] / 1e6:.0f}M", f["hidden"], len(f["layers"]), f["attention"], "float32")

    columns = [(c, c) for c in ("params", "hidden", "layers", "attn", "precision")]
    note = "Published sizes, random weights. Tables that run a model name the layers where memory does not hold all."
    return beside(context, "models", "what is compared", columns, ours, note)


def nodes(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f = context.found("stages", spec)
        return context.found.name("stages", spec), (f["captured"], f["chosen"], change(f["captured"], f["chosen"]))

    columns = [("captured", "initial"), ("chosen", "final"), ("change %", "delta_pct")]
    note = "Calls that compute something; leaves and parts of a multi-output call are not counted."
    return beside(context, "nodes", "calls before and after", columns, ours, note)


def buffers(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f = context.found("stages", spec)
        s, (before, after, _) = f["storage"], f["restricted"]
        values = (s["virtual"], s["physical"], fewer(s["virtual"], s["physical"]), s["peak"] / s["bound"])
        return context.found.name("stages", spec), (*values, fewer(before, after))

    columns = [
        ("virtual", "vregs"),
        ("physical", "physical"),
        ("reduction %", "reduction_pct"),
        ("arena / max-live bound", ""),
        ("transitions' reduction %", "transition_reduction_pct"),
    ]
    note = "A step for each instruction. Transitions: of a device without vector units, as in the table of transitions."
    return beside(context, "buffers", "registers and storage", columns, ours, note)


def transitions(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        before, after, least = context.found("stages", spec)["restricted"]
        return context.found.name("stages", spec), (before, after, least, change(before, after), NO_NPU)

    columns = [
        ("captured order", "before"),
        ("scheduled", "after"),
        ("least of any order", ""),
        ("change %", "delta_pct"),
        ("latency %", "latency_delta_pct"),
    ]
    note = "Target restricted-npu, the same placement; on the CPU there is no transition. bench/npu_paper.py simulates."
    return beside(context, "transitions", "between devices", columns, ours, note)


def optimise(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f, layers = context.found("optimise", spec), context.found("model", spec)["layers"]
        values = (len(layers), f["first"], f["all"], f["all"] - f["without"])
        return context.found.name("optimise", spec), values

    columns = [("layers", "layers"), ("total ms", "total"), ("warm ms", ""), ("attention ms", "attention_fusion")]
    note = (
        "Processor time of saturation and extraction, attention spelled out, all rules in one e-graph. Total: the "
        "first of a process, imports and the declaration of the rules included. Attention: warm, what the time falls "
        "by without its rules; the least of a few rounds in turn."
    )
    return beside(context, "optimise_ms", "time of the optimiser", columns, ours, note)


def fgr(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f = context.found("scores", spec)
        none, full = f["0.0"][0], f["1.0"][0]
        return context.found.name("scores", spec), (none, full, none / full)

    columns = [("Score(0) us", "score_alpha0"), ("Score(1) us", "score_alpha1"), ("FGR", "fgr")]
    note = (
        "FGR = Score(0) / Score(1): what the cost model credits to fusion. Not a speed-up: nothing was run. Our scores "
        "are predicted microseconds, the unit of the paper's is not stated."
    )
    return beside(context, "fgr", "Fusion Gain Ratio", columns, ours, note)


def autotune(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f = context.found("tuning", spec)
        given, tuned = f["given"], f["tuned"]
        values = (given[0], tuned[1], change(given[0], tuned[1]), change(*given), change(*tuned))
        return context.found.name("tuning", spec), values

    columns = [
        ("default us", "default"),
        ("tuned us", "autotuned"),
        ("change %", "delta_pct"),
        ("under the given weights %", ""),
        ("under the tuned weights %", ""),
    ]
    note = (
        f"{context.plan.trials} trials. The paper's change is from the default program under the default weights to "
        "the tuned one under tuned weights: the scale moves with the weights, so that it says nothing about time. The "
        "last columns compare both programs under one set of weights."
    )
    return beside(context, "autotune", "the model's score before and after tuning", columns, ours, note)


def fidelity(context: Context) -> Table:
    """The paper's models have random weights here; a trained model stands below them."""

    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f = context.found("fidelity", spec)
        return f["name"], (*(f"{p:.2f}" for p in f["perplexity"]), f["largest"], f["kl"], f["text"])

    columns = [
        ("perplexity before", "ppl_pre"),
        ("after", "ppl_post"),
        ("largest of logits", "max_abs_logit"),
        ("KL", "kl"),
        ("text", ""),
    ]
    note = (
        f"To torch eager, float32; KL in nats, mean per position; {context.plan.windows} windows of "
        f"{context.plan.tokens} tokens. With random weights perplexity says only that nothing changed."
    )
    made = beside(context, "fidelity", "perplexity and logits", columns, ours, note)
    try:
        name, values = ours(TRAINED)
    except ForgeError as e:
        name, values = TRAINED, (f"failed: {e.reason}", "", "", "", "")
    row = (f"{name} (trained)", *(v for value in values[:4] for v in (value, NONE)), values[4])
    return Table(made.title, made.head, (*made.rows, row), made.note)
