"""A compiled program as one file.

Takes a :class:`Saved`. Gives a ``.forge`` file, and the same back. Promises: no code is stored and none is run on
loading; the file is complete or absent, never half written; whatever is not exactly what was saved is refused with
FileError. OpenVINO's own compiled form is not kept: building it anew is faster than reading it.

The file is a safetensors file (weights readable by anyone). Its one metadata entry, ``forge_eq.program``, is a JSON
object of ``version``, ``document`` (JSON again: the text forms of schedule and allocation, target, signature, options,
package versions) and ``digest``, a SHA-256 over the document and every tensor. Equal programs give equal bytes.
Not here: building segments (``run.executor``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from forge_eq.alloc import checker as alloc_checker
from forge_eq.alloc.plan import Allocation
from forge_eq.alloc.text import parse as parse_allocation
from forge_eq.alloc.text import text as allocation_text
from forge_eq.capture.execute import OPAQUE
from forge_eq.capture.targets import resolve
from forge_eq.capture.values import DTYPE_NAMES
from forge_eq.errors import FileError, ForgeError
from forge_eq.lower.check import check as check_program
from forge_eq.run.executor import divided
from forge_eq.run.signature_json import from_json, to_json
from forge_eq.schedule.plan import Schedule
from forge_eq.schedule.text import parse as parse_schedule
from forge_eq.schedule.text import text as schedule_text
from forge_eq.targets import Target
from forge_eq.targets import parse as parse_target
from forge_eq.targets.kernels import to_table

FORMAT, VERSION = "forge_eq.program", 1
STATE = "state:"  # before the name of a written buffer; names of constants have no colon


@dataclass(frozen=True)
class Saved:
    """What a file holds. ``schedule.program`` carries data and signature; ``pins`` are positions that torch computes;
    ``options`` is any JSON object of the caller's; ``versions`` names the packages that wrote the file. ``state``
    holds the buffers that the program writes, which are its inputs beside the user's."""

    schedule: Schedule
    allocation: Allocation
    target: Target
    pins: frozenset[int] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------- writing


def save(path: str | os.PathLike[str], saved: Saved) -> None:
    """Writes the file; one that exists is replaced in a single step, or left as it is.

    Raises:
        FileError: the program has a part that no file can hold (submodules, a foreign Python value, a weight without
            data), or the place cannot be written.
    """
    where = Path(path)
    program = saved.schedule.program
    if program.submodules:
        name = next(iter(program.submodules))
        raise FileError(
            "save",
            name,
            "the program calls submodules (torch.cond or another higher-order call)",
            "compile it where it is used, or save the module with torch.export.save",
        )
    tensors, orders = {}, {}
    for _, name in program.constants:
        tensors[name], orders[name] = _dense(name, program.data.get(name))
    for name, value in saved.state.items():
        tensors[STATE + name], orders[STATE + name] = _dense(name, value)
    document = json.dumps(
        {
            "schedule": schedule_text(saved.schedule),
            "allocation": allocation_text(saved.allocation),
            "target": _target_text(saved.target),
            "signature": to_json(program.signature),
            "pins": sorted(saved.pins),
            "options": _plain(dict(saved.options)),
            "orders": orders,
            "versions": dict(saved.versions) or versions(),
        },
        sort_keys=True,
    )
    envelope = {"version": VERSION, "document": document, "digest": _digest(document, tensors)}
    # one entry only: safetensors writes several in an order that changes from run to run
    _write(where, tensors, {FORMAT: json.dumps(envelope, sort_keys=True)})


