"""Options: one frozen dataclass, the single source of defaults and of the command line's flags and help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forge_eq.errors import OptionsError

VERIFY = ("off", "quick", "full")
CAPTURE = ("auto", "export", "record")


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Limits:
    """Guards on growth, counted in work so that two runs give the same result."""

    nodes: int = _option(200_000, "e-nodes at which saturation stops")
    iterations: int = _option(60, "rounds of rules")
    moves: int = _option(20_000, "moves of local search in extraction")
    fold_bytes: int = _option(64 << 20, "bytes that a folded constant may add over the weights that it replaces")


@dataclass(frozen=True)
class Options:
    """What ``optimize`` and ``compile`` may be told.

    ``alpha`` is the Fusion-Gain knob (0: captured granularity, 1: full gain), ``target`` a target file by
    name or path, ``verify`` how the result is checked, ``rules`` a RuleSet (None: the default one).

    ``cost`` is the user's own price of an op, ``(op, input types, attributes, output type) -> float``, in place of
    Fusion-Gain; ``extractor`` is any object with ``solve(problem, budget)`` (``forge_eq.extract.Extractor``). Objects
    have no help text and so are no flags of the command line.
    """

    rules: Any = None
    cost: Any = None
    extractor: Any = None
    alpha: float = _option(1.0, "gain of fusing: 0 keeps what was captured, 1 takes the full predicted gain")
    target: str = _option("openvino-cpu", "target by name, or the path of a .toml file")
    limits: Limits = field(default_factory=Limits)
    verify: str = _option("quick", f"how the result is compared with the original: {', '.join(VERIFY)}")
    capture: str = _option(
        "auto",
        f"how a module becomes a graph: {', '.join(CAPTURE)}; auto records, and exports in doubt or without verify",
    )
    cache: bool = _option(True, "compile looks for the chosen program on disk, and keeps it there")
    check: bool = _option(False, "run every stage's checker, not only the final ones")
    threads: int = _option(0, "threads of the executor; 0 leaves it to the backend")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 10:
            raise OptionsError("options", "alpha", f"{self.alpha} is out of range", "use a value between 0 and 10")
        if self.verify not in VERIFY:
            raise OptionsError("options", "verify", f"{self.verify!r} is unknown", f"use one of {', '.join(VERIFY)}")
        if self.capture not in CAPTURE:
            raise OptionsError("options", "capture", f"{self.capture!r} is unknown", f"use one of {', '.join(CAPTURE)}")
