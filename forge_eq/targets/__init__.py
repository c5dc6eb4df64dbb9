"""Targets: what a device can run and what that costs, one TOML file each.

Takes a target's name or the path of a TOML file. Gives a frozen :class:`Target`. Promises: every field is present,
of the right kind and in range; a name that no file has is refused with the names that exist.
Not here: the cost formula (``extract.cost``), the choice of device (``lower.select``, ``schedule.affinity``).

The figures in the shipped files are estimates for a 2-core x86-64 host, not measurements of yours: what
``forge-eq calibrate`` found takes their place at the next load (``targets.host``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from forge_eq.errors import OptionsError
from forge_eq.ir.types import DTYPES, WEAK, NoneType, ScalarType, TensorType, TupleType, Type
from forge_eq.targets import host
from forge_eq.targets.kernels import Kernels, from_table

UNITS = ("matmul", "attention", "vector", "norm", "move", "gather")  # units of a kernel, see ops.spec.Kernel
_KINDS = ("openvino", "torch")
_HERE = Path(__file__).parent
NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a target.

    ``units`` are the kernel units it has. ``dtypes`` are the element types it computes; ``operand_dtypes`` those that
    it only accepts as an operand (a boolean mask). ``gathers`` tells whether data-dependent reads are at home here.
    ``memory_mib`` limits its arena and ``max_rank`` the axes of a value (0: no limit). ``kind`` is the executor,
    ``openvino`` or ``torch``. ``refuses`` are ops that its compiler does not take: ``op``, or ``op/KIND/...``
    for calls of which all these kinds hold (:func:`kinds`).
    """

    name: str
    kind: str
    units: tuple[str, ...]
    dtypes: tuple[str, ...]
    operand_dtypes: tuple[str, ...] = ()
    gathers: bool = True
    memory_mib: float = 0.0
    max_rank: int = 0
    refuses: tuple[str, ...] = ()

    def refusal(
        self,
        op: str,
        operands: Iterable[Type],
        results: Iterable[Type],
        attrs: Mapping[str, Any] = NONE,
    ) -> str:
        """Why the device's compiler does not take this op on these types, though it has the unit; else empty."""
        operands = tuple(operands)
        for entry in self.refuses:
            name, *words = entry.split("/")
            if name == op and kinds(operands, attrs).issuperset(words):
                return f"the compiler of {self.name} refuses {entry}"
        tensors = [t for t in _flat([*operands, *results]) if isinstance(t, TensorType)]
        if self.max_rank and any(t.elements == 0 for t in tensors):
            return f"the compiler of {self.name} crashes on a value without elements"
        ranks = [t.rank for t in tensors]
        if self.max_rank and max(ranks, default=0) > self.max_rank:
            return f"{self.name} has at most {self.max_rank} axes, not {max(ranks)}"
        return ""

    def computes(self, unit: str, operands: Iterable[Type], results: Iterable[Type], reads: Iterable[str] = ()) -> bool:
        """Whether the device has the unit and takes these operand and result types; ``reads`` are the kernel's own."""
        readable = {*self.dtypes, *self.operand_dtypes, *reads, WEAK}
        return (
            unit in self.units
            and all(isinstance(t, TensorType) and t.dtype in readable for t in _flat(operands))
            and all(isinstance(t, TensorType) and t.dtype in self.dtypes for t in _flat(results))
        )


