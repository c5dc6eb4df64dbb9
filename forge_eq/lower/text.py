"""Text form of NPU IR, both ways.

Takes a :class:`Program` or its text. Gives the other. Promises: ``parse(text(p)) == p``, and equal programs have
equal texts. One fact a line; types after the colon, provenance (node, rule, module, source) after the semicolon::

    npu @mlp target=openvino-cpu
      input v0 : f32[8,64] npu
      const v1 : f32[64,128] npu fc.weight
      v2 = npu.matmul.linear v0, v1 {transposed=False} : f32[8,128]  ; %2 fusion/linear fc model.py:7
      v3 = npu.vector.mul v2, 0.5 : f32[8,128]  ; %4
      v4~v3 = npu.move.reshape v3 {shape=(1024,)} : f32[1024]  ; %5
      return v4

``v4~v3`` says that v4 shares the buffer of v3 (a view of it, or written over it), and ``return v9 -> v1`` that v9 is
what the memory of input v1 holds after the run; a number among the operands is an immediate; ``stored (0,2,1)`` after
the type is the order of axes in which a result is stored when that is not row-major. Weights, submodules and the
calling convention are not part of the text. Values are spelled as in ``ir.lexer``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from forge_eq.ir.graph import Origin
from forge_eq.ir.lexer import Cursor, ident, plain, show
from forge_eq.ir.types import Type, parse_type
from forge_eq.lower.npu import COPY, Imm, Instr, Operand, Program, VReg
from forge_eq.ops import REGISTRY, Op

# --------------------------------------------------------------------------------------------- printing


def text(program: Program) -> str:
    """The program as text, one line per register or instruction."""
    names, vregs = program.constant_names, program.vregs
    lines = [f"npu @{ident(program.name)} target={plain(program.target)}"]
    lines += [f"  input v{v} : {vregs[v].type} {vregs[v].device}" for v in program.inputs]
    lines += [f"  const v{v} : {vregs[v].type} {vregs[v].device} {plain(names[v])}" for v in names]
    lines += [f"  {instr_text(program, i)}" for i in program.instrs]
    into = {output: f" -> v{program.inputs[index]}" for output, index in program.writes}
    lines.append("  return" + ",".join(f" v{v}{into.get(k, '')}" for k, v in enumerate(program.outputs)))
    return "\n".join(lines) + "\n"


def instr_text(program: Program, instr: Instr) -> str:
    """One instruction without indentation."""
    vregs = [program.vregs[d] for d in instr.dsts]
    dsts = ", ".join(f"v{v.id}" + ("" if v.alias_of is None else f"~v{v.alias_of}") for v in vregs)
    srcs = ", ".join(f"v{s}" if isinstance(s, int) else show(s.value) for s in instr.srcs)
    names = [n for n, _ in instr.op.attrs] if instr.op is not None else []
    attrs = ", ".join(f"{n}={show(a)}" for n, a in zip(names, instr.attrs, strict=True))
    head = f"{dsts} = {instr.opcode}{f' {srcs}' if srcs else ''}{f' {{{attrs}}}' if attrs else ''}"
    stored = f" stored {show(instr.layout)}" if instr.layout else ""
    return f"{head} : {', '.join(str(v.type) for v in vregs)}{stored}{_provenance(instr)}"


def _provenance(instr: Instr) -> str:
    words = [plain(w) if w else "-" for w in (instr.origin.rule, instr.origin.module, instr.origin.source)]
    while words and words[-1] == "-":
        words.pop()
    node = [f"%{instr.node}"] if instr.node >= 0 else ["-"] if words else []
    return "  ; " + " ".join([*node, *words]) if node else ""


# ---------------------------------------------------------------------------------------------- parsing

_REGISTER = re.compile(r"v(\d+)\b")
_NODE = re.compile(r"%\d+|-(?!\S)")
_TYPE = re.compile(r"[a-z]+\d*(?:\[[^\]]*\])?")
_OPCODE = re.compile(r"[\w.]+")


def parse(source: str) -> Program:
    """Reads what :func:`text` wrote. Raises ParseError with line, column and remedy."""
    cursors = [c for c in (Cursor(line, n, "npu") for n, line in enumerate(source.split("\n"), 1)) if not c.done]
    if not cursors:
        Cursor("", 1, "npu").fail("no program", "begin with: npu @name target=...")
    reader = _Reader(cursors[0])
    for cursor in cursors[1:]:
        reader.line(cursor)
    return reader.finish(cursors[-1])


def reparse(program: Program) -> Program:
    """The program as its own text reads, with the weights and the calling convention that text leaves out."""
    return replace(parse(text(program)), data=program.data, submodules=program.submodules, signature=program.signature)


class _Reader:
    """The state of one reading."""

    def __init__(self, head: Cursor) -> None:
        head.need("npu")
        head.need("@")
        self.name = head.ident()
        head.need("target=")
        self.target = head.name()
        head.end()
        self.vregs: dict[int, VReg] = {}
        self.inputs: list[int] = []
        self.constants: list[tuple[int, str]] = []
        self.instrs: list[Instr] = []
        self.outputs: tuple[int, ...] | None = None
        self.writes: list[tuple[int, int]] = []

    def line(self, c: Cursor) -> None:
        if self.outputs is not None:
            c.fail("a line after return", "end with return")
        if c.take("return"):
            self.outputs = () if c.done else tuple(self.returned(c))
            c.end()
        elif c.take("input"):
            self.inputs.append(self.leaf(c))
            c.end()
        elif c.take("const"):
            vreg = self.leaf(c)
            self.constants.append((vreg, c.name()))
            c.end()
        else:
            self.instrs.append(self.instr(c))

    def returned(self, c: Cursor) -> list[int]:
        found: list[int] = []
        while not found or c.take(","):
            found.append(_register(c))
            if c.take("->"):
                target = _register(c)
                if target not in self.inputs:
                    c.fail(f"v{target} is no input", "write back into an input")
                self.writes.append((len(found) - 1, self.inputs.index(target)))
        return found

    def leaf(self, c: Cursor) -> int:
        vreg = _register(c)
        c.need(":")
        type = _type(c)
        return self.define(c, VReg(vreg, type, c.word()))

    def define(self, c: Cursor, vreg: VReg) -> int:
        if vreg.id in self.vregs:
            c.fail(f"v{vreg.id} is defined twice", "give every register one definition")
        self.vregs[vreg.id] = vreg
        return vreg.id

    def instr(self, c: Cursor) -> Instr:
        """``v3, v4~v1 = device.unit.op operands {attributes} : types  ; %node rule module source``."""
        heads: list[tuple[int, int | None]] = []
        while not heads or c.take(","):
            heads.append((_register(c), _register(c) if c.take("~") else None))
        c.need("=")
        device, unit, op = _opcode(c)
        srcs = _operands(c)
        attrs = _attributes(c, op)
        c.need(":")
        for k, (vreg, alias) in enumerate(heads):
            if k:
                c.need(",")
            self.define(c, VReg(vreg, _type(c), device, alias))
        layout = _layout(c) if c.take("stored") else ()
        node, origin = _read_provenance(c)
        return Instr(op, tuple(v for v, _ in heads), srcs, attrs, device, unit, node, origin, layout)

    def finish(self, last: Cursor) -> Program:
        if self.outputs is None:
            last.fail("no return line", "end with return")
        if sorted(self.vregs) != list(range(len(self.vregs))):
            last.fail("register numbers have gaps", "number registers from v0 up")
        return Program(
            name=self.name,
            target=self.target,
            vregs=tuple(self.vregs[i] for i in range(len(self.vregs))),
            inputs=tuple(self.inputs),
            constants=tuple(self.constants),
            instrs=tuple(self.instrs),
            outputs=self.outputs,
            writes=tuple(self.writes),
        )


def _register(c: Cursor) -> int:
    found = c.match(_REGISTER)
    return int(found[1:]) if found else c.fail("a register is due", "write v and a number")


def _type(c: Cursor) -> Type:
    try:
        return parse_type(c.match(_TYPE) or "")
    except ValueError as e:
        c.fail(str(e), "write dtype[dims], int, float, bool or none")


def _opcode(c: Cursor) -> tuple[str, str, Op | None]:
    parts = (c.match(_OPCODE) or "").split(".")
    if len(parts) == 2 and parts[1] == COPY:
        return parts[0], COPY, None
    if len(parts) != 3:
        c.fail("an opcode is due", "write device.unit.op, or device.copy")
    op = REGISTRY.get(parts[2])
    if op is None:
        c.fail(f"no op is called {parts[2]!r}", "see `forge-eq ops` for the names")
    return parts[0], parts[1], op


def _operands(c: Cursor) -> tuple[Operand, ...]:
    found: list[Operand] = []
    while not (c.peek("{") or c.peek(":")):
        if found:
            c.need(",")
        register = c.match(_REGISTER)
        found.append(int(register[1:]) if register else Imm(_number(c)))
    return tuple(found)


def _layout(c: Cursor) -> tuple[int, ...]:
    found: Any = c.value()
    if not isinstance(found, tuple) or sorted(map(str, found)) != sorted(map(str, range(len(found)))):
        c.fail(f"{found!r} is no order of axes", "write a permutation such as (0,2,1)")
    return found


def _number(c: Cursor) -> int | float | bool:
    value: Any = c.value()
    if not isinstance(value, int | float):
        c.fail(f"{value!r} is no number", "write a register or a number")
    return value


def _attributes(c: Cursor, op: Op | None) -> tuple[Any, ...]:
    names = [n for n, _ in op.attrs] if op is not None else []
    values = []
    for k, name in enumerate(names):
        c.need("," if k else "{")
        c.need(f"{name}=")
        values.append(c.value())
    if names:
        c.need("}")
    return tuple(values)


def _read_provenance(c: Cursor) -> tuple[int, Origin]:
    if not c.take(";"):
        c.end()
        return -1, Origin()
    node = c.match(_NODE) or c.fail("a node is due", "write %number, or - for none")
    words: list[str] = []
    while not c.done and len(words) < 3:
        quoted = c.peek('"')
        word = c.name()
        words.append("" if word == "-" and not quoted else word)
    c.end()
    rule, module, source = (*words, "", "", "")[:3]
    return (-1 if node == "-" else int(node[1:])), Origin(source, module, rule)
