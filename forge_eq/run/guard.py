"""The differential guard: a compiled program is compared with PyTorch before anyone uses it.

Takes a scheduled program, a reference (the captured graph run by torch) and example inputs. Gives an
:class:`Executable` whose results agree, and remarks on what had to be repaired. Promises: on every probe that the
reference accepts, NaN and infinities stand at the same places and the rest agrees within the tolerance of the dtype or
is as good as the reference against float64; what OpenVINO gets wrong is given to torch instruction by instruction, at
last as a whole; a repaired program is checked again.
Not here: which rule is right (``verify``). When the program itself differs on torch, that is an error, not a repair.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from forge_eq.errors import ForgeError, RunError
from forge_eq.lower.npu import Program, operand_type
from forge_eq.remarks import Remark
from forge_eq.run.bisect import culprits
from forge_eq.run.executor import Executable, accelerated, pin, to_compile
from forge_eq.run.heap import give_back
from forge_eq.run.openvino_builder import load_openvino
from forge_eq.run.pooled import look_again
from forge_eq.run.probes import probes
from forge_eq.run.probes import quick as quick_probes
from forge_eq.run.values import copied, describe, evaluate
from forge_eq.targets import Target
from forge_eq.verify.criterion import Verdict, compare

Reference = Callable[[Sequence[Any]], Sequence[Any]]  # flat inputs -> flat outputs
WideReference = Callable[[Sequence[Any]], Sequence[Any] | None]  # None: cannot be computed in float64

ROUNDS = 8  # repairs before everything goes to torch
COMPILING = 3_000  # microseconds that OpenVINO takes for an instruction, about
SHARED = 1 << 17  # elements of a value that torch shares among two threads
TURN = 1e-3  # seconds: less than a turn of the scheduler, and a hundred times a kernel of that size
REFERENCE = 4  # what the reference's runs take on one core, in calls as they are predicted, about


@dataclass(frozen=True)
class Guarded:
    """``executable`` agrees with the reference on ``probes`` sets of inputs; ``pins`` are what was given to torch.

    ``building`` is seconds spent on building executables, repairs included; what the reference takes beyond the first
    one, and all that is compared, is the rest.
    """

    executable: Executable
    pins: frozenset[int]
    probes: int
    remarks: tuple[Remark, ...]
    building: float = 0.0


@dataclass(frozen=True)
class _Probe:
    """One set of inputs and the reference's answer to it."""

    name: str
    inputs: list[Any]
    wanted: list[Any]


@dataclass(frozen=True)
class _Fault:
    """Where an executable is wrong; ``executable`` is None when it could not even be built."""

    probe: _Probe
    reason: str


def guard(
    program: Program,
    target: Target,
    reference: Reference,
    examples: Sequence[Any],
    *,
    wide: WideReference | None = None,
    threads: int = 0,
    pins: Iterable[int] = (),
    seed: int = 0,
    quick: bool = False,
    predicted_us: float = 0.0,
) -> Guarded:
    """Builds, compares and, where needed, repairs.

    Args:
        program: scheduled.
        reference: the captured program; it must leave its inputs alone.
        examples: flat example inputs; the other probes are derived from them.
        wide: the captured program in float64 (``run.values.in_float64``), asked where the tolerance is exceeded.
        pins: instructions to give to torch from the start.
        quick: only ``probes.quick``, not the edge inputs.
        predicted_us: microseconds that a call is expected to take. Where the reference is sure to end before
            OpenVINO has compiled, or some other program runs, torch leaves a core to that.

    Raises:
        RunError: openvino is missing, or the program disagrees with the reference even when torch computes it.
    """
    inputs = list((quick_probes if quick else probes)(examples, seed))
    guarded = _Guard(program, target, reference, wide, threads)
    brief = REFERENCE * predicted_us < COMPILING * to_compile(program, target, pins)
    with _torch_threads(guarded.every - 1 if brief or _crowded() else guarded.every):
        return guarded.run(inputs, frozenset(pins))


