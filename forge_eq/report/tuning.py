"""What tuning found, as text."""

from __future__ import annotations

from typing import Any

from forge_eq.report.tables import table


def tuning_text(tuned: Any) -> str:
    """Objective, settings and, if programs were timed, how they compare. Takes a ``forge_eq.tune.Tuned``."""
    unit = "us predicted" if tuned.objective == "predicted" else "Kendall's tau"
    other = len(tuned.history)
    lines = [
        f"{other} trials over one saturation, {tuned.extractions} extractions here, {tuned.programs} distinct programs",
        f"objective: {unit}; settings given {tuned.base:.6g}, best {tuned.value:.6g}",
    ]
    rows = [
        (one.name, f"{tuned.settings[one.name]:.4g}", f"{tuned.importance.get(one.name, 0.0):.2f}")
        for one in tuned.space
    ]
    lines += ["", *table(("setting", "best", "importance"), rows)]
    if tuned.timing is None:
        lines.append("\nNothing was timed: the objective is the cost model's own. Use --measure to time programs.")
        return "\n".join(lines)
    timing = tuned.timing
    body = [(name, f"{ratio:.3f}", f"{low:.3f}") for name, (ratio, low) in timing.ratios.items()]
    lines += ["", *table(("program", "captured / it", "lower 95 %"), body)]
    before, after = tuned.agreement
    lines.append(f"A/A spread {timing.noise:.1%}; used: {timing.winner}")
    lines.append(
        f"agreement of predicted with measured order (tau): settings given {before:.2f}, best trial {after:.2f}"
    )
    return "\n".join(lines)
