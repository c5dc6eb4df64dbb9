"""One interface to the NPU compiler, three providers: native, the Wine bridge, none.

Takes an ``ov.Model``, a platform and settings. Gives :class:`Compiled` or :class:`Refused`. Promises: a compiler that
crashes ends neither this process nor the next request; equal requests give equal answers (the compiler is
deterministic), so answers may be kept in a folder. The server process stays between requests: starting it takes half a
second. Not here: installation (``npu.setup``), what a refusal means (``npu.diagnose``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from forge_eq.errors import NpuError
from forge_eq.npu import parts
from forge_eq.npu.setup import environment, faults
from forge_eq.npu.trace import Simulation, parse

PLATFORMS = {"3720": "Meteor Lake", "4000": "Lunar Lake", "5010": "Panther Lake", "5020": "Wildcat Lake"}
TARGETS = {p: f"intel-npu-{'5010' if p == '5020' else p}" for p in PLATFORMS}  # the target file of each platform
TRACE = "compileTimeScheduleTrace.json"
SIMULATED = f"simulated by Intel's NPU compiler (OpenVINO {parts.VERSION})"
_LIBRARY = {"linux": "libopenvino_intel_npu_compiler_loader.so", "win32": "openvino_intel_npu_compiler_loader.dll"}
_REMEDY = "run: forge-eq npu setup"


@dataclass(frozen=True)
class Compiled:
    """An accepted model. ``seconds`` is the compile time, ``blob`` the size of the blob in bytes and its hash."""

    seconds: float
    blob: int
    sha256: str
    simulation: Simulation | None
    log: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class Refused:
    """A refused model. ``stage`` is ``read``, ``compile`` or ``export``; ``crash`` when the process ended, ``limit``
    when it was given up."""

    stage: str
    message: str
    log: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return False


Answer = Compiled | Refused


@dataclass(frozen=True)
class Provider:
    """How the compiler is reached. ``command`` starts the server, in ``cwd``; ``drive`` precedes an absolute path."""

    name: str  # "native" or "wine"
    command: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    drive: str = ""


def target_of(platform: str) -> str:
    """The name of the target file for a platform. Raises NpuError when there is no such platform."""
    if platform not in TARGETS:
        raise NpuError("npu", platform, "is not a platform", f"use one of {', '.join(PLATFORMS)}")
    return TARGETS[platform]


def provider() -> Provider:
    """The provider of this machine. Raises NpuError with what is missing when there is none."""
    found = native() or wine()
    if isinstance(found, Provider):
        return found
    raise NpuError("npu", "compiler", f"there is no NPU compiler: {found}", _REMEDY)


def native() -> Provider | None:
    """An openvino package that has the compiler: the Windows wheel, or a Linux one with Intel's library beside it."""
    import importlib.util

    spec = importlib.util.find_spec("openvino")
    name = _LIBRARY.get(sys.platform)
    if spec is None or not spec.submodule_search_locations or name is None:
        return None
    places = [str(Path(spec.submodule_search_locations[0]) / "libs")]
    places += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if not any(p and (Path(p) / name).is_file() for p in places):
        return None
    return Provider("native", (sys.executable, "-m", "forge_eq.npu.server"))


def wine() -> Provider | str:
    """The Wine bridge, or what is missing for it."""
    folder = parts.folder()
    missing = faults(folder)
    if missing:
        return missing[0]
    bin = folder / "bin"
    return Provider("wine", (str(parts.WINE), parts.BRIDGE), str(bin), environment(folder), "Z:")


