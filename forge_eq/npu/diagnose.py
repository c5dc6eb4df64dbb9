"""What a refusal of the NPU compiler means for the user's model.

Takes a :class:`Refused` and the program that was compiled. Gives a :class:`Diagnosis`: the first diagnostic, the
instruction, op and source line that it is about, and what can be done. Promises: a message that is not known is told
as it is, not guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forge_eq.lower.npu import Instr, Program
from forge_eq.npu.compiler import Refused
from forge_eq.npu.segments import instruction

_NAMES = (re.compile(r'name = "([^"]+)"'), re.compile(r"loc\(\"([^\"]+)\""), re.compile(r"(\S+ v\d+(?:\.\d+)?)"))
_NOISE = re.compile(r"^(Exception from|\d+:$|Compilation failed\. vcl|\s*$)")
_LEVEL = re.compile(r"^.*?\[(ERROR|WARNING)\] \d\d:\d\d:\d\d\.\d+ ")

# Pattern of the compiler's text -> (what is wrong, what to do), in our words. The first that fits is told.
KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"did not end within",
        "the compiler takes too long for this program",
        "cut it into smaller products, or allow more time",
    ),
    (
        r"[Uu]pper bound|to_shape was called on a dynamic|dynamic shape|-?922337203685477580[78]",
        "a size is not known when the program is compiled",
        "compile for concrete sizes, or give max_size",
    ),
    (r"16-bit float.*bf16|bf16", "the NPU has no bfloat16", "convert the model to float32 or float16"),
    (r"Failed to find BLOCKED", "a value has more than five axes", "join axes with a reshape before the op"),
    (r"not covered by aliases", "the compiler's own attention kernel loses track of a buffer", "use another mask form"),
    (r"ConvertPrecisionToFP|ConvertPrecision", "an op has no f16 form on the NPU", "keep the op on the host"),
    (r"[Ff]ailed to legalize", "the compiler has no instruction for the op", "keep the op on the host"),
    (r"duplicated names", "two nodes have one name", "give unique friendly names (forge_eq does)"),
    (r"[Ii]s not supported|[Uu]nsupported|not implemented", "the compiler does not support it", "keep it on the host"),
    (r"index_element_type|String attribute", "the compiler cannot read an attribute of the op", "keep it on the host"),
    (r"not enough CMX|[Mm]emory allocation|exceeds.*memory", "a value does not fit the NPU's memory", "use fewer rows"),
    (
        r"process ended|LLVM ERROR|Assertion",
        "the compiler crashed on this program",
        "keep the op on the host, or change its sizes",
    ),
    (r"Failed to create a valid MLIR module", "the compiler cannot read the program", "keep the op on the host"),
)


@dataclass(frozen=True)
class Diagnosis:
    """``first`` is the compiler's first diagnostic; ``instr`` the instruction it names, if any."""

    first: str
    reason: str
    remedy: str
    node: str = ""
    instr: Instr | None = None

    @property
    def op(self) -> str:
        """The op of the user's model, or the node's name when no instruction is known."""
        return self.instr.op.name if self.instr is not None and self.instr.op is not None else self.node

    @property
    def where(self) -> str:
        """Module path and source line of the user's model."""
        if self.instr is None:
            return ""
        return " ".join(w for w in (self.instr.origin.module, self.instr.origin.source) if w)

    def __str__(self) -> str:
        place = " ".join(w for w in (self.op, self.where) if w)
        return f"{place + ': ' if place else ''}{self.reason}; {self.remedy}\n    the compiler says: {self.first}"


def diagnose(refused: Refused, program: Program | None = None) -> Diagnosis:
    """The diagnosis of a refusal. Without ``program`` nodes keep the names that the compiler gives them."""
    whole = f"{refused.log}\n{refused.message}".splitlines()
    lines = [_LEVEL.sub("", line).strip() for line in whole if "[WARNING]" not in line and "[INFO]" not in line]
    told = [line for line in lines if line and not _NOISE.match(line)]
    logged = [_LEVEL.sub("", line).strip() for line in whole if "[ERROR]" in line]
    errors = logged + [line for line in told if line not in logged] or [""]
    text = "\n".join(errors)
    node, instr = _culprit("\n".join(told), program)
    for pattern, reason, remedy in KNOWN:
        if re.search(pattern, text):
            return Diagnosis(_first(errors, pattern), reason, remedy, node, instr)
    return Diagnosis(errors[0][:400], "the compiler refuses it", "report it with this message", node, instr)


def _first(errors: list[str], pattern: str) -> str:
    return next((e for e in errors if re.search(pattern, e)), errors[0])[:400]


def _culprit(text: str, program: Program | None) -> tuple[str, Instr | None]:
    """The first node in the text that is one of the program's, else the first that has a name at all."""
    names = [n for pattern in _NAMES for n in pattern.findall(text) if n != "main"]
    for name in names if program is not None else []:
        found = instruction(program, name) if program is not None else None
        if found is not None:
            return name, found
    return (names[0] if names and program is None else ""), None
