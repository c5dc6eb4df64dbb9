"""Tables and criteria of a comparison, from the rows of its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from forge_eq.peers.backends import OURS, STRONG
from forge_eq.peers.cases import DECODE, Cell
from forge_eq.peers.measure import Plan
from forge_eq.peers.statistics import Interval, geomean
from forge_eq.peers.table import PHASES, Row, best, data, narrowest, spread
from forge_eq.report.sheet import Sheet, where

MIB = 1 << 20
MS = 1e3
Found = Mapping[Cell, Sequence[Row]]


def sheet(found: Found, plan: Plan) -> Sheet:
    """The whole comparison."""
    setting = f"{plan.rounds} rounds of fresh processes, {plan.blocks} turns of {plan.seconds:g} s each"
    made = Sheet("forge_eq beside its peers", where(plan.threads, measured=setting))
    for cell, rows in found.items():
        _latency(made, cell, rows)
        _set_up(made, cell, rows)
    _summary(made, found)
    made.figures["cells"] = [{"cell": asdict(c), "rows": [data(r) for r in rows]} for c, rows in found.items()]
    return made


def _latency(made: Sheet, cell: Cell, rows: Sequence[Row]) -> None:
    head = (
        "backend",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99/p50",
        "cpu ms",
        "their time / ours",
        "MiB above weights",
        "largest difference",
    )
    body = [
        (r.backend, r.p50, r.p90, r.p99, r.tail or "-", r.cpu, r.latency or "-", r.memory / MIB, r.difference)
        if not r.failed
        else (r.backend, r.failed, *[""] * 7)
        for r in rows
    ]
    made.table(f"{cell.name}: a call", head, body, "Ratios: median [95 % interval]; above 1 we are faster.")


def _set_up(made: Sheet, cell: Cell, rows: Sequence[Row]) -> None:
    body = [
        (r.backend, *(r.phases[p] for p in PHASES), r.after_capture, r.compile or "-", r.end_to_end, r.total or "-")
        for r in rows
        if not r.failed
    ]
    head = (
        "backend",
        *PHASES,
        "after capture",
        "after capture, theirs / ours",
        "to first output",
        "to first output, theirs / ours",
    )
    made.table(f"{cell.name}: set-up, seconds", head, body, "Wall time; import and load are in no sum.")


def _summary(made: Sheet, found: Found) -> None:
    body, by_case = [], dict[str, list[Interval]]()
    for cell, rows in found.items():
        peer, noise = best(rows, STRONG), spread(rows)
        if peer is None or peer.latency is None:
            continue
        by_case.setdefault(cell.case, []).append(peer.latency)
        narrow = narrowest(rows)
        ours = next(r for r in rows if r.backend == OURS)
        static = next((r for r in rows if r.backend == STRONG[0] and not r.failed), None)
        memory = ours.memory / static.memory if static else float("nan")
        body.append(
            (
                cell.name,
                peer.backend,
                peer.latency,
                noise or "-",
                verdict(peer.latency, noise),
                ours.tail or "-",
                (narrow and narrow.tail) or "-",
                memory,
            )
        )
    head = (
        "cell",
        "better strong peer",
        "their time / ours",
        "ours again / ours",
        "says",
        "our p99/p50",
        "best peer's",
        "memory, ours / OpenVINO static",
    )
    made.table("beside the better of static OpenVINO and ONNX Runtime", head, body)
    for case, limit in ((DECODE, 1.08), ("16", 1.04), ("128", 0.98), ("512", 0.98)):
        if case in by_case:
            name = f"{limit:g} over the geometric mean of peer / ours, {case if case == DECODE else case + ' tokens'}"
            made.demand(name, limit / geomean([i.middle for i in by_case[case]]), 1.0)


def verdict(ratio: Interval, noise: Interval | None) -> str:
    """What a ratio says, given how far our own second process was from the first."""
    low = 1.0 / noise.high if noise is not None and noise.high > 1 else 1.0
    low = min(low, noise.low) if noise is not None else low
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < low else "within the noise"