# Products with the weight on the left: none, those whose result is returned, also those without a bias that widen (more
# results than features, as in a gated layer), all.
LEFT = ("none", "returned", "wide", "all")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which products lowering does in parts: those over at least ``features`` for at least ``rows`` rows in ``parts``
    parts, or the fewest equal ones of at most ``most`` features if that is given, and with ``outer`` a split product
    piece by piece. ``onto``: the parts of a product that is added to another value are added to that one by one.
    ``joined``: not the product is in parts but what it reads, which is joined. ``scaled``: the scale of attention is in
    the weights (``lower.scaled``). ``left`` says which have their weight on the left, of those with at least ``rows``
    rows: one of :data:`LEFT`."""

    features: int
    rows: int
    parts: int
    outer: bool
    left: str = "none"
    joined: bool = False
    scaled: bool = False
    onto: bool = False
    most: int = 0

    def count(self, features: int) -> int:
        """How many parts a product over so many features is done in."""
        if not self.most:
            return self.parts
        return next(n for n in range(1, features + 1) if features % n == 0 and features <= n * self.most)


@dataclass(frozen=True)
class Target:
    """A target. Rates are peaks: ``peak_gflops`` in 1e9 operations/s, ``bandwidth_gbps`` and ``transfer_gbps`` in
    1e9 bytes/s; ``launch_us`` (per kernel) and ``transfer_us`` (per transition) in microseconds.

    ``reorder_gbps`` is the rate of storing in another order what is larger than a core's cache (0: ``bandwidth_gbps``).
    ``weights`` scales predicted time per cost class of an op, or of a part of a class (``matmul.left``, a kernel's
    form); ``penalties`` is the relative slow-down, per cost class, of a fused kernel over its parts run alone.
    ``alignment`` of arena offsets is in bytes, a power of two. ``kernels`` are times of matrix kernels by form and
    size, and ``measured`` names the fields that were measured on this machine.
    """

    name: str
    description: str
    devices: tuple[Device, ...]
    host: str
    peak_gflops: float
    bandwidth_gbps: float
    launch_us: float
    transfer_us: float
    transfer_gbps: float
    alignment: int = 64
    reorder_gbps: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    penalties: Mapping[str, float] = field(default_factory=dict, hash=False)
    kernels: Kernels = Kernels()
    measured: tuple[str, ...] = ()
    blocks: Blocks | None = None

    def device(self, name: str) -> Device:
        """The device called ``name``. Raises OptionsError when the target has none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise OptionsError(
            "targets", name, f"target {self.name} has no such device", f"use one of {', '.join(self.device_names)}"
        )

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.devices)

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """The devices other than the host, in order of preference."""
        return tuple(d for d in self.devices if d.name != self.host)

    def weight(self, name: str) -> float:
        """The factor on a cost class, or on a part of one: ``matmul.left`` has that of ``matmul`` times its own."""
        parent, dot, _ = name.rpartition(".")
        return self.weights.get(name, 1.0) * (self.weight(parent) if dot else 1.0)

    def penalty(self, cost_class: str) -> float:
        return self.penalties.get(cost_class, 0.0)

    def transfer_time(self, nbytes: int) -> float:
        """Predicted microseconds to move ``nbytes`` between two devices."""
        return self.weight("transfer") * (self.transfer_us + nbytes / (self.transfer_gbps * 1e3))

    def kernel_time(self, flops: float, nbytes: float) -> float:
        """Predicted microseconds of one kernel: launch plus the slower of arithmetic and traffic (a roofline)."""
        return self.launch_us + max(flops / (self.peak_gflops * 1e3), nbytes / (self.bandwidth_gbps * 1e3))


def kinds(operands: Iterable[Type], attrs: Mapping[str, Any] = NONE) -> set[str]:
    """What ``refuses`` can say of a call: element types; ``rank4`` and the like, the most axes; ``broadcast``, axes
    before the last two differ; ``ragged``, a slice whose step leaves a rest; ``grouped``, a convolution by groups;
    ``dilated``, a window with gaps; ``uneven``, more padding at one end."""
    tensors = [t for t in _flat(operands) if isinstance(t, TensorType) and t.dtype != WEAK]
    found = {t.dtype for t in tensors} | {f"rank{max((t.rank for t in tensors), default=0)}"}
    found |= {"broadcast"} if len({t.shape[:-2] for t in tensors}) > 1 else set()
    told = {
        "ragged": "step" in attrs and (attrs["stop"] - attrs["start"]) % attrs["step"] != 0,
        "grouped": attrs.get("groups", 1) != 1,
        "dilated": any(size != 1 for size in attrs.get("dilation", ())),
        "uneven": attrs.get("begin") != attrs.get("end"),
    }
    return found | {word for word, holds in told.items() if holds}


