"""Content hashes of rules that are kept between processes: right, for this source only, and never a reason to fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forge_eq.rules import RuleSet, default, dsl, kept_hashes
from forge_eq.rules.fingerprint import Fingerprints

FEW = list(default)[::40]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "forge_eq" / "hashes"


def forget(monkeypatch: pytest.MonkeyPatch, only: list[dsl.Rule]) -> None:
    """A registry of these rules, with no hash known."""
    monkeypatch.setattr(dsl, "REGISTRY", {r.id: r for r in only})
    for one in only:
        monkeypatch.setitem(one.__dict__, "hash", "")
        monkeypatch.delitem(one.__dict__, "hash")


def test_what_is_kept_is_what_a_look_at_the_rules_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Fingerprints()
    computed = {r.id: r.hashed(texts) for r in FEW}
    forget(monkeypatch, FEW)
    first = RuleSet(FEW).hash
    assert kept_hashes.read() == computed
    forget(monkeypatch, FEW)
    monkeypatch.setattr(dsl.Rule, "hashed", lambda *_: pytest.fail("they are known"))
    assert RuleSet(FEW).hash == first
    assert {r.id: r.hash for r in FEW} == computed
    assert len(list(folder.iterdir())) == 1


def test_a_part_of_the_rules_is_not_kept_and_others_are_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = Fingerprints()
    foreign, own = FEW[0], FEW[1:]
    computed = {r.id: r.hashed(texts) for r in FEW}
    forget(monkeypatch, FEW)
    monkeypatch.setattr(dsl, "REGISTRY", {r.id: r for r in own})
    assert RuleSet(own[1:]).hash
    assert not folder.exists()
    kept_hashes.write({**{r.id: computed[r.id] for r in own}, foreign.id: "of another"})
    assert RuleSet(FEW).hash
    assert {r.id: r.hash for r in FEW} == computed


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a/b": 1}', "\x00"])
def test_a_damaged_file_is_no_file(folder: Path, content: str) -> None:
    kept_hashes.write({"a/b": "0" * 12})
    (path,) = folder.iterdir()
    assert kept_hashes.read() == {"a/b": "0" * 12}
    path.write_text(content, encoding="utf-8")
    assert kept_hashes.read() == {}


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    kept_hashes.write({"a/b": "0" * 12})
    assert kept_hashes.read() == {}


def test_the_stamp_follows_the_source(tmp_path: Path) -> None:
    source = tmp_path / "ops" / "linalg.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    os.utime(source, ns=(10, 10))
    before = kept_hashes.stamp(tmp_path)
    (source.parent / "notes.txt").write_text("no source")
    assert kept_hashes.stamp(tmp_path) == before
    source.write_text("x = 12\n")
    os.utime(source, ns=(10, 10))
    longer = kept_hashes.stamp(tmp_path)
    os.utime(source, ns=(11, 10))
    assert kept_hashes.stamp(tmp_path) == longer, "the time of reading says nothing"
    os.utime(source, ns=(11, 11))
    changed = kept_hashes.stamp(tmp_path)
    (tmp_path / "new.py").write_text("")
    assert len({before, longer, changed, kept_hashes.stamp(tmp_path)}) == 4


def test_few_files_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(kept_hashes.KEPT + 3):
        monkeypatch.setattr(kept_hashes, "stamp", lambda n=number: f"source{n}")
        kept_hashes.write({"a/b": str(number)})
        os.utime(folder / f"source{number}.json", ns=(number, number))
    assert sorted(p.stem for p in folder.iterdir()) == sorted(f"source{n}" for n in range(3, kept_hashes.KEPT + 3))
    assert json.loads((folder / "source3.json").read_text()) == {"a/b": "3"}