def versions() -> dict[str, str]:
    """Versions of the packages that decide what a program computes; "absent" for one that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("forge_eq", "torch", "openvino"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def _dense(name: str, value: torch.Tensor | None) -> tuple[torch.Tensor, list[int]]:
    """(contiguous tensor, permutation that gives back the layout): ``w.t()`` is stored as w and (1, 0)."""
    if value is None or value.is_meta:
        raise FileError("save", name, "the constant has no data", "capture the model with real weights")
    if value.is_complex():
        raise FileError("save", name, f"a weight of dtype {value.dtype} has no place in the file", "keep it real")
    value = value.detach().cpu()
    strides = value.stride()
    order = sorted(range(value.dim()), key=lambda axis: (-strides[axis], axis))
    if not value.permute(order).is_contiguous():
        order = list(range(value.dim()))
    stored = value.permute(order).contiguous()
    if stored.untyped_storage().nbytes() != stored.numel() * stored.element_size():
        stored = stored.clone()  # a view of something larger: write only its own part
    return stored, [order.index(axis) for axis in range(value.dim())]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(json.dumps(options))
    except (TypeError, ValueError) as e:
        raise FileError("save", "options", f"they are no JSON object: {e}", "pass plain values") from e
    return found


def _digest(document: str, tensors: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256(document.encode())
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"\0{name}\0{DTYPE_NAMES[value.dtype]}\0{tuple(value.shape)}\0".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data if value.numel() else b"")
    return found.hexdigest()


def _target_text(target: Target) -> str:
    """The target as TOML: JSON's values are TOML's, so one writer serves both."""
    tables = ("devices", "kernels", "weights", "penalties", "blocks")
    fields = {k: getattr(target, k) for k in target.__dataclass_fields__ if k not in tables}
    lines = [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items()]
    inner: dict[str, Mapping[str, Any]] = {"kernels": to_table(target.kernels), "weights": target.weights}
    inner["penalties"] = target.penalties
    if target.blocks is not None:
        inner["blocks"] = asdict(target.blocks)
    for table, values in inner.items():
        lines += [f"[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    for device in target.devices:
        lines.append("[[device]]")
        for k in device.__dataclass_fields__:
            value = getattr(device, k)
            if value != ():
                lines.append(f"{k} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _write(where: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{where.name}.", suffix=".tmp", dir=where.parent)
        os.close(handle)
        save_file(_unshared(tensors), temporary, metadata)
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, where)
    except Exception as e:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(e, ForgeError):
            raise
        reason = f"cannot be written: {e}"
        raise FileError("save", str(where), reason, "check the directory, its rights and its space") from e


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors refuses two names for one memory: the second one gets a copy."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        address = value.untyped_storage().data_ptr()
        found[name] = value.clone() if address in seen and address else value
        seen.add(address)
    return found


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


# ---------------------------------------------------------------------------------------------- reading


def load(path: str | os.PathLike[str]) -> Saved:
    """Reads a file. The constants own their memory: the file may go away afterwards.

    Raises:
        FileError: missing, foreign, truncated, altered, of a newer format, or in need of an operator library that is
            not imported.
    """
    where = Path(path)
    envelope, tensors = _read(where)
    document = envelope["document"]
    if _digest(document, tensors) != envelope.get("digest"):
        raise _refusal(where, "its digest does not match: the file was altered or damaged")
    try:
        return _rebuild(where, json.loads(document), tensors)
    except FileError:
        raise
    except (ForgeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        raise _refusal(where, f"its content does not fit together: {e}") from e


def _refusal(where: Path, reason: str) -> FileError:
    return FileError("load", str(where), reason, "save the program again with this version of forge_eq")


def _read(where: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not where.is_file():
        raise FileError("load", str(where), "there is no such file", "check the path")
    try:
        with safe_open(str(where), framework="pt") as source:
            envelope = _envelope(where, source.metadata() or {})
            tensors = {name: source.get_tensor(name).clone() for name in source.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as e:
        raise _refusal(where, f"it is no complete safetensors file: {e}") from e
    return envelope, tensors


def _envelope(where: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    found = json.loads(metadata.get(FORMAT, "null"))
    if not isinstance(found, dict) or not isinstance(found.get("version"), int):
        raise FileError("load", str(where), "it is not a compiled program of forge_eq", "give a file that save wrote")
    if found["version"] > VERSION:
        reason = f"it has format version {found['version']}; this forge_eq reads up to {VERSION}"
        raise FileError("load", str(where), reason, "update forge_eq")
    if not isinstance(found.get("document"), str):
        raise _refusal(where, "it has no document")
    return found


def _rebuild(where: Path, document: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Saved:
    schedule = parse_schedule(document["schedule"])
    target = parse_target(document["target"], str(where))
    values = {name: tensors[name].permute(order) for name, order in document["orders"].items()}
    data = {name: value for name, value in values.items() if not name.startswith(STATE)}
    state = {name.removeprefix(STATE): value.contiguous() for name, value in values.items() if name.startswith(STATE)}
    program = replace(schedule.program, data=data, signature=from_json(document["signature"]))
    for vreg, name in program.constants:
        type, value = program.vregs[vreg].type, data[name]
        if str(type) != f"{DTYPE_NAMES[value.dtype]}[{','.join(map(str, value.shape))}]":
            raise _refusal(where, f"constant {name} is {value.dtype} {list(value.shape)}, not {type}")
    check_program(program, target, scheduled=True)
    pins = frozenset(int(p) for p in document["pins"])
    allocation = parse_allocation(document["allocation"])
    alloc_checker.check(divided(program, target, pins), target, allocation)
    _find_operators(schedule)
    return Saved(
        replace(schedule, program=program),
        allocation,
        target,
        pins,
        document["options"],
        document["versions"],
        state,
    )


def _find_operators(schedule: Schedule) -> None:
    for instr in schedule.program.instrs:
        if instr.op in OPAQUE:
            try:
                resolve(instr.attr("target"))
            except ForgeError as e:
                raise FileError(
                    "load",
                    str(instr.attr("target")),
                    "the program calls an operator that is not registered here",
                    "import the library that defines it before loading",
                ) from e
