"""Chosen programs on disk, so that a second process need not search again.

Takes a captured Graph and options. Gives the program that was chosen for just these, before folding. Promises: an entry
is found only by everything that the choice depends on: the captured program's text (operations, numbers, signature,
names and types of its constants), the target, the options, the rules by content, this package's source, the versions
of torch and egglog. No weight is in a key or an entry, and none is needed: the choice never reads one, and what is
computed from weights is computed anew (``extract.fold``). A damaged entry is ignored, with a remark; entries are
replaced whole. Not here: comparing the program with the captured one, which happens to a found one like to any other.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from forge_eq import rules
from forge_eq.errors import ForgeError
from forge_eq.files import cache_home, keep_newest, replace_file
from forge_eq.ir.check import check
from forge_eq.ir.graph import Graph
from forge_eq.ir.text import parse, text
from forge_eq.options import Options
from forge_eq.remarks import Remark
from forge_eq.targets import load

SWITCH = "FORGE_EQ_CACHE"  # environment: "0" leaves the cache alone
FORMAT = 1
KEPT = 256  # entries; the ones that were used longest ago go first


def directory() -> Path:
    """Where entries are kept."""
    return cache_home() / "programs"


def key_of(captured: Graph, options: Options) -> str | None:
    """What the choice depends on, as a hash; None when that cannot be told: objects of the user's, submodules."""
    if not options.cache or os.environ.get(SWITCH) == "0":
        return None
    if options.cost is not None or options.extractor is not None or captured.submodules:
        return None
    told = [
        text(captured),
        rules.chosen(options).hash,
        repr(load(options.target)),
        repr(options.alpha),
        repr(options.limits),
    ]
    return hashlib.sha256(json.dumps([*told, *_versions()]).encode()).hexdigest()


def find(key: str, captured: Graph) -> tuple[Graph | None, Remark | None]:
    """The program of an entry, over the captured one's constants, and what there is to say."""
    path = directory() / f"{key}.json"
    try:
        content = path.read_bytes()
    except OSError:
        return None, None
    try:
        entry: Any = json.loads(content)
        body = entry["program"]
        if (entry["format"], entry["key"], entry["digest"]) != (FORMAT, key, _digest(body)):
            raise ValueError("it is not what was written")
        graph = parse(body, constants=captured.constants, submodules={})
        if _face(graph) != _face(captured):
            raise ValueError("it is another program's")
        found = replace(graph, signature=captured.signature, notes=captured.notes)
        check(found)
    except (ForgeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        reason = f"the entry in the cache is ignored: {str(e).splitlines()[0] if str(e) else type(e).__name__}"
        return None, Remark("missed", "cache", captured.name, reason)
    _touch(path)
    return found, Remark("passed", "cache", captured.name, f"the chosen program was found: {path.name[:12]}")


def keep(key: str, graph: Graph) -> Remark | None:
    """Writes an entry. Without a writable cache nothing is kept, and the remark says so."""
    body = text(graph)
    entry = {"format": FORMAT, "key": key, "digest": _digest(body), "program": body}
    try:
        replace_file(directory() / f"{key}.json", json.dumps(entry))
        keep_newest(directory(), KEPT)
    except OSError as e:
        return Remark("missed", "cache", graph.name, f"nothing was kept: {e}")
    return None


def _face(graph: Graph) -> tuple[Any, ...]:
    """What callers see: the types of inputs and outputs."""
    return [n.type for n in graph.inputs], [graph.nodes[i].type for i in graph.outputs]


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        return


@functools.cache
def _versions() -> tuple[str, ...]:
    """This package's source by content, and the versions of what the choice and its numbers come from."""
    home, digest = Path(__file__).parent, hashlib.sha256()
    for path in sorted(p for p in home.rglob("*") if p.suffix in (".py", ".toml") and p.is_file()):
        digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    found = [digest.hexdigest(), platform.python_version()]
    for package in ("torch", "egglog"):
        try:
            found.append(version(package))
        except PackageNotFoundError:
            found.append("absent")
    return tuple(found)
