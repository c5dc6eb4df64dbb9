"""Saved programs: the same program back, or a refusal that says why."""

from __future__ import annotations

import json
import os
import random
import struct
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from safetensors.torch import save_file
from torch import nn

import forge_eq.run.save as module
from forge_eq.alloc.host import allocate_on_host
from forge_eq.capture.export import capture
from forge_eq.errors import FileError
from forge_eq.ir.graph import Signature, WriteBack
from forge_eq.lower.select import lower
from forge_eq.run.executor import Executable, accelerated, pin, torch_executable
from forge_eq.run.save import Saved, load, save
from forge_eq.run.signature_json import from_json, to_json
from forge_eq.schedule.plan import schedule
from forge_eq.targets import Target, names
from forge_eq.targets import load as load_target
from run_programs import TARGET, language

torch.set_num_threads(1)


def compiled(model: nn.Module, *inputs: Any, target: Target = TARGET, pins: frozenset[int] = frozenset()) -> Saved:
    plan = schedule(lower(capture(model.eval(), inputs), target), target)
    return Saved(plan, allocate_on_host(pin(plan.program, target, pins), target), target, pins, {"threads": 1})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Saved, list[torch.Tensor]]:
    model, inputs = language()
    saved = compiled(model, *inputs)
    path = tmp_path_factory.mktemp("save") / "model.forge"
    save(path, saved)
    return path, saved, list(inputs)


