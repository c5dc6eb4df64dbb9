"""Text form of NPU IR, both ways.

Takes a :class:`Program` or its text. Gives the other. Promises: ``parse(text(p)) == p``, and equal programs have
equal texts. One fact a line; types after the colon, provenance after the semicolon::

    npu @mlp target=openvino-cpu
      input v0 : f32[8,64] npu
      const v1 : f32[64,128] npu "fc.weight"
      v2 = npu.matmul.linear v0, v1 {transposed=false} : f32[8,128]  ; %2 fusion/linear fc model.py:7
      v3~v2 = npu.move.reshape v2 {shape=(1024,)} : f32[1024]  ; %3
      return v3

``v3~v2`` says that v3 shares the buffer of v2, ``#2.0`` is an immediate. Weights are not part of the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from forge_eq.errors import ParseError
from forge_eq.ir.graph import Origin
from forge_eq.ir.types import Type, parse_type
from forge_eq.lower.npu import COPY, Imm, Instr, Operand, Program, VReg
from forge_eq.ops.spec import REGISTRY, Op

# --------------------------------------------------------------------------------------------- printing


def text(program: Program) -> str:
    """The program as text, one line per register or instruction."""
    names = program.constant_names
    lines = [f"npu @{program.name} target={program.target}"]
    lines += [f"  input v{v} : {program.vregs[v].type} {program.vregs[v].device}" for v in program.inputs]
    lines += [f"  const v{v} : {program.vregs[v].type} {program.vregs[v].device} {json.dumps(names[v])}" for v in names]
    lines += [f"  {instr_text(program, i)}" for i in program.instrs]
    lines.append("  return" + "".join(f"{',' if k else ''} v{v}" for k, v in enumerate(program.outputs)))
    return "\n".join(lines) + "\n"


def instr_text(program: Program, instr: Instr) -> str:
    """One instruction without indentation."""
    vregs = [program.vregs[d] for d in instr.dsts]
    dsts = ", ".join(f"v{v.id}" + ("" if v.alias_of is None else f"~v{v.alias_of}") for v in vregs)
    srcs = ", ".join(f"v{s}" if isinstance(s, int) else f"#{attr_text(s.value)}" for s in instr.srcs)
    names = [n for n, _ in instr.op.attrs] if instr.op is not None else []
    attrs = ", ".join(f"{n}={attr_text(a)}" for n, a in zip(names, instr.attrs, strict=True))
    line = f"{dsts} = {instr.opcode}{' ' if srcs else ''}{srcs}{f' {{{attrs}}}' if attrs else ''}"
    return f"{line} : {', '.join(str(v.type) for v in vregs)}{_provenance(instr)}"


def _provenance(instr: Instr) -> str:
    words = [instr.origin.rule, instr.origin.module, instr.origin.source]
    while words and not words[-1]:
        words.pop()
    shown = ["-" if not w else w if re.fullmatch(r'[^\s"]+', w) and w != "-" else json.dumps(w) for w in words]
    parts = [f"%{instr.node}"] if instr.node >= 0 else ["%-"] if shown else []
    return "  ; " + " ".join([*parts, *shown]) if parts else ""


def attr_text(value: Any) -> str:
    """An attribute: ``true``, ``7``, ``0.5``, ``"name"``, ``none``, ``(1, 2)``; floats keep every bit."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        inner = ", ".join(map(attr_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise TypeError(f"{value!r} is not an attribute of a lowered program")


# ---------------------------------------------------------------------------------------------- parsing