def _flat(types: Iterable[Type]) -> list[TensorType | ScalarType | NoneType]:
    found: list[TensorType | ScalarType | NoneType] = []
    for item in types:
        if isinstance(item, TupleType):
            found += _flat(item.items)
        else:
            found.append(item)
    return found


def names() -> tuple[str, ...]:
    """Names of the shipped targets, sorted."""
    return tuple(sorted(p.stem for p in _HERE.glob("*.toml")))


def load(target: str | Path | Target) -> Target:
    """The target called ``target``, or the one described by the TOML file at that path.

    Raises:
        OptionsError: no such target or file, or the file is malformed.
    """
    if isinstance(target, Target):
        return target
    path = Path(target)
    if isinstance(target, str) and path.suffix != ".toml" and path.name == target:
        if target not in names():
            raise OptionsError(
                "targets",
                target,
                "is not a target",
                f"use one of {', '.join(names())}, or the path of a .toml file",
            )
        return _here(target)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise OptionsError("targets", str(path), f"cannot be read: {e}", "give the path of a TOML file") from e
    return parse(text, str(path))


@lru_cache
def shipped(name: str) -> Target:
    """A target as its file says, whatever was measured here."""
    return parse((_HERE / f"{name}.toml").read_text(encoding="utf-8"), name)


def _here(name: str) -> Target:
    """A shipped target with what ``forge-eq calibrate`` found on this machine."""
    return _measured_here(name, host.stamp(name))


@lru_cache(maxsize=8)
def _measured_here(name: str, stamp: tuple[str, int, int, int] | None) -> Target:
    """The same, read once per state of the file: every stage loads its target, and its table remembers what it told."""
    return shipped(name) if stamp is None else host.apply(shipped(name), host.figures(name))