class Compiler:
    """A running compiler; use as a context.

    ``answers`` is a folder in which answers are kept, None keeps none. ``limit`` is the number of seconds after which
    a request is given up: the compiler takes minutes to hours for some programs and says nothing meanwhile.
    """

    def __init__(
        self,
        source: Provider | None = None,
        answers: Path | None = None,
        device: str = "NPU",
        limit: float = 600.0,
    ) -> None:
        self.source, self.answers, self.device, self.limit = source or provider(), answers, device, limit
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server process."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._in.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    # ------------------------------------------------------------------------------------------ requests

    def compile(
        self, model: Any, platform: str = "4000", modes: str = "", trace: bool = True, **settings: str
    ) -> Answer:
        """Compiles a model.

        Args:
            model: an ``ov.Model`` with static shapes (or bounded ones).
            platform: one of :data:`PLATFORMS`.
            modes: more of ``NPU_COMPILATION_MODE_PARAMS``, ``key=value`` with blanks between.
            trace: ask for the simulated schedule.
            settings: further properties, such as ``NPU_TILES="2"``.

        Raises NpuError for an unknown platform, or when the server cannot be started.
        """
        target_of(platform)
        asked = " ".join([*(["enable-schedule-trace=true"] if trace else []), *modes.split()])
        properties = {"LOG_LEVEL": "LOG_WARNING", **settings}
        if self.device.startswith("NPU"):
            properties |= {"NPU_PLATFORM": platform, "NPU_COMPILER_TYPE": "PLUGIN"}
            properties |= {"NPU_COMPILATION_MODE_PARAMS": asked} if asked else {}
        with tempfile.TemporaryDirectory(prefix="forge_eq-npu-") as work:
            folder = Path(work)
            write_model(model, folder / "model.xml")
            key = self._key(folder, properties)
            kept = self._recall(key)
            return kept if kept is not None else self._keep(key, self._ask(folder, properties))

    def _ask(self, folder: Path, properties: Mapping[str, str]) -> Answer:
        place, blob = f"{self.source.drive}{folder}", folder / "model.blob"
        words = ["compile", place, f"{place}/model.xml", f"{place}/model.blob", self.device]
        found, log = self.request([*words, *(f"{k}={v}" for k, v in properties.items())])
        if found[0] != "@compiled":
            return Refused(found[1], found[2], log)
        trace = folder / TRACE
        simulation = parse(trace.read_text(encoding="utf-8")) if trace.is_file() else None
        return Compiled(float(found[1]), blob.stat().st_size, parts.sha256(blob), simulation, log)

    def describe(self, name: str, platform: str = "4000") -> str:
        """The value of a property of the device. Raises NpuError when it has none of that name."""
        settings = [f"NPU_PLATFORM={platform}", "NPU_COMPILER_TYPE=PLUGIN"] if self.device == "NPU" else []
        found, _ = self.request(["property", self.device, name, *settings])
        if found[0] != "@value":
            raise NpuError("npu", name, found[2], "ask for a property of this compiler")
        return found[1]

    # ------------------------------------------------------------------------------------------ the server

    def request(self, fields: list[str]) -> tuple[list[str], str]:
        """The answer's fields and the log before it; a crash is answered by ``@failed crash``."""
        self._start()
        assert self._process is not None
        late = threading.Event()
        watch = threading.Timer(self.limit, self._give_up, (self._process, late))
        watch.start()
        try:
            answer, log = self._exchange(fields)
        finally:
            watch.cancel()
        if late.is_set():
            answer = ["@failed", "limit", f"the compiler did not end within {self.limit:g} s"]
        return answer, log

    @staticmethod
    def _give_up(process: subprocess.Popen[str], late: threading.Event) -> None:
        late.set()
        process.kill()

    def _exchange(self, fields: list[str]) -> tuple[list[str], str]:
        try:
            self._in.write("\t".join(fields) + "\n")
            self._in.flush()
        except OSError:
            pass  # it has just ended: the empty output says so
        answer, log = ["@failed", "crash", ""], list[str]()
        for line in self._out:
            if line.startswith("@done"):
                return answer, "".join(log)
            if line.startswith("@failed"):
                _, stage, status, size = line.split("\t")
                answer = ["@failed", stage, self._text(int(size)) or f"status {status}"]
            elif line.startswith("@"):
                answer = line.rstrip("\r\n").split("\t")
            else:
                log.append(line)
        ended = self._process.wait() if self._process else 0
        self._process = None
        return ["@failed", "crash", f"the compiler's process ended with status {ended}"], "".join(log)

    def _text(self, size: int) -> str:
        """The message after a failure: ``size`` bytes, in lines."""
        told = ""
        while len(told.encode()) < size + 1:
            line = self._out.readline()
            if not line:
                break
            told += line
        return told.strip()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        pipe = subprocess.PIPE
        env = {**os.environ, **self.source.env}
        self._process = subprocess.Popen(
            self.source.command,
            cwd=self.source.cwd,
            env=env,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        told = []
        for line in self._out:
            if line.startswith("@ready"):
                return
            told.append(line.strip())
        self._process = None
        raise NpuError("npu", self.source.name, f"the compiler does not start: {' '.join(told)[-300:]}", _REMEDY)

    @property
    def _in(self) -> IO[str]:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _out(self) -> IO[str]:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout

    # ------------------------------------------------------------------------------------------ kept answers

    def _key(self, folder: Path, properties: Mapping[str, str]) -> str:
        digest = hashlib.sha256(repr((parts.VERSION, self.device, sorted(properties.items()))).encode())
        for name in ("model.xml", "model.bin"):
            digest.update(parts.sha256(folder / name).encode())
        return digest.hexdigest()

    def _recall(self, key: str) -> Answer | None:
        path = self.answers / f"{key}.json" if self.answers else None
        if path is None or not path.is_file():
            return None
        kept = json.loads(path.read_text(encoding="utf-8"))
        if "message" in kept:
            return Refused(**kept)
        from forge_eq.npu.kept import simulation_of

        return Compiled(**{**kept, "simulation": simulation_of(kept["simulation"])})

    def _keep(self, key: str, answer: Answer) -> Answer:
        if self.answers is not None and (answer or getattr(answer, "stage", "") not in ("crash", "limit")):
            from forge_eq.npu.kept import as_json

            self.answers.mkdir(parents=True, exist_ok=True)
            path = self.answers / f"{key}.json"
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(as_json(answer)), encoding="utf-8")
            partial.replace(path)
        return answer


def write_model(model: Any, path: Path) -> None:
    """Writes the IR with weights in f16, which is what the NPU computes in; the schedule is the same, the file half."""
    import openvino

    openvino.save_model(model, str(path), compress_to_fp16=True)


@contextlib.contextmanager
def running(answers: Path | None = None) -> Iterator[Compiler]:
    """The compiler of this machine for the time of a context."""
    with Compiler(answers=answers) as compiler:
        yield compiler
