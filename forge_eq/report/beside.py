"""Before and after, side by side.

Takes the rows of the captured and of the chosen program. Gives lines that fit a width. Of layers that repeat, one
is shown. Calls that compute the same value and are the same stand on one line; runs of unchanged calls are counted.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from forge_eq.report.match import Row

KEEP = 2  # unchanged calls in a row that are shown; more are counted
MOST = 60  # lines per group

_LAYER = re.compile(r"^(.*?)(?<![^.])(\d+)(?![^.])")  # a module path up to its first number


@dataclass(frozen=True)
class Group:
    """The calls of one layer, or of all that lies outside the layers."""

    title: str  # "layers.*" for a repeated one
    before: tuple[Row, ...]
    after: tuple[Row, ...]
    instance: str = ""


def side_by_side(before: Sequence[Row], after: Sequence[Row], width: int, most: int | None = MOST) -> list[str]:
    """Lines of both programs; groups in order of first appearance, equal layers once, ``most`` lines of each."""
    half = max((width - 5) // 2, 20)
    lines = [f" {'before':{half}} | after"]
    families: dict[str, list[Group]] = defaultdict(list)
    for group in _groups(before, after):
        families[group.title].append(group)
    named = len(families) > 1 or any(len(f) > 1 for f in families.values())
    for title, family in families.items():
        shown = _representative(family)
        body = _body(shown, half, most)
        if named:
            lines.append(_title(title, shown, family))
        lines += body
        lines += _differences(title, shown, family, width)
    return lines


def _groups(before: Sequence[Row], after: Sequence[Row]) -> list[Group]:
    keys: dict[tuple[str, str], tuple[list[Row], list[Row]]] = {}
    for side, rows in enumerate((before, after)):
        for row in rows:
            found = _LAYER.match(row.module)
            key = (f"{found[1]}*", found[2]) if found else ("", "")
            keys.setdefault(key, ([], []))[side].append(row)
    return [Group(title, tuple(b), tuple(a), instance) for (title, instance), (b, a) in keys.items()]


def _shape(group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(r.op for r in group.before), tuple(r.op for r in group.after)


def _representative(family: list[Group]) -> Group:
    """The first of the most frequent form."""
    counts = Counter(_shape(g) for g in family)
    return max(family, key=lambda g: counts[_shape(g)])


def _title(title: str, shown: Group, family: list[Group]) -> str:
    if not title:
        return " -- outside the layers"
    place = title.replace("*", shown.instance)
    like = sum(_shape(g) == _shape(shown) for g in family)
    return f" -- {place}" + (f"  (x{like})" if like > 1 else "")


def _differences(title: str, shown: Group, family: list[Group], width: int) -> list[str]:
    """The layers of another form, by what they have more or less after."""
    lines: dict[str, list[str]] = defaultdict(list)
    for group in family:
        if _shape(group) != _shape(shown):
            lines[_difference(shown, group)].append(group.instance)
    return [clip(f" -- {title.replace('*', ', '.join(who))}: {what}", width) for what, who in lines.items()]


def _difference(shown: Group, other: Group) -> str:
    parts = []
    for side, mine, theirs in (("before", shown.before, other.before), ("after", shown.after, other.after)):
        a, b = Counter(r.op for r in mine), Counter(r.op for r in theirs)
        changes = [f"{n:+d} {op}" for op in sorted(a.keys() | b.keys()) if (n := b[op] - a[op])]
        if changes:
            parts.append(f"{side} {', '.join(changes)}")
    return "; ".join(parts) or "the same calls in another order"


def _body(group: Group, half: int, most: int | None) -> list[str]:
    lines, same = [], []
    for left, right in _pairs(group.before, group.after):
        if left and right and _kind(left) == _kind(right):
            same.append(_line(left.text, right.text, half))
            continue
        lines += _run(same, half)
        same = []
        lines.append(_line(left.text if left else "", right.text if right else "", half))
    lines += _run(same, half)
    if most is not None and len(lines) > most:
        lines = [*lines[:most], f"    ... {len(lines) - most} more lines"]
    return lines


def _kind(row: Row) -> tuple[int, str]:
    return row.cls, row.op


def _run(same: list[str], half: int) -> list[str]:
    if len(same) <= KEEP:
        return same
    return [_line(f"  ({len(same)} calls unchanged)", f"  ({len(same)} calls unchanged)", half)]


def _pairs(before: Sequence[Row], after: Sequence[Row]) -> list[tuple[Row | None, Row | None]]:
    """Rows of both sides on one line where they compute the same value."""
    matcher = SequenceMatcher(None, [r.cls for r in before], [r.cls for r in after], autojunk=False)
    pairs: list[tuple[Row | None, Row | None]] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            pairs += zip(before[i:j], after[k:m], strict=True)
        else:
            gone, new = before[i:j], after[k:m]
            pad = max(len(gone) - len(new), 0)  # what is new stands at the end of what it replaces
            pairs += zip([*gone, *[None] * (len(new) - len(gone))], [*[None] * pad, *new], strict=True)
    return pairs


def _line(left: str, right: str, half: int) -> str:
    return f" {clip(left, half):{half}} | {clip(right, half)}".rstrip()


def clip(text: str, width: int) -> str:
    """The text, cut to the width."""
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."
