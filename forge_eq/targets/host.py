"""What was measured on this machine, kept between runs.

Takes a target's name. Gives the file that holds its calibration, and the target with the figures of that file in place
of the shipped ones. Promises: a file belongs to one processor and OpenVINO version (the number of threads is noted in
it, not told apart: the last calibration counts); one that does not parse is ignored, never half used;
``FORGE_EQ_CALIBRATION=off`` leaves the shipped figures.
Not here: measuring (``run.calibrate``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_eq.files import cache_home
from forge_eq.targets.kernels import FORMS, from_table

if TYPE_CHECKING:
    from forge_eq.targets import Target

SWITCH = "FORGE_EQ_CALIBRATION"  # "off", or the folder of calibrations
REVISION = 2  # of how the forms are built: a calibration of another is not used
RATES = ("peak_gflops", "bandwidth_gbps", "launch_us", "transfer_us", "transfer_gbps", "reorder_gbps")


@functools.cache  # like its features and OpenVINO's version: every stage loads its target, and none of them changes
def processor() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def identity() -> dict[str, str]:
    """What a calibration depends on: another processor or OpenVINO is another machine, another table another file."""
    forms = f"{' '.join(FORMS)} {REVISION}"
    return {"processor": processor(), "features": _features(), "openvino": _openvino(), "forms": forms}


@functools.cache
def _openvino() -> str:
    try:
        return version("openvino")
    except PackageNotFoundError:
        return "none"


@functools.cache
def _features() -> str:
    """The vector extensions, which decide the plugin's kernels; hypervisors rename processors but tell these."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return " ".join(sorted(f for f in flags if f.startswith(("avx", "amx", "fma"))))


def folder() -> Path | None:
    """Where calibrations are kept, or None when they are switched off."""
    given = os.environ.get(SWITCH, "")
    if given == "off":
        return None
    if given:
        return Path(given)
    return cache_home()


def path(name: str) -> Path | None:
    """The file of a target's calibration on this machine."""
    where = folder()
    key = hashlib.sha256(json.dumps(identity(), sort_keys=True).encode()).hexdigest()[:12]
    return None if where is None else where / f"{name}-{key}.json"


def stamp(name: str) -> tuple[str, int, int, int] | None:
    """Identifies the state of that file: path, inode, size, time of change; None when there is none."""
    where = path(name)
    try:
        found = where.stat() if where is not None else None
    except OSError:
        return None
    return None if found is None else (str(where), found.st_ino, found.st_size, found.st_mtime_ns)


def figures(name: str) -> dict[str, Any]:
    """What was measured for a target; empty when nothing was."""
    where = path(name)
    try:
        found = json.loads(where.read_text(encoding="utf-8")) if where is not None else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("identity") == identity() else {}


def apply(target: Target, found: Mapping[str, Any]) -> Target:
    """The target with measured figures in place of its own, which ``measured`` then names."""
    rates = {k: float(found[k]) for k in RATES if isinstance(found.get(k), int | float) and found[k] > 0}
    changes: dict[str, Any] = dict(rates)
    named = list(rates)
    if isinstance(found.get("weights"), dict):
        changes["weights"] = {**target.weights, **found["weights"]}
        named += [f"weights.{k}" for k in sorted(found["weights"])]
    if found.get("kernels"):
        try:
            changes["kernels"] = from_table(found["kernels"])
        except ValueError:
            return target
        named.append("kernels")
    return replace(target, **changes, measured=tuple(named)) if named else target