def test_a_program_comes_back(whole: tuple[Path, Saved, list[torch.Tensor]]) -> None:
    path, saved, inputs = whole
    found = load(path)
    assert found.schedule == saved.schedule
    assert found.allocation == saved.allocation
    assert found.target == saved.target
    assert found.schedule.program.signature == saved.schedule.program.signature
    assert found.options == {"threads": 1}
    assert found.versions["torch"] == torch.__version__
    data, expected = found.schedule.program.data, saved.schedule.program.data
    assert set(data) == {n for _, n in saved.schedule.program.constants}
    assert all(torch.equal(v, expected[n]) for n, v in data.items())
    ours, theirs = (torch_executable(s.schedule.program, s.target)(inputs) for s in (found, saved))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_loaded_program_runs_on_openvino_without_its_file(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="the segments are OpenVINO's")
    model, inputs = language()
    saved = compiled(model, *inputs)
    some = frozenset(sorted(accelerated(saved.schedule.program, TARGET))[:2])
    save(tmp_path / "m.forge", compiled(model, *inputs, pins=some))
    found = load(tmp_path / "m.forge")
    (tmp_path / "m.forge").write_bytes(b"gone")
    assert found.pins == some
    run = Executable(found.schedule.program, found.target, found.pins, threads=1)
    assert run.allocation == found.allocation
    with torch.no_grad():
        for a, b in zip(run(list(inputs)), model(*inputs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", names())
def test_every_target_comes_back(name: str, tmp_path: Path) -> None:
    saved = compiled(nn.Linear(2, 2), torch.zeros(1, 2), target=load_target(name))
    save(tmp_path / "t.forge", saved)
    assert load(tmp_path / "t.forge").target == saved.target


class Layouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(24.0)
        self.register_buffer("transposed", base.view(4, 6).t())
        self.register_buffer("strided", base.view(4, 6)[::2])
        self.register_buffer("expanded", torch.arange(6.0).expand(4, 6))
        self.register_buffer("scalar", torch.tensor(2.5))
        self.register_buffer("empty", torch.empty(0, 6))
        self.register_buffer("halves", torch.arange(6).to(torch.bfloat16))
        self.register_buffer("mask", torch.tensor([True, False] * 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.cat([x @ self.transposed, x[:, :4] @ self.expanded[:, :4]], 1) * self.scalar
        return a, torch.cat([x, self.empty, self.strided]), torch.where(self.mask, x, 0.0), x * self.halves.float()


def test_weights_of_every_layout_come_back(tmp_path: Path) -> None:
    model, x = Layouts(), torch.randn(2, 6)
    saved = compiled(model, x)
    save(tmp_path / "l.forge", saved)
    found = load(tmp_path / "l.forge").schedule.program.data
    for name, value in saved.schedule.program.data.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype is value.dtype
    assert any(not v.is_contiguous() for v in found.values())
    assert (tmp_path / "l.forge").stat().st_size < 40_000


# ------------------------------------------------------------------------------------ damage


def test_every_truncation_is_refused(whole: tuple[Path, Saved, list[torch.Tensor]], tmp_path: Path) -> None:
    content = whole[0].read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    rng = random.Random(0)
    cuts = {0, 1, 7, 8, 9, header - 1, header, header + 1, len(content) - 1}
    cuts |= {rng.randrange(len(content)) for _ in range(80)}
    for cut in sorted(cuts):
        broken = tmp_path / "cut.forge"
        broken.write_bytes(content[:cut])
        with pytest.raises(FileError, match="remedy"):
            load(broken)


def test_every_flipped_byte_is_refused_or_harmless(
    whole: tuple[Path, Saved, list[torch.Tensor]],
    tmp_path: Path,
) -> None:
    path, saved, _ = whole
    content = path.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    rng = random.Random(1)
    places = [*range(0, 16), *(rng.randrange(header) for _ in range(150))]
    places += [rng.randrange(header, len(content)) for _ in range(80)]
    refused = 0
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        broken = tmp_path / "flip.forge"
        broken.write_bytes(bytes(changed))
        try:
            found = load(broken)
        except FileError:
            refused += 1
            continue
        assert place < header  # a byte of a weight never passes
        assert found.schedule == saved.schedule
        assert all(torch.equal(v, saved.schedule.program.data[n]) for n, v in found.schedule.program.data.items())
    assert refused > 0.9 * len(places)


def test_bytes_appended_are_refused(whole: tuple[Path, Saved, list[torch.Tensor]], tmp_path: Path) -> None:
    (tmp_path / "more.forge").write_bytes(whole[0].read_bytes() + b"\0")
    with pytest.raises(FileError):
        load(tmp_path / "more.forge")


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"PK\x03\x04zip", b"{}", os.urandom(3000), b"\xff" * 64])
def test_foreign_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.forge").write_bytes(content)
    with pytest.raises(FileError, match=r"x\.forge"):
        load(tmp_path / "x.forge")


def test_a_file_that_is_not_there_or_not_ours(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        load(tmp_path / "absent.forge")
    with pytest.raises(FileError, match="no such file"):
        load(tmp_path)
    save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
    with pytest.raises(FileError, match="not a compiled program"):
        load(tmp_path / "w.safetensors")


def rewritten(path: Path, out: Path, **changes: Any) -> Path:
    """The file with other metadata, and a digest that fits it: what a careful forger, or another version, writes."""
    envelope, tensors = module._read(path)
    document = json.loads(envelope["document"])
    document.update({k: v for k, v in changes.items() if k != "version"})
    text = json.dumps(document)
    new = {"document": text, "digest": module._digest(text, tensors), "version": changes.get("version", 1)}
    save_file(tensors, out, {module.FORMAT: json.dumps(new)})
    return out


def test_a_newer_format_asks_for_an_update(whole: tuple[Path, Saved, list[torch.Tensor]], tmp_path: Path) -> None:
    with pytest.raises(FileError, match="update forge_eq"):
        load(rewritten(whole[0], tmp_path / "v2.forge", version=2))
    assert load(rewritten(whole[0], tmp_path / "v1.forge")).schedule == whole[1].schedule


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("schedule", "nonsense"),
        ("allocation", "alloc"),
        ("target", "name = 3"),
        ("signature", {}),
        ("pins", ["x"]),
        ("orders", {}),
        ("orders", []),
        ("schedule", None),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    part: str,
    value: Any,
    whole: tuple[Path, Saved, list[torch.Tensor]],
    tmp_path: Path,
) -> None:
    with pytest.raises(FileError, match="does not fit together"):
        load(rewritten(whole[0], tmp_path / "p.forge", **{part: value}))


def test_an_allocation_that_overlaps_is_refused(whole: tuple[Path, Saved, list[torch.Tensor]], tmp_path: Path) -> None:
    text = json.loads(module._read(whole[0])[0]["document"])["allocation"]
    lines = text.splitlines()
    slots = [i for i, line in enumerate(lines) if line.strip().startswith("v")]
    first, last = (lines[i].split()[1] for i in (slots[0], slots[-1]))
    assert first != last
    lines[slots[0]] = lines[slots[0]].replace(first, last)
    with pytest.raises(FileError):
        load(rewritten(whole[0], tmp_path / "o.forge", allocation="\n".join(lines) + "\n"))


def test_an_operator_that_is_not_here_is_named(whole: tuple[Path, Saved, list[torch.Tensor]], tmp_path: Path) -> None:
    text = json.loads(module._read(whole[0])[0]["document"])["schedule"]
    assert "aten.cumsum.default" in text
    absent = text.replace("aten.cumsum.default", "nowhere.thing.default")
    with pytest.raises(FileError, match=r"nowhere\.thing"):
        load(rewritten(whole[0], tmp_path / "c.forge", schedule=absent))
    with pytest.raises(FileError):  # and nothing of Python is ever looked up by name
        load(rewritten(whole[0], tmp_path / "d.forge", schedule=text.replace("aten.cumsum.default", "os.system")))


# ------------------------------------------------------------------------------------ what is not saved


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    whole: tuple[Path, Saved, list[torch.Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "m.forge"
    path.write_bytes(whole[0].read_bytes())

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "replace", full)
    with pytest.raises(FileError, match="No space left"):
        save(path, whole[1])
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["m.forge"]
    assert load(path).schedule == whole[1].schedule
    with pytest.raises(FileError, match="cannot be written"):
        save(tmp_path / "absent" / "m.forge", whole[1])
    save(path, whole[1])
    assert os.listdir(tmp_path) == ["m.forge"]


def test_saving_twice_gives_the_same_bytes(whole: tuple[Path, Saved, list[torch.Tensor]], tmp_path: Path) -> None:
    save(tmp_path / "again.forge", whole[1])
    assert (tmp_path / "again.forge").read_bytes() == whole[0].read_bytes()


def test_submodules_are_refused(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    saved = compiled(Branch(), torch.ones(3))
    with pytest.raises(FileError, match="submodules"):
        save(tmp_path / "b.forge", saved)
    assert not os.listdir(tmp_path)


def test_a_program_without_data_is_refused(whole: tuple[Path, Saved, list[torch.Tensor]], tmp_path: Path) -> None:
    plan = whole[1].schedule
    bare = replace(whole[1], schedule=replace(plan, program=replace(plan.program, data={})))
    with pytest.raises(FileError, match="no data"):
        save(tmp_path / "b.forge", bare)


def test_values_of_a_signature() -> None:
    spec = pytree.tree_structure(((1, {"a": 2}), OrderedDict(b=3)))
    whole = Signature(
        ("x", "y"),
        spec,
        spec,
        (("value", 0), ("constant", (1, 2.0, float("inf"), None, "s", True)), ("input", 1)),
        (WriteBack(1, "input:0"),),
        ((2, 1.0), (3, 1)),
        (("s0", 2, None),),
    )
    back = from_json(json.loads(json.dumps(to_json(whole))))
    assert back == whole
    assert [type(v) for _, v in back.baked] == [float, int]
    with pytest.raises(FileError, match="complex"):
        to_json(Signature(outputs=(("constant", 1j),)))


class Unknown:
    """A container that torch does not know by name."""


def test_a_container_without_a_name_is_refused() -> None:
    pytree.register_pytree_node(Unknown, lambda u: ([1], None), lambda leaves, c: Unknown())
    with pytest.raises(FileError, match="serialized_type_name"):
        to_json(Signature(in_spec=pytree.tree_structure(Unknown())))


def test_a_weight_that_two_names_share_is_written(tmp_path: Path) -> None:
    model, inputs = language()
    saved = compiled(model, *inputs)
    program = saved.schedule.program
    one = {n: program.data[n] for n in program.data}
    twins = [n for n in one if one[n].shape == (8,)][:2]
    one[twins[1]] = one[twins[0]]
    save(tmp_path / "s.forge", replace(saved, schedule=replace(saved.schedule, program=replace(program, data=one))))
    found = load(tmp_path / "s.forge").schedule.program.data
    assert torch.equal(found[twins[0]], found[twins[1]])
