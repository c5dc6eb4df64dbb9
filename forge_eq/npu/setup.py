"""Installation of the NPU compiler's parts under Wine, and its removal.

Takes nothing. Gives the folder :func:`forge_eq.npu.parts.folder` filled, or emptied. Promises: the wheel's hash is
checked before a byte of it is used; what is already there and right is left alone; each step is told before it is
taken; :func:`remove` undoes all of it, Debian's packages only when asked and only those that :func:`install` added.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from forge_eq.errors import NpuError
from forge_eq.npu import parts

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Manifest:
    """What is installed: the hash of every file, and the Debian packages that were added for it."""

    wheel: str
    files: dict[str, str]
    bridge_source: str
    packages: list[str]


def read_manifest(folder: Path) -> Manifest | None:
    """What :func:`install` wrote, or None when there is none or it is of another form."""
    try:
        return Manifest(**json.loads((folder / parts.MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def faults(folder: Path) -> list[str]:
    """What is missing or altered, one sentence each; empty when the installation is whole."""
    manifest = read_manifest(folder)
    if manifest is None:
        return [f"{folder / parts.MANIFEST} is missing: nothing is installed there"]
    found = [f"{path} is missing ({name})" for name, path in parts.PACKAGES.items() if not Path(path).exists()]
    if manifest.wheel != parts.WHEEL_SHA256:
        found.append("the libraries are of another version of OpenVINO")
    if manifest.bridge_source != parts.sha256(parts.BRIDGE_SOURCE):
        found.append("the bridge was built from another source")
    for name in (*parts.LIBRARIES, parts.BRIDGE):
        path = folder / "bin" / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif parts.sha256(path) != manifest.files.get(name):
            found.append(f"{path} has been altered")
    return found


def install(tell: Tell) -> Path:
    """Fetches, checks and builds what is missing; returns the folder.

    Raises:
        NpuError: not an x86-64 Linux, no rights to install Debian packages, a download or its hash fails.
    """
    folder = parts.folder()
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise NpuError("npu", sys.platform, "the Wine route is for x86-64 Linux", "on Windows nothing need be set up")
    if not faults(folder):
        tell(f"everything is in place in {folder}: nothing to do")
        return folder
    before = read_manifest(folder)
    added = sorted({*(before.packages if before else []), *_packages(tell)})
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    _libraries(folder, tell)
    _bridge(folder, tell)
    files = {name: parts.sha256(folder / "bin" / name) for name in (*parts.LIBRARIES, parts.BRIDGE)}
    manifest = Manifest(parts.WHEEL_SHA256, files, parts.sha256(parts.BRIDGE_SOURCE), added)
    (folder / parts.MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
    if not (folder / "prefix").is_dir():
        tell("making Wine's folder (about 10 s)")
        _run([str(parts.WINE), "wineboot", "-i"], "Wine cannot start", {**os.environ, **environment(folder)})
    tell(f"done: {folder}")
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Variables with which Wine keeps to the folder and asks no questions."""
    return {"WINEPREFIX": str(folder / "prefix"), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}


def remove(tell: Tell, system: bool = False) -> None:
    """Deletes the folder; with ``system`` also uninstalls the Debian packages that :func:`install` added."""
    folder = parts.folder()
    manifest = read_manifest(folder)
    if manifest is None:
        tell(f"{folder} has no installation: nothing to remove")
        return
    if manifest.packages:
        command = ["apt-get", "remove", "-y", "--auto-remove", *manifest.packages]
        if system:
            tell(f"running {' '.join(command)}")
            _run(command, "the packages cannot be removed")
        else:
            tell(f"kept: Debian packages {', '.join(manifest.packages)} (--system removes them)")
    for name in ("bin", "prefix", "answers"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / parts.MANIFEST).unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
    tell(f"removed {folder}")


# ------------------------------------------------------------------------------------------------ steps


def _packages(tell: Tell) -> list[str]:
    """Installs the Debian packages whose program is missing; returns their names."""
    missing = [name for name, path in parts.PACKAGES.items() if not Path(path).exists()]
    if not missing:
        return []
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        reason, remedy = f"{', '.join(missing)} are not installed", f"as root: {' '.join(command)}"
        raise NpuError("npu", "setup", reason, remedy)
    tell(f"running {' '.join(command)} (about 700 MB on disk)")
    _run(["apt-get", "update", "-qq"], "Debian's lists cannot be fetched")
    _run(command, "the packages cannot be installed", {**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    return missing


def _libraries(folder: Path, tell: Tell) -> None:
    """Fetches the Windows wheel, checks it, and takes the libraries and the C headers out of it."""
    wheel = folder / parts.WHEEL
    if not wheel.is_file():
        tell(f"fetching {parts.WHEEL} with pip (85 MB)")
        what = ["--platform", "win_amd64", "--only-binary=:all:", "--no-deps", f"openvino=={parts.VERSION}"]
        where = ["--python-version", "3.11", "--dest", str(folder), "--quiet", "--disable-pip-version-check"]
        _run([sys.executable, "-m", "pip", "download", *where, *what], "pip cannot fetch the wheel")
    found = parts.sha256(wheel) if wheel.is_file() else "no file"
    if found != parts.WHEEL_SHA256:
        wheel.unlink(missing_ok=True)
        raise NpuError(
            "npu", parts.WHEEL, f"its hash is {found}, not {parts.WHEEL_SHA256}", "try again; it was deleted unused"
        )
    tell("its hash is right; unpacking the libraries")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            head, _, tail = name.rpartition("/")
            if head == "openvino/libs" and tail in parts.LIBRARIES:
                _write(archive, name, folder / "bin" / tail)
            elif name.startswith("openvino/include/openvino/c/") and name.endswith(".h"):
                _write(archive, name, folder / "bin" / name.removeprefix("openvino/"))
    wheel.unlink()


def _write(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archive.read(name))


def _bridge(folder: Path, tell: Tell) -> None:
    """Builds the bridge against the library itself: mingw's linker needs no import library."""
    tell("building the bridge")
    bin = folder / "bin"
    command = [str(parts.CROSS_COMPILER), "-O2", "-w", f"-I{bin / 'include'}", str(parts.BRIDGE_SOURCE)]
    _run([*command, "-o", str(bin / parts.BRIDGE), f"-L{bin}", "-l:openvino_c.dll"], "the bridge cannot be built")


def _run(command: Sequence[str], reason: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise NpuError("npu", " ".join(command[:3]), f"{reason}: {' / '.join(told)}", "repair it and run setup again")
