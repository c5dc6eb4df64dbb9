"""What the sittings of a cell say: set-up, latency, tail, memory, differences, and ratios with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

from forge_eq.peers.backends import AGAIN, BACKENDS, OURS, RECORD
from forge_eq.peers.measure import Turn
from forge_eq.peers.statistics import Interval, blocks, interval, percentile, ratios, tail

PHASES = ("import", "load", "capture", "convert", "own", "build", "guard", "other", "first call")
AFTER_CAPTURE = ("convert", "own", "build", "guard")


@dataclass
class Row:
    """One backend at one cell. Times are seconds of set-up and milliseconds of a call; memory is bytes."""

    backend: str
    failed: str = ""
    phases: dict[str, float] = field(default_factory=dict)  # medians over sittings, wall
    processor: dict[str, float] = field(default_factory=dict)
    end_to_end: float = float("nan")  # module to first output, wall
    p50: float = float("nan")
    p90: float = float("nan")
    p99: float = float("nan")
    mean: float = float("nan")
    runs: list[float] = field(default_factory=list)  # the mean of each process
    calls: int = 0  # that the percentiles are of
    cpu: float = float("nan")  # processor milliseconds of a call, median
    energy: float = float("nan")  # millijoules of a call, median over blocks; NaN where it cannot be read
    memory: float = float("nan")  # peak above imports and weights
    difference: float = float("nan")  # from eager, largest
    tail: Interval | None = None  # p99 over p50
    latency: Interval | None = None  # theirs over ours
    compile: Interval | None = None  # after capture, theirs over ours
    total: Interval | None = None  # end to end, theirs over ours

    @property
    def after_capture(self) -> float:
        return sum(self.phases.get(p, 0.0) for p in AFTER_CAPTURE)


def rows(sittings: Sequence[Mapping[str, Turn]], weights: int) -> list[Row]:
    """A row for each backend, in the order of the list of backends."""
    found = []
    for name in BACKENDS:
        turns = [s[name] for s in sittings if name in s]
        if not turns:
            continue
        done = [t for t in turns if not t.failed and t.wall]
        row = _row(name, done, weights) if done else Row(name, failed=turns[0].failed or "no samples")
        if done and name != OURS:
            both = [(s[name], s[OURS]) for s in sittings if _good(s, name) and _good(s, OURS)]
            row.latency = interval(ratios([_blocks(t) for t, _ in both], [_blocks(o) for _, o in both]))
            row.compile = interval([[_after(t) / _after(o)] for t, o in both if _after(o)]) if _after(done[0]) else None
            row.total = interval([[_total(t) / _total(o)] for t, o in both])
        found.append(row)
    return found


def _row(name: str, turns: Sequence[Turn], weights: int) -> Row:
    wall = [v / 1e6 for t in turns for b in t.wall for v in b]
    cpu = [v / 1e6 for t in turns for b in t.processor for v in b]
    phases = {p: median(t.setup["wall"].get(p, 0.0) for t in turns) for p in PHASES}
    processor = {p: median(t.setup["processor"].get(p, 0.0) for t in turns) for p in PHASES}
    memory = median(t.peak - t.setup["peak"]["import"] - weights for t in turns)
    return Row(
        name,
        phases=phases,
        processor=processor,
        end_to_end=median(map(_total, turns)),
        p50=percentile(wall, 50),
        p90=percentile(wall, 90),
        p99=percentile(wall, 99),
        mean=mean(wall),
        runs=[mean([v / 1e6 for b in t.wall for v in b]) for t in turns],
        calls=len(wall),
        cpu=percentile(cpu, 50),
        energy=percentile([v / 1e3 for t in turns for v in t.energy], 50),
        memory=float(memory),
        difference=max(t.setup["difference"] for t in turns),
        tail=tail([t.wall for t in turns]),
    )


def _good(sitting: Mapping[str, Turn], name: str) -> bool:
    return name in sitting and not sitting[name].failed and bool(sitting[name].wall)


def _blocks(turn: Turn) -> list[float]:
    return blocks(turn.wall)


def _after(turn: Turn) -> float:
    return float(sum(turn.setup["wall"].get(p, 0.0) for p in AFTER_CAPTURE))


def _total(turn: Turn) -> float:
    return float(turn.setup["end to end"]["wall"])


def best(found: Sequence[Row], among: Sequence[str]) -> Row | None:
    """The quickest of some backends that ran."""
    ran = [r for r in found if r.backend in among and not r.failed]
    return min(ran, key=lambda r: r.latency.middle if r.latency else r.p50, default=None)


def narrowest(found: Sequence[Row]) -> Row | None:
    """The peer whose slow calls are nearest to its median."""
    peers = [r for r in found if not r.failed and r.tail and r.backend not in (OURS, AGAIN, RECORD)]
    return min(peers, key=lambda r: r.tail.middle if r.tail else 0.0, default=None)


def spread(found: Sequence[Row]) -> Interval | None:
    """How far our own second process was from the first."""
    return next((r.latency for r in found if r.backend == AGAIN), None)


def data(row: Row) -> dict[str, Any]:
    return asdict(row)


def from_data(found: Mapping[str, Any]) -> Row:
    kept = dict(found)
    for name in ("tail", "latency", "compile", "total"):
        kept[name] = Interval(**kept[name]) if kept.get(name) else None
    return Row(**kept)
