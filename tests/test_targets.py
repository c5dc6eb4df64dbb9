"""Targets: the shipped files and the refusals of the loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forge_eq import targets
from forge_eq.errors import OptionsError
from forge_eq.ir.types import ScalarType, TensorType

SOURCE = (Path(targets.__file__).parent / "openvino-cpu.toml").read_text(encoding="utf-8")


def test_shipped_targets_load() -> None:
    npus = ("intel-npu-3720", "intel-npu-4000", "intel-npu-5010")
    assert targets.names() == (*npus, "openvino-cpu", "restricted-npu", "torch")
    for name in targets.names():
        target = targets.load(name)
        assert (target.name, target.host) == (name, "cpu")
        assert targets.load(target) is target
        hash(target)


def test_what_a_compiler_refuses() -> None:
    npu = replace(
        targets.load("intel-npu-4000").accelerators[0],
        refuses=("exp", "add/rank3", "mul/f16", "slice/ragged", "conv/rank4/grouped"),
    )
    a, b = TensorType("f32", (2, 1, 4, 4)), TensorType("f32", (2, 3, 4, 4))
    small, half = TensorType("f32", (4, 4, 4)), TensorType("f16", (4, 4))
    assert npu.refusal("exp", [a], [a]) == "the compiler of npu refuses exp"
    assert npu.refusal("add", [small, half], [small]) == "the compiler of npu refuses add/rank3"
    assert npu.refusal("mul", [a, half], [a]).endswith("mul/f16")
    assert npu.refusal("slice", [a], [a], {"start": 0, "stop": 3, "step": 2}).endswith("slice/ragged")
    grouped = {"groups": 2, "begin": (0,), "end": (0,)}
    assert npu.refusal("conv", [a, b], [a], grouped).endswith("conv/rank4/grouped")
    assert not npu.refusal("conv", [small], [a], grouped)
    assert targets.kinds([a], {"begin": (0,), "end": (1,)}) == {"f32", "rank4", "uneven"}
    assert targets.kinds([a], {"dilation": (1, 2)}) == {"f32", "rank4", "dilated"}
    assert not any(
        [
            npu.refusal("add", [a, a], [a]),
            npu.refusal("mul", [a, a], [a]),
            npu.refusal("slice", [a], [a], {"start": 0, "stop": 4, "step": 2}),
        ]
    )
    assert targets.kinds([a, b]) == {"f32", "rank4", "broadcast"}
    assert targets.kinds([a, TensorType("f32", (2, 1, 4, 9))], {"start": 0, "stop": 3, "step": 2}) == {
        "f32",
        "rank4",
        "ragged",
    }


def test_a_path_loads_like_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(SOURCE.replace('"openvino-cpu"', '"mine"'), encoding="utf-8")
    mine = targets.load(file)
    assert mine.name == "mine"
    assert targets.load(str(file)) == mine
    assert mine.devices == targets.load("openvino-cpu").devices


@pytest.mark.parametrize("name", ["npu-9000", "", "OPENVINO-CPU", "missing.toml", "some/dir/x"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(OptionsError, match="remedy"):
        targets.load(name)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("peak_gflops = 120.0", "", "missing"),
        ("peak_gflops = 120.0", "peak_gflops = -1", "from 0 up"),
        ("peak_gflops = 120.0", "peak_gflops = true", "not a number"),
        ("peak_gflops = 120.0", "peak_gflops = 0", "greater"),
        ("peak_gflops = 120.0", "peak_gflops = nan", "not a number"),
        ("alignment = 64 ", "alignment = 48 ", "power of two"),
        ("alignment = 64 ", "alignment = 64.5 ", "power of two"),
        ('host = "cpu"', 'host = "gpu"', "not one of the devices"),
        ('host = "cpu"', 'host = "npu"', "fallback"),
        ("launch_us", "lunch_us", "missing"),
        ("[weights]", "[waits]", "not a field"),
        ('kind = "openvino"', 'kind = "cuda"', "not one of"),
        ('"matmul", "attention"', '"matmul", "attn"', "not one of"),
        ('dtypes = ["f32", "f16", "bf16"]', "dtypes = []", "not a list"),
        ('dtypes = ["f32"', 'dtypes = ["f33"', "not one of"),
        ('name = "npu"', 'name = "cpu"', "one name"),
        ('name = "npu"', 'name = "n p u"', "identifier"),
        ("gathers = false", 'gathers = "no"', "true or false"),
        ("[weights]", "[weights", "not TOML"),
    ],
)
def test_malformed_files_are_refused(old: str, new: str, why: str) -> None:
    assert old in SOURCE
    with pytest.raises(OptionsError, match=why):
        targets.parse(SOURCE.replace(old, new), "mine.toml")


def test_legality() -> None:
    npu = targets.load("openvino-cpu").device("npu")
    f32, mask, ids = (TensorType(d, (2,)) for d in ("f32", "bool", "i64"))
    assert npu.computes("vector", [mask, f32, f32], [f32])
    assert not npu.computes("vector", [f32, f32], [mask])
    assert not npu.computes("vector", [ids], [f32])
    assert not npu.computes("vector", [ScalarType("int")], [f32])
    assert not npu.computes("torch", [f32], [f32])
    with pytest.raises(OptionsError, match="no such device"):
        targets.load("torch").device("npu")


def test_predictions_are_rooflines_in_microseconds() -> None:
    target = targets.load("openvino-cpu")
    assert target.kernel_time(0, 0) == target.launch_us
    assert target.kernel_time(target.peak_gflops * 1e9, 0) == pytest.approx(1e6 + target.launch_us)
    assert target.kernel_time(0, target.bandwidth_gbps * 1e9) == pytest.approx(1e6 + target.launch_us)
    assert target.transfer_time(int(target.transfer_gbps * 1e9)) == pytest.approx(1e6 + target.transfer_us)


def test_blocks_are_read_and_saved() -> None:
    """A saved program carries its target as text."""
    from forge_eq.run.save import _target_text

    for name in targets.names():
        target = targets.load(name)
        assert targets.parse(_target_text(target)) == target
    onto = replace(target, blocks=targets.Blocks(2049, 16, 1, outer=True, onto=True, most=2048))
    assert targets.parse(_target_text(onto)) == onto
    blocks = targets.load("intel-npu-4000").blocks
    assert blocks is not None
    assert (blocks.features, blocks.parts, blocks.outer) == (3072, 2, True)
