"""Every NPU segment of a program through the NPU compiler.

Takes a scheduled program and its target. Gives a :class:`Report`: per segment accepted or diagnosed, size of the blob,
compile time, simulated total, and per instruction its part of the time and where it comes from. Promises: the parts of
a segment's instructions, of what belongs to none, and of idle time add up to its total.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from forge_eq.lower.npu import Instr, Program, Segment
from forge_eq.npu.compiler import PLATFORMS, SIMULATED, Answer, Compiled, Compiler, Refused
from forge_eq.npu.diagnose import Diagnosis, diagnose
from forge_eq.npu.segments import instruction, npu_segments, segment_model
from forge_eq.npu.trace import NONE, Layer
from forge_eq.run.openvino_builder import NodeBuilder
from forge_eq.run.openvino_npu import builder_of
from forge_eq.targets import Target


@dataclass(frozen=True)
class Spent:
    """What one instruction takes, in microseconds; ``instr`` None stands for moves that belong to none.

    ``share`` is its part of the time line; ``dma``, ``dpu`` and ``shave`` are sums over its tasks on all engines.
    ``unknown``: it contains a kernel that the cost model has no price for.
    """

    instr: Instr | None
    share: float
    dma: float
    dpu: float
    shave: float
    unknown: bool


@dataclass(frozen=True)
class Checked:
    """One segment: the compiler's answer, and the time of its instructions, longest first."""

    segment: Segment
    answer: Answer
    spent: tuple[Spent, ...] = ()
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True)
class Report:
    """All segments of a program on one platform. ``host`` are the instructions that stay on the host."""

    program: Program
    platform: str
    segments: tuple[Checked, ...]
    host: tuple[Instr, ...]

    @property
    def accepted(self) -> bool:
        return all(isinstance(s.answer, Compiled) for s in self.segments)

    @property
    def total(self) -> float:
        """Simulated microseconds of all accepted segments."""
        found = (s.answer for s in self.segments)
        return sum(a.simulation.total for a in found if isinstance(a, Compiled) and a.simulation is not None)

    def text(self, most: int = 12) -> str:
        """The report for reading; ``most`` instructions of each segment."""
        lines = [f"NPU {self.platform} ({PLATFORMS[self.platform]}); times {SIMULATED}"]
        for number, checked in enumerate(self.segments):
            lines += _segment_lines(number, checked, most)
        names = sorted({i.op.name for i in self.host if i.op is not None})
        lines.append(f"on the host: {', '.join(names) or 'nothing'}")
        verdict = f"accepted, {self.total / 1e3:.3f} ms" if self.accepted else "refused"
        if not self.segments:
            verdict = "nothing is placed on the NPU: for each part the transfers would cost more than its kernels"
        return "\n".join([*lines, verdict])


def check(
    program: Program,
    target: Target,
    compiler: Compiler,
    platform: str = "4000",
    on_segment: Callable[[int], None] | None = None,
    builder: Callable[[], NodeBuilder] | None = None,
) -> Report:
    """Compiles every NPU segment, its kernels written on ``builder()``, the platform's own if none is given.

    Raises:
        NpuError: the compiler cannot be started.
        RunError: a kernel cannot be built, or the program carries no weights.
    """
    found = []
    for number, segment in enumerate(npu_segments(program, target)):
        if on_segment is not None:
            on_segment(number)
        built = segment_model(program, segment, builder or builder_of(platform))
        if built is not None:
            found.append(judge(program, segment, compiler.compile(built.model, platform)))
    host = tuple(i for i in program.instrs if i.device == target.host and not i.is_copy)
    return Report(program, platform, tuple(found), host)


def judge(program: Program, segment: Segment, answer: Answer) -> Checked:
    """An answer of the compiler in terms of the program."""
    if isinstance(answer, Refused):
        return Checked(segment, answer, diagnosis=diagnose(answer, program))
    layers = answer.simulation.layers if answer.simulation is not None else ()
    return Checked(segment, answer, spent_by(program, layers))


def spent_by(program: Program, layers: tuple[Layer, ...]) -> tuple[Spent, ...]:
    """The layers' times by instruction, longest first."""
    grouped: dict[Instr | None, list[Layer]] = defaultdict(list)
    for layer in layers:
        if layer.name != NONE:
            grouped[instruction(program, layer.name)].append(layer)
    found = []
    for instr, own in grouped.items():
        share, dma, dpu, shave = (sum(getattr(x, f) for x in own) for f in ("share", "dma", "dpu", "shave"))
        found.append(Spent(instr, share, dma, dpu, shave, any(x.unknown for x in own)))
    return tuple(sorted(found, key=lambda s: (-s.share, s.instr.dsts if s.instr else ())))


def _segment_lines(number: int, checked: Checked, most: int) -> list[str]:
    segment, answer = checked.segment, checked.answer
    head = f"segment {number} (instructions {segment.start} to {segment.stop - 1}): "
    if isinstance(answer, Refused):
        return [head + f"REFUSED in {answer.stage}", f"  {checked.diagnosis}"]
    lines = [head + f"accepted, blob {answer.blob} bytes, compiled in {answer.seconds:.1f} s"]
    s = answer.simulation
    if s is None:
        return lines
    lines.append(f"  {s.total:.1f} us: DMA {s.dma:.1f}, DPU {s.dpu:.1f}, SHAVE {s.shave:.1f} (they overlap)")
    unknown = [x for x in checked.spent if x.unknown]
    if unknown:
        ops = sorted({x.instr.op.name if x.instr and x.instr.op else "copies" for x in unknown})
        lines.append(f"  no price in the cost model for {len(unknown)} instructions' kernels: {', '.join(ops)}")
    lines.append(f"  {'us':>9} {'DMA':>9} {'DPU':>9} {'SHAVE':>9}   instruction")
    for x in checked.spent[:most]:
        lines.append(
            f"  {x.share:9.1f} {x.dma:9.1f} {x.dpu:9.1f} {x.shave:9.1f} {'?' if x.unknown else ' '} {_told(x)}"
        )
    if len(checked.spent) > most:
        rest = sum(x.share for x in checked.spent[most:])
        lines.append(f"  {rest:9.1f} in {len(checked.spent) - most} others")
    return lines


def _told(spent: Spent) -> str:
    if spent.instr is None:
        return "inputs, outputs and start"
    origin = spent.instr.origin
    return " ".join(w for w in (f"{spent.instr.opcode} v{spent.instr.dsts[0]}", origin.module, origin.rule) if w)
