"""Tables of programs that ran: compilation, latency, its spread, energy, attention fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

from forge_eq.errors import ForgeError, RunError
from forge_eq.paper.data import PAPER
from forge_eq.paper.plan import GLUE, paper_row
from forge_eq.paper.tables.frame import NONE, Context, beside
from forge_eq.peers.backends import OURS, STRONG
from forge_eq.peers.energy import ABSENT
from forge_eq.peers.table import Row
from forge_eq.report.sheet import Table

OPENVINO, ONNXRUNTIME = STRONG
THEIRS = {OURS: "forge", OPENVINO: "openvino", ONNXRUNTIME: "onnxruntime"}  # prefixes of the paper's columns
MACHINE = "Float32 on the CPU, the same threads, a fresh process for each backend, in turn."
FAILED = "failed"


def row(context: Context, spec: str, backend: str, tokens: int | None = None) -> Row:
    """A backend at a cell. Raises RunError where it failed."""
    rows = context.found.rows(spec, context.plan.tokens if tokens is None else tokens)
    found = rows.get(backend)
    if found is None or found.failed:
        raise RunError("bench", backend, found.failed if found else "was not run", "read the logs")
    return found


def or_failed(value: Callable[[], Any]) -> Any:
    """One value of a row whose other values may stand without it."""
    try:
        return value()
    except ForgeError:
        return FAILED


def three(
    context: Context, key: str, title: str, unit: str, value: Callable[[Row], Any], note: str, ratio: str = ""
) -> Table:
    """A value for each backend beside the paper's; ``ratio`` names an interval of theirs over ours to add."""

    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        row(context, spec, OURS)
        values = [or_failed(lambda b=b: value(row(context, spec, b))) for b in THEIRS]  # type: ignore[misc]
        if ratio:
            values += [or_failed(lambda b=b: getattr(row(context, spec, b), ratio) or NONE) for b in STRONG]  # type: ignore[misc]
        return context.found.name("cell", spec, str(context.plan.tokens)), values

    columns = [(f"{name}{unit}", column) for name, column in THEIRS.items()]
    columns += [(f"{name} / ours", "") for name in STRONG] if ratio else []
    why = "; ".join(_failures(context))
    return beside(context, key, title, columns, ours, f"{note} {MACHINE}{f' Failed: {why}.' if why else ''}")


def _failures(context: Context) -> list[str]:
    found = []
    for spec in context.plan.models:
        try:
            rows = context.found.rows(spec, context.plan.tokens)
        except ForgeError:
            continue
        found += [f"{spec}, {name}: {r.failed}" for name, r in rows.items() if r.failed]
    return found


def compile_ms(context: Context) -> Table:
    note = "From the module to its first output: capture by torch.export, conversion, build, our guard included."
    return three(context, "compile_ms", "compilation", " ms", lambda r: 1e3 * r.end_to_end, note, "total")


def p99_over_p50(context: Context) -> Table:
    return three(context, "p99_over_p50", "tail", "", lambda r: r.p99 / r.p50, "p99 over p50 of a call.")


def energy(context: Context) -> Table:
    note = "Of a call, from the processor's counters: whole packages, idle cores included."
    return three(context, "energy_mj", "energy", " mJ", lambda r: ABSENT if isnan(r.energy) else r.energy, note)


def wikitext(context: Context) -> Table:
    about = f"a window of {context.plan.tokens} tokens, as of WikiText"
    return _latency(context, "latency_ms_wikitext103", context.plan.tokens, about)


def glue(context: Context) -> Table:
    return _latency(context, "latency_ms_glue", GLUE, f"{GLUE} tokens, as of a sentence of GLUE's SST-2")