class _Guard:
    def __init__(
        self, program: Program, target: Target, reference: Reference, wide: WideReference | None, threads: int
    ) -> None:
        self.program, self.target, self.reference, self.wide, self.threads = program, target, reference, wide, threads
        self.remarks: list[Remark] = []
        self.building = 0.0
        self.every = torch.get_num_threads()
        self.all = accelerated(program, target)
        if self.all:
            load_openvino()  # its absence is not something to repair

    def run(self, inputs: Sequence[tuple[str, list[Any]]], pins: frozenset[int]) -> Guarded:
        with ThreadPoolExecutor(1, "forge_eq-build") as beside:  # OpenVINO compiles on its own; torch answers meanwhile
            begun: Future[Executable] | None = beside.submit(self.build, pins)
            asked = self.ask(inputs)
        for _ in range(ROUNDS):
            executable, fault = self.attempt(pins, asked, begun)
            begun = None
            if executable is not None and fault is None:
                return self.done(executable, pins, asked)
            assert fault is not None
            found = self.blame(fault, pins) if self.all - pins else frozenset()
            if not found - pins:
                break
            pins |= found
        return self.last_resort(asked)

    def ask(self, asked_of: Sequence[tuple[str, list[Any]]]) -> list[_Probe]:
        """The reference's answers. A derived probe that it refuses is left out; the example must work."""
        asked: list[_Probe] = []
        for name, inputs in asked_of:
            try:
                wanted = list(_seeded(partial(self.reference, inputs)))
            except Exception as e:  # whatever the user's program raises on inputs that we made up
                if not asked:
                    raise
                self.remark("analysis", name, f"left out, the captured program refuses it: {e}")
                continue
            asked.append(_Probe(name, inputs, wanted))
        return asked

    def build(self, pins: frozenset[int]) -> Executable:
        start = time.perf_counter()
        try:
            with _torch_threads(self.every):  # models are divided by their number
                return Executable(self.program, self.target, pins, self.threads)
        finally:
            self.building += time.perf_counter() - start

    def attempt(
        self, pins: frozenset[int], asked: Sequence[_Probe], begun: Future[Executable] | None = None
    ) -> tuple[Executable | None, _Fault | None]:
        """The program with these pins, and the first probe on which it is wrong."""
        try:
            executable = begun.result() if begun is not None else self.build(pins)
        except RunError as e:
            return None, _Fault(asked[0], str(e))
        give_back()  # what compiling and the reference have left
        for probe in asked:
            try:
                found = _seeded(partial(executable, [copied(v) for v in probe.inputs]))
            except (ForgeError, RuntimeError) as e:
                return executable, _Fault(probe, str(e))
            verdict = self.judged(executable, probe, found)
            if not verdict:
                return executable, _Fault(probe, verdict.reason)
        return executable, None

    def judged(self, run: Reference, probe: _Probe, found: Sequence[Any]) -> Verdict:
        """The criterion, and where results are few a second look over more inputs."""
        verdict = compare(found, probe.wanted, partial(self.outputs_in_float64, probe.inputs))
        return verdict or look_again(
            verdict,
            probe.inputs,
            lambda inputs: _seeded(partial(run, inputs)),
            lambda inputs: _seeded(partial(self.reference, inputs)),
            self.outputs_in_float64,
        )

    def by_torch(self, inputs: Sequence[Any]) -> list[Any]:
        values = evaluate(self.program, inputs)
        return [values[r] for r in self.program.outputs]

    def outputs_in_float64(self, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """The captured program's answer, never our own program's: that one could not show our own fault."""
        give_back()  # what compiling has left
        return None if self.wide is None else self.wide(inputs)

    def in_float64(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Every register in float64; None when a call with its own dtype stands in the way."""
        try:
            return list(_seeded(lambda: evaluate(self.program, inputs, wide=True)))
        except RunError:
            return None

    def blame(self, fault: _Fault, pins: frozenset[int]) -> frozenset[int]:
        """What to pin besides: each segment's culprit and the instructions like it elsewhere."""
        probe = fault.probe
        values = _seeded(lambda: evaluate(self.program, probe.inputs))
        verdict = self.judged(self.by_torch, probe, [values[r] for r in self.program.outputs])
        if not verdict:
            raise self.not_ours(probe, verdict.reason)
        pinned = pin(self.program, self.target, pins)
        chosen: set[int] = set()
        wide = cache(lambda: self.in_float64(probe.inputs))
        for culprit in culprits(pinned, self.target, values, wide, self.threads):
            instr = self.program.instrs[culprit.position]
            alike = {p for p in self.all if self.signature(p) == self.signature(culprit.position)}
            chosen |= {culprit.position} | alike
            more = f", and {len(alike) - 1} like it" if len(alike) > 1 else ""
            reason = f"OpenVINO's result is wrong on {probe.name} inputs ({culprit.reason}); torch computes it{more}"
            self.remark("failed", describe(self.program, instr), reason)
        return frozenset(chosen)

    def last_resort(self, asked: Sequence[_Probe]) -> Guarded:
        """Everything on torch, checked like any other."""
        executable, fault = self.attempt(self.all, asked)
        if executable is None or fault is not None:
            assert fault is not None
            raise self.not_ours(fault.probe, fault.reason)
        self.remark("failed", self.program.name, "OpenVINO's results stay wrong; torch runs all of it")
        return self.done(executable, self.all, asked)

    def done(self, executable: Executable, pins: frozenset[int], asked: Sequence[_Probe]) -> Guarded:
        names = ", ".join(p.name for p in asked)
        self.remark("passed", self.program.name, f"agrees with the captured program on {names} inputs")
        give_back()
        return Guarded(executable, pins, len(asked), tuple(self.remarks), self.building)

    def not_ours(self, probe: _Probe, reason: str) -> RunError:
        return RunError(
            "guard",
            self.program.name,
            f"differs from the captured program on {probe.name} inputs also when torch runs it: {reason}",
            "report it with the program; optimize(..., verify='full') finds the rule",
        )

    def remark(self, kind: str, node: str, reason: str) -> None:
        self.remarks.append(Remark(kind, "guard", node, reason))

    def signature(self, position: int) -> tuple[Any, ...]:
        """Instructions of equal signature become equal nodes."""
        instr = self.program.instrs[position]
        types = tuple(operand_type(self.program, s) for s in instr.srcs)
        return instr.op, types, repr(instr.attrs), tuple(self.program.vregs[d].type for d in instr.dsts)


def _seeded(call: Callable[[], Any]) -> Any:
    """Runs with torch's random numbers at a fixed start, so that programs which draw can be compared."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return call()


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    """Gives torch's kernels, as this thread calls them, so many threads.

    The threads of a kernel wait for each other. With one more thread than cores each such wait is a turn of the
    scheduler: GPT-2's step has 200 of them, and took up to 2 s instead of 0.05 while OpenVINO compiled.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _crowded() -> bool:
    """Whether another program uses the cores, so that torch's threads wait for each other's turn.

    A small kernel on all threads takes 10 microseconds here, and 8 milliseconds beside one program that is busy:
    SmolLM2 over 128 tokens then compiled in 30 s instead of 2.
    """
    if torch.get_num_threads() == 1:
        return False
    value, times = torch.zeros(SHARED), list[float]()
    for _ in range(3):
        start = time.perf_counter()
        torch.neg(value, out=value)
        times.append(time.perf_counter() - start)
    return sorted(times)[1] > TURN
