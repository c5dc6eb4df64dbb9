"""Golden cases: one text file is a program, options, and the forms that stages give for it.

::

    # case: a title
    ## options
    alpha=0.5
    ## input
    graph @g(%0 x: f32[2]) -> f32[2]
      ...
    ## after extract
    graph @g(...) ...

A file lists only the sections it cares about. Each must come out the same, byte for byte, in every treatment:
straight; with every form printed and parsed between stages; and in new processes under two hash seeds.
A section that no stage gives is an error, so that no golden text is left behind when a stage goes.

This module is also the program that such a process runs: ``case_runner.py MODULE:FUNCTION FILE...`` prints JSON.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# (input text, options, print and parse between stages?) -> section name -> text, e.g. {"after extract": "graph ..."}
Compile = Callable[[str, Mapping[str, Any], bool], Mapping[str, str]]

SEEDS = ("0", "1")


class CaseError(Exception):
    """A case file is malformed. The text names file and line."""


@dataclass(frozen=True)
class Case:
    """A case file. ``sections`` has every section in file order, ``text`` of each without its heading."""

    path: Path
    title: str
    sections: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str:
        return dict(self.sections)[name]

    @property
    def options(self) -> dict[str, Any]:
        """``name=value`` words: Python literals, else text."""
        found = {}
        for word in dict(self.sections).get("options", "").split():
            name, equals, value = word.partition("=")
            if not (name and equals):
                raise CaseError(f"{self.path.name}: option {word!r} is not name=value")
            try:
                found[name] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                found[name] = value
        return found

    @property
    def golden(self) -> dict[str, str]:
        """The sections that a run must give."""
        return {name: body for name, body in self.sections if name not in GIVEN}

    @property
    def text(self) -> str:
        return f"# case: {self.title}\n" + "".join(f"## {name}\n{body}" for name, body in self.sections)


GIVEN = ("options", "input")


def parse_case(text: str, path: Path, known: Collection[str]) -> Case:
    """Reads a case. ``known`` are the sections that a run can give. Raises CaseError."""
    lines = text.splitlines(keepends=True)
    if not lines or not lines[0].startswith("# case: ") or not lines[0][8:].strip():
        raise CaseError(f"{path.name}:1: a case begins with '# case: ' and a title")
    sections: dict[str, list[str]] = {}
    name = ""
    for number, line in enumerate(lines[1:], 2):
        if line.startswith("## "):
            name = line[3:].strip()
            if name in sections:
                raise CaseError(f"{path.name}:{number}: section {name!r} comes twice")
            if name not in (*GIVEN, *known):
                raise CaseError(f"{path.name}:{number}: nothing gives a section {name!r}; there are {', '.join(known)}")
            sections[name] = []
        elif name:
            sections[name].append(line if line.endswith("\n") else line + "\n")
        elif line.strip():
            raise CaseError(f"{path.name}:{number}: text before the first section")
    if "input" not in sections:
        raise CaseError(f"{path.name}: no section 'input'")
    case = Case(path, lines[0][8:].strip(), tuple((n, "".join(body)) for n, body in sections.items()))
    if not case.golden:
        raise CaseError(f"{path.name}: no section to compare; add one of {', '.join(known)}, empty, and --bless it")
    return case


def read_cases(folder: Path, known: Collection[str]) -> list[Case]:
    """Every case of a folder, by name. Raises CaseError on a file that is no case."""
    cases = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.suffix != ".case":
            raise CaseError(f"{path.name}: not a .case file; nothing reads it")
        cases.append(parse_case(path.read_text(), path, known))
    return cases


# ------------------------------------------------------------------------------------------------ running


def run_case(case: Case, compile: Compile, reparse: bool) -> dict[str, str]:
    """What the listed sections come out as. Raises CaseError when the run gives no such section."""
    made = compile(case["input"], case.options, reparse)
    missing = [name for name in case.golden if name not in made]
    if missing:
        raise CaseError(f"{case.path.name}: the run gave no section {missing[0]!r}")
    return {name: made[name].rstrip("\n") + "\n" for name in case.golden}


def differences(case: Case, made: Mapping[str, str], treatment: str) -> str:
    """A unified diff per section that is not as listed; empty when all are."""
    parts = []
    for name, due in case.golden.items():
        if due.rstrip("\n") + "\n" != made[name]:
            head = f"{case.path.name} ## {name}"
            parts += difflib.unified_diff(
                due.splitlines(keepends=True), made[name].splitlines(keepends=True), head, f"{head} ({treatment})"
            )
    return "".join(parts)


def bless(case: Case, made: Mapping[str, str]) -> bool:
    """Rewrites the listed sections in the file; whether anything changed."""
    if os.environ.get("CI"):
        raise CaseError("blessing is for people, who read the difference; CI only compares")
    last = case.sections[-1][0]
    sections = tuple((n, (made[n] + ("" if n == last else _gap(b))) if n in made else b) for n, b in case.sections)
    changed = replace(case, sections=sections).text
    if changed == case.path.read_text():
        return False
    case.path.write_text(changed)
    return True


def _gap(body: str) -> str:
    """The empty lines at the end of a section, which separate it from the next one."""
    return "\n" * (len(body) - len(body.rstrip("\n")) - 1) if body.strip() else ""


def under_seed(seed: str, compile: str, paths: Sequence[Path], known: Collection[str]) -> dict[str, dict[str, str]]:
    """The sections of all cases, by file, from one new process with that hash seed.

    ``compile`` is ``module:function``, importable from the tests' folder.
    """
    here = Path(__file__).resolve().parent
    env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(here.parent), str(here)])}
    command = [sys.executable, str(Path(__file__).resolve()), compile, json.dumps(sorted(known)), *map(str, paths)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CaseError(f"under PYTHONHASHSEED={seed}:\n{done.stderr}")
    made: dict[str, dict[str, str]] = json.loads(done.stdout)
    return made


def main(compile: str, known: str, *paths: str) -> None:
    module, _, function = compile.partition(":")
    run: Compile = getattr(importlib.import_module(module), function)
    cases = [parse_case(Path(p).read_text(), Path(p), json.loads(known)) for p in paths]
    json.dump({str(c.path): run_case(c, run, reparse=False) for c in cases}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