_HEAD = re.compile(r"npu @(\S*) target=(\S+)")
_LEAF = re.compile(r"(input|const) v(\d+) : (.+?) (\w+)(?: (\".*\"))?")
_DST = re.compile(r"v(\d+)(?:~v(\d+))?")
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|-?inf\b|nan\b|-?[0-9][0-9.eE+\-]*|[A-Za-z_]\w*|[#{}()=,:;])')
_WORDS = {"none": None, "true": True, "false": False, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def parse(source: str) -> Program:
    """Reads what :func:`text` wrote. Raises ParseError, which names the line."""
    lines = [(i + 1, line) for i, line in enumerate(source.splitlines()) if line.strip()]
    head = _HEAD.fullmatch(lines[0][1].strip()) if lines else None
    if head is None:
        raise _error(1, "no 'npu @name target=...' line", lines[0][1] if lines else "")
    reader = _ProgramReader()
    for number, line in lines[1:]:
        try:
            reader.line(line.strip())
        except (ValueError, KeyError, IndexError, TypeError) as e:
            raise _error(number, str(e) or type(e).__name__, line) from e
    return reader.finish(head[1], head[2], lines[-1][0])


def _error(number: int, reason: str, line: str) -> ParseError:
    return ParseError("lower", f"line {number}", f"{reason}: {line.strip()!r}", "compare with the grammar in lower/text.py")


class _ProgramReader:
    def __init__(self) -> None:
        self.vregs: dict[int, VReg] = {}
        self.inputs: list[int] = []
        self.constants: list[tuple[int, str]] = []
        self.instrs: list[Instr] = []
        self.outputs: tuple[int, ...] | None = None

    def line(self, line: str) -> None:
        if self.outputs is not None:
            raise ValueError("text after return")
        if line == "return" or line.startswith("return "):
            self.outputs = tuple(_register(w) for w in line[7:].split(",")) if line[7:].strip() else ()
        elif line.startswith(("input ", "const ")):
            self.leaf(line)
        else:
            self.instrs.append(self.instr(line))

    def leaf(self, line: str) -> None:
        found = _LEAF.fullmatch(line)
        if not found or (found[1] == "const") != (found[5] is not None):
            raise ValueError("not an input or const line")
        vreg = self.define(int(found[2]), parse_type(found[3]), found[4], None)
        if found[1] == "input":
            self.inputs.append(vreg)
        else:
            self.constants.append((vreg, json.loads(found[5])))

    def define(self, vreg: int, type: Type, device: str, alias: int | None) -> int:
        if vreg in self.vregs:
            raise ValueError(f"v{vreg} is defined twice")
        self.vregs[vreg] = VReg(vreg, type, device, alias)
        return vreg

    def instr(self, line: str) -> Instr:
        left, _, right = line.partition(" = ")
        dsts = [_DST.fullmatch(d.strip()) for d in left.split(",")]
        opcode, _, rest = right.partition(" ")
        device, unit, op = _opcode(opcode)
        cursor = _Cursor(rest)
        srcs = tuple(_operands(cursor))
        attrs = tuple(_attrs(cursor, op))
        types, _, note = cursor.after_colon().partition("  ; ")
        parts = _split_types(types)
        if len(parts) != len(dsts):
            raise ValueError(f"{len(dsts)} results and {len(parts)} types")
        made = []
        for dst, part in zip(dsts, parts, strict=True):
            if dst is None:
                raise ValueError("not a result register")
            made.append(self.define(int(dst[1]), parse_type(part), device, int(dst[2]) if dst[2] else None))
        node, origin = _read_provenance(note)
        return Instr(op, tuple(made), srcs, attrs, device, unit, node, origin)

    def finish(self, name: str, target: str, last: int) -> Program:
        if self.outputs is None:
            raise _error(last, "no return line", "")
        if sorted(self.vregs) != list(range(len(self.vregs))):
            raise _error(last, "register numbers have gaps", "")
        vregs = tuple(self.vregs[i] for i in range(len(self.vregs)))
        return Program(
            name, target, vregs, tuple(self.inputs), tuple(self.constants), tuple(self.instrs), self.outputs
        )


def _register(word: str) -> int:
    found = re.fullmatch(r"v(\d+)", word.strip())
    if not found:
        raise ValueError(f"{word.strip()!r} is not a register")
    return int(found[1])


def _opcode(opcode: str) -> tuple[str, str, Op | None]:
    parts = opcode.split(".")
    if len(parts) == 2 and parts[1] == COPY:
        return parts[0], COPY, None
    if len(parts) != 3:
        raise ValueError(f"{opcode!r} is not an opcode")
    if parts[2] not in REGISTRY:
        raise ValueError(f"no op is called {parts[2]!r}")
    return parts[0], parts[1], REGISTRY[parts[2]]


class _Cursor:
    """Reads tokens of an instruction's operands and attributes."""

    def __init__(self, source: str) -> None:
        self.source, self.at = source, 0

    def peek(self) -> str:
        found = _TOKEN.match(self.source, self.at)
        return found[1] if found else ""

    def next(self) -> str:
        found = _TOKEN.match(self.source, self.at)
        if not found:
            raise ValueError(f"cannot read {self.source[self.at:][:20]!r}")
        self.at = found.end()
        return found[1]

    def expect(self, token: str) -> None:
        if (found := self.next()) != token:
            raise ValueError(f"{token!r} is due, not {found!r}")

    def after_colon(self) -> str:
        self.expect(":")
        return self.source[self.at:]


def _operands(cursor: _Cursor) -> Iterable[Operand]:
    while cursor.peek() not in ("{", ":"):
        token = cursor.next()
        yield Imm(_number(cursor)) if token == "#" else _register(token)
        if cursor.peek() != ",":
            return
        cursor.next()


def _number(cursor: _Cursor) -> int | float | bool:
    value = _value(cursor)
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return value


def _attrs(cursor: _Cursor, op: Op | None) -> Iterable[Any]:
    names = [n for n, _ in op.attrs] if op is not None else []
    for index, name in enumerate(names):
        cursor.expect("," if index else "{")
        cursor.expect(name)
        cursor.expect("=")
        yield _value(cursor)
    if names:
        cursor.expect("}")


def _value(cursor: _Cursor) -> Any:
    token = cursor.next()
    if token == "(":
        items = []
        while cursor.peek() != ")":
            items.append(_value(cursor))
            if cursor.peek() == ",":
                cursor.next()
        cursor.next()
        return tuple(items)
    if token in _WORDS:
        return _WORDS[token]
    if token.startswith('"'):
        return json.loads(token)
    return int(token) if re.fullmatch(r"-?\d+", token) else float(token)


def _split_types(source: str) -> list[str]:
    """Splits at the commas outside every bracket."""
    parts, depth = [""], 0
    for ch in source.strip():
        depth += (ch in "([") - (ch in ")]")
        if ch == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += ch
    return parts


def _read_provenance(note: str) -> tuple[int, Origin]:
    words = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', note)
    if not words:
        return -1, Origin()
    values = ["" if w == "-" else json.loads(w) if w.startswith('"') else w for w in words[1:]]
    rule, module, source = [*values, "", "", ""][:3]
    return (-1 if words[0] == "%-" else int(words[0][1:])), Origin(source, module, rule)
