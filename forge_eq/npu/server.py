"""The server of the native provider: the protocol of ``bridge.c`` on OpenVINO's Python API, in a process of its own."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def main() -> None:
    """Serves requests from standard input until it ends."""
    import openvino

    core = openvino.Core()
    _say("@ready")
    for line in sys.stdin:
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) >= 5 and fields[0] == "compile":
            folder, model, blob, device = fields[1:5]
            _compile(core, folder, model, blob, device, _properties(fields[5:]))
        elif len(fields) >= 3 and fields[0] == "property":
            _property(core, fields[1], fields[2], _properties(fields[3:]))
        else:
            _fail("request", "unknown")
        _say("@done")


def _compile(core: Any, folder: str, model: str, blob: str, device: str, properties: dict[str, str]) -> None:
    stage = "read"
    try:
        os.chdir(folder)
        read = core.read_model(model)
        stage, start = "compile", time.perf_counter()
        compiled = core.compile_model(read, device, properties)
        seconds, stage = time.perf_counter() - start, "export"
        with open(blob, "wb") as file:
            file.write(compiled.export_model().getvalue())
        _say(f"@compiled\t{seconds:.3f}")
    except (RuntimeError, OSError) as e:
        _fail(stage, str(e))


def _property(core: Any, device: str, key: str, properties: dict[str, str]) -> None:
    try:
        if properties:
            core.set_property(device, properties)
        value = " ".join(str(core.get_property(device, key)).split())
        _say(f"@value\t{value}")
    except RuntimeError as e:
        _fail("property", str(e))


def _properties(fields: list[str]) -> dict[str, str]:
    return dict(f.split("=", 1) for f in fields if "=" in f)


def _fail(stage: str, text: str) -> None:
    _say(f"@failed\t{stage}\t-1\t{len(text.encode())}\n{text}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
