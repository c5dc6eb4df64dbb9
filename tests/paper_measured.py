"""Measurements and tables of the paper's form, small and made up, for the tests of ``forge_eq.paper``."""

from __future__ import annotations

from typing import Any

from forge_eq.paper.gather import Found
from forge_eq.paper.plan import GLUE, TRAINED, Plan, Unit, called, paper_row
from forge_eq.peers.backends import OURS, STRONG
from forge_eq.peers.statistics import Interval
from forge_eq.peers.table import Row, data

GPT2, LLAMA = "gpt2-124m", "llama-3.1-8b"
PLAN = Plan(models=(GPT2, LLAMA), runs=3)


def _rows(*columns: str) -> dict[str, Any]:
    """A table with a row for both models; figures count up, so that each is told from the others."""
    values = [float(k + 1) for k in range(len(columns))]
    return {
        "cols": list(columns),
        "rows": {paper_row(GPT2): values, paper_row(LLAMA): [10 * v for v in values]},
    }


def _named(rows: list[str], *columns: str) -> dict[str, Any]:
    return {"cols": list(columns), "rows": {r: [float(k + 2) for k in range(len(columns))] for r in rows}}


_LATENCY = [f"{b}_{k}" for b in ("forge", "openvino", "onnxruntime") for k in ("mean", "p50", "p90", "p99")]
_PASSES = ["dce", "cse", "constant_folding", "device_constant", "attention_fusion", "operator_fusion"]
THEIRS: dict[str, Any] = {
    "models": _rows("params", "hidden", "layers", "attn", "precision"),
    "compile_ms": _rows("forge", "openvino", "onnxruntime"),
    "nodes": _rows("initial", "final", "delta_pct"),
    "fidelity": _rows("ppl_pre", "ppl_post", "max_abs_logit", "kl"),
    "latency_ms_wikitext103": _rows(*_LATENCY),
    "latency_ms_glue": _rows(*_LATENCY),
    "energy_mj": _rows("forge", "openvino", "onnxruntime"),
    "passes_gpt2": {**_named(_PASSES, "time_ms", "delta_nodes"), "total_ms": 208},
    "phases_gpt2_ms": {"capture": 773.5, "optimise": 208, "lower_alloc_schedule": 8, "total": 1000},
    "optimise_ms": _rows("layers", "total", "attention_fusion"),
    "fgr": _rows("score_alpha0", "score_alpha1", "fgr"),
    "cei": _rows("cei_openvino", "cei_onnxruntime", "compile_s"),
    "cei_formula": "a formula",
    "ablation_gpt2": _named(["all", *(f"no_{p}" for p in _PASSES[:-1])], "score", "delta_pct"),
    "attention_fusion_latency": _rows("layers", "with", "without", "delta_pct"),
    "buffers": _rows("vregs", "physical", "reduction_pct", "transition_reduction_pct"),
    "alpha_gpt2": _named(["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"], "score", "nodes", "fused_ops"),
    "autotune": _rows("default", "autotuned", "delta_pct"),
    "variance_gpt2": _named(
        ["compile_ms", "latency_ms", "p99_ms", "node_reduction_pct", "fgr"], "mean", "std", "cv_pct"
    ),
    "transitions": _rows("before", "after", "delta_pct", "latency_delta_pct"),
    "p99_over_p50": _rows("forge", "openvino", "onnxruntime"),
    "raw_latency_runs": _rows("run1", "run2", "run3", "mean"),
    "headline": {"node_reduction_pct": [14.2, 21.9], "max_abs_logit": 2.1e-05, "autotune_extra_compile_ms": 200},
    "hardware": "another machine",
}


def backend(name: str, ms: float, seconds: float) -> Row:
    """A backend that takes ``ms`` a call, and ``seconds`` to its first output; ours takes 2 and 1."""
    ratio = None if name == OURS else Interval(ms / 2, ms / 2 - 0.1, ms / 2 + 0.1)
    total = None if name == OURS else Interval(seconds, seconds, seconds)
    return Row(
        name,
        end_to_end=seconds,
        p50=ms,
        p90=ms + 1,
        p99=2 * ms,
        mean=ms + 0.5,
        runs=[ms, ms + 1],
        latency=ratio,
        total=total,
    )


def cell() -> list[dict[str, Any]]:
    rows = [backend(OURS, 2.0, 1.0), backend(STRONG[0], 4.0, 5.0), Row(STRONG[1], failed="ConversionError: no")]
    return [data(r) for r in rows]


def measured(plan: Plan = PLAN) -> Found:
    """Every measurement that any table needs."""
    found = Found()

    def put(kind: str, spec: str, value: Any, more: str = "") -> None:
        found.data[Unit(kind, spec, more)] = {"name": called(spec), "found": value}

    for spec in plan.models:
        put("model", spec, {"name": spec, "parameters": 125_000_000, "hidden": 768, "attention": "MHA",
                            "layers": [100, 100], "rest": 50})  # fmt: skip
        storage = {"virtual": 50, "physical": 20, "peak": 8, "bound": 8}
        stages = {"captured": 100, "chosen": 80, "storage": storage, "restricted": [40, 10, 10], "seconds": {}}
        put("stages", spec, stages)
        put("optimise", spec, {"first": 200.0, "all": 100.0, "without": 70.0})
        put("scores", spec, {"0.0": [300.0, 100, 0], "1.0": [100.0, 80, 24]})
        put("tuning", spec, {"given": [100.0, 95.0], "tuned": [60.0, 50.0], "trials": 50, "seconds": 0.25})
        put("fusion", spec, {"name": spec, "with": 2.0, "without": 3.0, "ratio": 1.5, "low": 1.4})
        put("fidelity", spec, {"name": spec, "text": "random tokens", "perplexity": [99.0, 99.0], "largest": 1e-6,
                               "kl": 2e-10})  # fmt: skip
        for tokens in (plan.tokens, GLUE):
            put("cell", spec, cell(), str(tokens))
    put(
        "fidelity",
        TRAINED,
        {"name": TRAINED, "text": "WikiText", "perplexity": [11.25, 11.25], "largest": 3e-5, "kl": 1e-9},
    )
    families = ["attention", "constants", "device", "fusion", "slices"]
    left = {n: [50.0, 90 + k, 110.0 + k] for k, n in enumerate(families)}
    put("rules", GPT2, {"captured": [0.0, 100, 0.0], "": [60.0, 86, 100.0], **left})
    for number in range(plan.runs):
        seconds = {"capture": 0.5, "saturate": 0.1, "extract": 0.1, "lower": 0.01, "schedule": 0.01, "alloc": 0.01,
                   "build": 0.4, "guard": 0.2}  # fmt: skip
        put("run", GPT2, {"compile": 1000.0 + number, "stages": seconds, "ms": [1.0, 2.0, 3.0 + number],
                          "calls": [100, 80], "fgr": 3.0}, str(number + 1))  # fmt: skip
    return found


def without(found: Found, *units: Unit) -> Found:
    """The same where some failed."""
    left = Found()
    left.data = {u: v for u, v in found.data.items() if u not in units}
    left.failed = dict.fromkeys(units, "it broke")
    return left
