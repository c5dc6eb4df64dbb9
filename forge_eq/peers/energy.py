"""Energy of the processor's packages, from the counters of Linux's powercap (Intel's and AMD's RAPL), where readable.

The counters are of whole packages: other processes and idle cores count too. They wrap around; a single wrap between
two readings is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
ABSENT = "absent: no readable RAPL"


def counters(folder: Path = POWERCAP) -> dict[Path, int]:
    """Microjoules so far of each package; empty where there is none or it may not be read."""
    found = {}
    for zone in sorted(folder.glob("intel-rapl:*")):
        if zone.name.count(":") == 1:  # sub-zones are part of their package
            try:
                found[zone] = int((zone / "energy_uj").read_text())
            except (OSError, ValueError):
                continue
    return found


def used(before: Mapping[Path, int], after: Mapping[Path, int]) -> float | None:
    """Microjoules between two readings; None where nothing was read."""
    if not before or before.keys() != after.keys():
        return None
    total = 0
    for zone, start in before.items():
        gone = after[zone] - start
        if gone < 0:
            try:
                gone += int((zone / "max_energy_range_uj").read_text())
            except (OSError, ValueError):
                return None
        total += gone
    return float(total)