def parse(text: str, where: str = "<text>") -> Target:
    """The target that a TOML text describes. Raises OptionsError when it is malformed; ``where`` names it there."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise OptionsError("targets", where, f"is not TOML: {e}", "correct the syntax") from e
    reader = _Reader(table, where)
    devices = tuple(_device(reader.sub(d, f"device {i}")) for i, d in enumerate(reader.list_of("device", dict)))
    made = Target(
        name=reader.text("name"),
        description=reader.text("description"),
        devices=devices,
        host=reader.text("host"),
        alignment=reader.power_of_two("alignment", 64),
        reorder_gbps=reader.number("reorder_gbps", default=0.0),
        weights=reader.numbers("weights"),
        penalties=reader.numbers("penalties"),
        kernels=reader.kernels("kernels"),
        measured=reader.texts("measured"),
        blocks=_blocks(reader),
        **{f: reader.number(f, positive=f != "launch_us" and f != "transfer_us") for f in _RATES},
    )
    reader.no_more()
    found = made.device_names
    if len(set(found)) != len(found):
        reader.fail("device", "two devices have one name")
    if made.host not in found:
        reader.fail("host", f"{made.host!r} is not one of the devices")
    host = made.device(made.host)
    if host.kind != "torch" or set(host.dtypes) != set(DTYPES) or not set(UNITS) <= set(host.units):
        reader.fail("host", "must be of kind torch and run every unit and dtype, since it is the fallback")
    return made


_RATES = ("peak_gflops", "bandwidth_gbps", "launch_us", "transfer_us", "transfer_gbps")


def _dtypes(reader: _Reader) -> tuple[str, ...]:
    """``["all"]`` stands for every dtype, those of later versions included."""
    found = reader.choices("dtypes", ("all", *DTYPES))
    return tuple(DTYPES) if found == ("all",) else found


def _blocks(reader: _Reader) -> Blocks | None:
    if "blocks" not in reader.left:
        return None
    table = reader.take("blocks", None)
    if not isinstance(table, dict):
        reader.fail("blocks", "is not a table")
    inner = reader.sub(table, "blocks")
    features, rows, parts = (int(inner.number(name, positive=True)) for name in ("features", "rows", "parts"))
    left = inner.choice("left", LEFT) if "left" in table else "none"
    outer, joined, scaled, onto = (inner.flag(name, default=False) for name in ("outer", "joined", "scaled", "onto"))
    most = int(inner.number("most", 0.0))
    made = Blocks(features, rows, parts, outer, left, joined, scaled, onto, most)
    inner.no_more()
    return made


def _device(reader: _Reader) -> Device:
    made = Device(
        name=reader.text("name"),
        kind=reader.choice("kind", _KINDS),
        units=reader.choices("units", UNITS),
        dtypes=_dtypes(reader),
        operand_dtypes=reader.choices("operand_dtypes", tuple(DTYPES), default=()),
        gathers=reader.flag("gathers", default=True),
        memory_mib=reader.number("memory_mib", default=0.0),
        max_rank=int(reader.number("max_rank", default=0.0)),
        refuses=reader.texts("refuses"),
    )
    reader.no_more()
    if not made.name.isidentifier():
        reader.fail("name", "is not an identifier")
    return made


class _Reader:
    """Takes typed fields out of a TOML table; whatever is left at the end is an error."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self.left, self.where = dict(table), where

    def fail(self, key: str, reason: str) -> NoReturn:
        raise OptionsError(
            "targets", f"{self.where}: {key}", reason, f"compare with {_HERE.name}/openvino-cpu.toml in the package"
        )

    def take(self, key: str, default: Any) -> Any:
        value = self.left.pop(key, default)
        if value is None:
            self.fail(key, "is missing")
        return value

    def sub(self, table: Mapping[str, Any], what: str) -> _Reader:
        return _Reader(table, f"{self.where}: {what}")

    def text(self, key: str) -> str:
        value = self.take(key, None)
        if not isinstance(value, str):
            self.fail(key, f"{value!r} is not a string")
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"{value!r} is not true or false")
        return bool(value)

    def number(self, key: str, default: float | None = None, positive: bool = False) -> float:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            self.fail(key, f"{value!r} is not a number from 0 up")
        if positive and value == 0:
            self.fail(key, "must be greater than 0")
        return float(value)

    def power_of_two(self, key: str, default: int) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
            self.fail(key, f"{value!r} is not a power of two")
        return int(value)

    def numbers(self, key: str) -> dict[str, float]:
        table = self.take(key, {})
        if not isinstance(table, dict):
            self.fail(key, "is not a table")
        inner = self.sub(table, key)
        return {k: inner.number(k) for k in sorted(table)}

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            self.fail(key, "is not a list of strings")
        return tuple(value)

    def kernels(self, key: str) -> Kernels:
        table = self.take(key, {})
        if not isinstance(table, dict):
            self.fail(key, "is not a table")
        try:
            return from_table(table)
        except ValueError as e:
            self.fail(key, str(e))

    def list_of(self, key: str, kind: type) -> list[Any]:
        value = self.take(key, None)
        if not isinstance(value, list) or not value or not all(isinstance(v, kind) for v in value):
            self.fail(key, f"is not a list of {kind.__name__}")
        return list(value)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self.text(key)
        if value not in allowed:
            self.fail(key, f"{value!r} is not one of {', '.join(allowed)}")
        return value

    def choices(self, key: str, allowed: tuple[str, ...], default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        if default is not None and key not in self.left:
            return default
        value = self.list_of(key, str)
        for item in value:
            if item not in allowed:
                self.fail(key, f"{item!r} is not one of {', '.join(allowed)}")
        return tuple(value)

    def no_more(self) -> None:
        for key in sorted(self.left):
            self.fail(key, "is not a field")
