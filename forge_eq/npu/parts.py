"""Where the NPU compiler's parts come from and where they are kept.

The Linux wheel of OpenVINO has the NPU plugin but not its compiler; the Windows wheel has both. Under Wine the compiler
runs on any x86-64 Linux. The folder is ``$FORGE_EQ_NPU``, else ``$XDG_CACHE_HOME/forge_eq/npu``, else
``~/.cache/forge_eq/npu``; all that is installed lies in it, apart from Debian's packages.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from forge_eq.files import cache_home

VERSION = "2026.4.1"
WHEEL = f"openvino-{VERSION}-22982-cp311-cp311-win_amd64.whl"
WHEEL_SHA256 = "bfddae6d6d3ad240157b946f180c33d0ddfaaae7487995d929a4e6b4bc12b283"
LIBRARIES = (
    "openvino.dll",
    "openvino_c.dll",
    "openvino_hetero_plugin.dll",
    "openvino_ir_frontend.dll",
    "openvino_intel_npu_plugin.dll",
    "openvino_intel_npu_compiler.dll",
    "openvino_intel_npu_compiler_loader.dll",
    "tbb12.dll",
    "tbbmalloc.dll",
)
PACKAGES = {"wine64": "/usr/lib/wine/wine64", "gcc-mingw-w64-x86-64": "/usr/bin/x86_64-w64-mingw32-gcc"}
WINE, CROSS_COMPILER = (Path(path) for path in PACKAGES.values())
BRIDGE_SOURCE = Path(__file__).with_name("bridge.c")
BRIDGE = "bridge.exe"
MANIFEST = "manifest.json"


def folder() -> Path:
    """The folder of everything that is installed."""
    given = os.environ.get("FORGE_EQ_NPU")
    if given:
        return Path(given)
    return cache_home() / "npu"


def sha256(path: Path) -> str:
    """The hash of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