def _latency(context: Context, key: str, tokens: int, about: str) -> Table:
    """A row for each model and backend."""
    kinds = ("mean", "p50", "p90", "p99")
    head = (
        "model",
        "backend",
        "calls",
        *(h for k in kinds for h in (f"{k} ms", f"paper: {k}")),
        "theirs / ours",
        "paper: ratio",
    )
    body: list[tuple[Any, ...]] = []
    for spec in context.plan.models:
        name, known = context.found.name("cell", spec, str(tokens)), paper_row(spec)
        for backend, prefix in THEIRS.items():
            paper = [context.paper(key, known, f"{prefix}_{k}") for k in kinds]
            base = context.paper(key, known, f"forge_{kinds[0]}")
            their = paper[0] / base if NONE not in (paper[0], base) and backend != OURS else NONE
            try:
                r = row(context, spec, backend, tokens)
                calls, values, ratio = r.calls, [getattr(r, k) for k in kinds], r.latency or NONE
            except ForgeError as e:
                calls, values, ratio = 0, [f"failed: {e.reason}", "", "", ""], ""
            pairs = (v for pair in zip(values, paper, strict=True) for v in pair)
            body.append((name, backend, calls, *pairs, ratio, their))
    note = f"A call with {about}. Ratios: median [95 % interval] here, of means in the paper. {MACHINE} Paper: {PAPER}."
    return Table(f"{key}: latency", head, tuple(body), note)


def cei(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        seconds = row(context, spec, OURS).end_to_end
        values = [or_failed(lambda b=b: index(context, spec, b)) for b in STRONG]  # type: ignore[misc]
        return context.found.name("cell", spec, str(context.plan.tokens)), (*values, seconds)

    columns = [("CEI, OpenVINO", "cei_openvino"), ("CEI, ONNX Runtime", "cei_onnxruntime"), ("compile s", "compile_s")]
    return beside(context, "cei", "Compilation Efficiency Index", columns, ours, "The formula is in the next table.")


def index(context: Context, spec: str, backend: str) -> float:
    """CEI: the latency's ratio over the seconds of our compilation."""
    theirs, ours = row(context, spec, backend), row(context, spec, OURS)
    if theirs.latency is None:
        raise RunError("bench", backend, "was not timed beside ours", "run the cell again")
    return theirs.latency.middle / ours.end_to_end


def cei_formula(context: Context) -> Table:
    formula = context.theirs.get("cei_formula", NONE)
    ours = "CEI_B = (median over blocks of latency_B / latency_forge_eq) / seconds from the module to the first output"
    note = "Milliseconds of compilation weigh as much as any speed-up: compare it within one machine only."
    return Table("cei_formula: how CEI is computed", ("here", "paper"), ((ours, formula),), note)


def raw_runs(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        runs = row(context, spec, OURS).runs
        values = [runs[k] if k < len(runs) else NONE for k in range(3)]
        return context.found.name("cell", spec, str(context.plan.tokens)), (*values, sum(runs) / len(runs))

    columns = [("run 1", "run1"), ("run 2", "run2"), ("run 3", "run3"), ("mean of runs", "mean")]
    note = f"Means of our calls in milliseconds; a run is a fresh process; {context.plan.tokens} tokens."
    return beside(context, "raw_latency_runs", "latency of each run", columns, ours, note)


def attention(context: Context) -> Table:
    def ours(spec: str) -> tuple[str, Sequence[Any]]:
        f, layers = context.found("fusion", spec), len(context.found("model", spec)["layers"])
        change = 100 * (1 / f["ratio"] - 1)
        return f["name"], (layers, f["with"], f["without"], change, f["ratio"], f["low"])

    columns = [
        ("layers", "layers"),
        ("with ms", "with"),
        ("without ms", "without"),
        ("change %", "delta_pct"),
        ("without / with", ""),
        ("lower 95 %", ""),
    ]
    note = (
        "Exported with attention spelled out, with every rule and without the family of attention, both in one process "
        f"in turn; {context.plan.tokens} tokens. OpenVINO fuses some attention by itself. Layers: of the whole model."
    )
    return beside(context, "attention_fusion_latency", "with and without attention fusion", columns, ours, note)
