"""Bad input from end to end: a typed error that names stage, node and remedy, and nothing half-written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.errors import CaptureError, FileError, ForgeError, InputError, OptionsError, RuleError
from forge_eq.options import Options


class Two(nn.Module):
    """A tensor and a dict in, a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(
        self, x: torch.Tensor, more: dict[str, torch.Tensor], *, scale: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {"y": torch.relu(self.linear(x)) * scale, "z": more["a"] + more["b"]}


def example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.ones(2, 4), {"a": torch.ones(3), "b": torch.ones(3)}), {"scale": torch.ones(3)}


@contextmanager
def refused(kind: type[ForgeError], stage: str, node: str = "", reason: str = "") -> Iterator[None]:
    """The block must end in this error, and the error must be of use."""
    with pytest.raises(kind) as caught:
        yield
    e = caught.value
    assert reason in e.reason
    assert e.stage == stage
    assert node in e.node
    assert e.node.strip()
    assert e.reason.strip()
    assert len(e.remedy.split()) > 1
    assert all(part in str(e) for part in (e.stage, e.node, e.reason, e.remedy))


MAKERS: dict[str, Callable[..., Any]] = {
    "optimize": lambda m, a, k, **o: forge_eq.optimize(m, a, k, **o).module,
    "compile": lambda m, a, k, **o: forge_eq.compile(m, a, k, **o),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "compile":
        pytest.importorskip("openvino", reason="compiled programs run on OpenVINO")
    return MAKERS[request.param]


# ------------------------------------------------------------------------------------------ capture


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("the user's own mistake")


class Shapes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


@pytest.mark.parametrize(
    ("module", "words"), [(Branches(), "ata"), (Raises(), "the user's own mistake"), (Shapes(), "reduction dim")]
)
def test_a_module_that_does_not_export(make: Callable[..., Any], module: nn.Module, words: str) -> None:
    with refused(CaptureError, "capture", type(module).__name__, words):
        make(module, (torch.ones(2, 3),), None)


@pytest.mark.parametrize("module", [lambda x: x + 1, 3, None, {"forward": 1}])
def test_what_is_no_module(make: Callable[..., Any], module: Any) -> None:
    with refused(CaptureError, "capture"):
        make(module, (torch.ones(2),), None)


def test_a_program_file_that_is_none(make: Callable[..., Any], tmp_path: Path) -> None:
    with refused(FileError, "capture", "absent.pt2"):
        make(tmp_path / "absent.pt2", (), None)
    (tmp_path / "text.pt2").write_text("not a program")
    with refused(FileError, "capture", "text.pt2"):
        make(tmp_path / "text.pt2", (), None)


# ------------------------------------------------------------------------------------------ calls


X, MORE, SCALE = torch.ones(2, 4), {"a": torch.ones(3), "b": torch.ones(3)}, torch.ones(3)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {  # (args, kwargs, what the error names)
    "dtype": ((X.double(), MORE), {"scale": SCALE}, "x"),
    "integers": ((X.long(), MORE), {"scale": SCALE}, "x"),
    "size": ((torch.ones(2, 5), MORE), {"scale": SCALE}, "x"),
    "batch": ((torch.ones(3, 4), MORE), {"scale": SCALE}, "x"),
    "rank": ((torch.ones(4), MORE), {"scale": SCALE}, "x"),
    "broadcastable": ((torch.ones(1, 4), MORE), {"scale": SCALE}, "x"),
    "size within a dict": ((X, {"a": torch.ones(3), "b": torch.ones(4)}), {"scale": SCALE}, "b"),
    "keyword size": ((X, MORE), {"scale": torch.ones(2)}, "scale"),
    "number for a tensor": ((X, MORE), {"scale": 1.0}, "scale"),
    "None for a tensor": ((None, MORE), {"scale": SCALE}, "x"),
    "missing argument": ((X,), {"scale": SCALE}, "arguments"),
    "extra argument": ((X, MORE, X), {"scale": SCALE}, "arguments"),
    "missing keyword": ((X, MORE), {}, "scale"),
    "unknown keyword": ((X, MORE), {"scale": SCALE, "other": X}, "other"),
    "list for a dict": ((X, [torch.ones(3), torch.ones(3)]), {"scale": SCALE}, "argument 1"),
    "missing key": ((X, {"a": torch.ones(3)}), {"scale": SCALE}, "argument 1"),
    "extra key": ((X, {**MORE, "c": torch.ones(3)}), {"scale": SCALE}, "argument 1"),
    "sparse": ((X.to_sparse(), MORE), {"scale": SCALE}, "x"),
}


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    """The same module both ways, made once."""
    torch.manual_seed(0)
    module = Two().eval()
    args, kwargs = example()
    made = {"optimize": forge_eq.optimize(module, args, kwargs).module, "eager": module}
    try:
        import openvino  # noqa: F401
    except ImportError:
        return made
    return {**made, "compile": forge_eq.compile(module, args, kwargs)}


@pytest.mark.parametrize("way", ["optimize", "compile"])
@pytest.mark.parametrize("case", CALLS)
def test_a_call_that_does_not_fit(programs: dict[str, Any], way: str, case: str) -> None:
    if way not in programs:
        pytest.skip("openvino is not installed")
    args, kwargs, node = CALLS[case]
    with refused(InputError, "run", node):
        programs[way](*args, **kwargs)
    right, named = example()
    with torch.no_grad():
        found, due = programs[way](*right, **named), programs["eager"](*right, **named)
    assert list(found) == list(due)
    torch.testing.assert_close(found, due)


def test_no_call_at_all_is_taken_from_an_example(make: Callable[..., Any]) -> None:
    """Example inputs that do not fit the module are refused as well, by name of the module."""
    with refused(CaptureError, "capture", "Two"):
        make(Two(), (torch.ones(2, 5), MORE), {"scale": SCALE})


# ------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("changes", "node"),
    [
        ({"alhpa": 1.0}, "alhpa"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"verify": "sometimes"}, "verify"),
        ({"target": "toaster"}, "toaster"),
    ],
)
def test_an_option_that_makes_no_sense(make: Callable[..., Any], changes: dict[str, Any], node: str) -> None:
    args, kwargs = example()
    with pytest.raises(OptionsError) as caught:
        make(Two(), args, kwargs, **changes)
    assert node in caught.value.node
    assert caught.value.remedy


def test_a_target_file_that_is_malformed(make: Callable[..., Any], tmp_path: Path) -> None:
    place = tmp_path / "mine.toml"
    args, kwargs = example()
    for text in ("name = ", 'name = "mine"\n', ""):
        place.write_text(text)
        with refused(OptionsError, "targets", "mine.toml"):
            make(Two(), args, kwargs, target=str(place))


def test_a_rule_that_is_wrong(make: Callable[..., Any]) -> None:
    from forge_eq.ops.elementwise import add, neg
    from forge_eq.ops.spec import Var
    from forge_eq.rules.dsl import build

    x = Var("x")
    wrong = build(
        "mine", "wrong", forge_eq.to(add(x, x), neg(x)), doc="Not so.", source="nowhere", exact="real", where=__file__
    )
    args, kwargs = example()
    with refused(RuleError, "verify", "mine/wrong", "refused"):
        make(Two(), args, kwargs, rules=forge_eq.rules.default + wrong)


# ------------------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a saved program."""
    pytest.importorskip("openvino", reason="compiled programs run on OpenVINO")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    place = tmp_path_factory.mktemp("saved") / "model.forge"
    forge_eq.compile(module, (torch.ones(3, 4),)).save(place)
    assert [p.name for p in place.parent.iterdir()] == ["model.forge"]
    return place.read_bytes()


def test_the_file_is_good_to_begin_with(saved: bytes, tmp_path: Path) -> None:
    place = tmp_path / "model.forge"
    place.write_bytes(saved)
    program = forge_eq.load(place)
    assert program(torch.ones(3, 4)).shape == (3, 2)
    with refused(InputError, "run"):
        program(torch.ones(4, 4))


def test_a_file_cut_anywhere(saved: bytes, tmp_path: Path) -> None:
    place = tmp_path / "model.forge"
    for length in (0, 1, 7, 8, 9, 100, len(saved) // 2, len(saved) - 1):
        place.write_bytes(saved[:length])
        with refused(FileError, "load", "model.forge"):
            forge_eq.load(place)


def test_a_file_altered_anywhere(saved: bytes, tmp_path: Path) -> None:
    """Any single byte, in header, document or weights."""
    place = tmp_path / "model.forge"
    chance = random.Random(0)
    header = 8 + int.from_bytes(saved[:8], "little")
    spans = [(8, header)] * 25 + [(header, len(saved))] * 15
    for position in (chance.randrange(*span) for span in spans):
        if chr(saved[position]).isspace():
            continue  # between the parts of the header it means nothing
        damaged = bytearray(saved)
        damaged[position] ^= 1 << chance.randrange(7)
        place.write_bytes(damaged)
        with refused(FileError, "load", "model.forge"):
            forge_eq.load(place)


def test_foreign_files(saved: bytes, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    text = tmp_path / "text.forge"
    text.write_text("hello\n" * 100)
    foreign = tmp_path / "weights.forge"
    save_file({"w": torch.ones(2)}, foreign)
    pickled = tmp_path / "pickled.forge"
    torch.save({"w": torch.ones(2)}, pickled)
    folder = tmp_path / "folder.forge"
    folder.mkdir()
    for place in (text, foreign, pickled, folder, tmp_path / "absent.forge"):
        with refused(FileError, "load", place.name):
            forge_eq.load(place)


def test_a_file_of_a_later_version(saved: bytes, tmp_path: Path) -> None:
    size = int.from_bytes(saved[:8], "little")
    header = json.loads(saved[8 : 8 + size])
    ((name, envelope),) = header["__metadata__"].items()
    header["__metadata__"][name] = json.dumps({**json.loads(envelope), "version": 999})
    written = json.dumps(header).encode()
    place = tmp_path / "model.forge"
    place.write_bytes(len(written).to_bytes(8, "little") + written + saved[8 + size :])
    with refused(FileError, "load", "model.forge", "999"):
        forge_eq.load(place)


def test_a_place_that_cannot_be_written(saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file stays as it was, and nothing is left beside it."""
    import safetensors.torch

    place = tmp_path / "model.forge"
    place.write_bytes(saved)
    program = forge_eq.load(place)
    with refused(FileError, "save"):
        program.save(tmp_path / "absent" / "model.forge")
    with refused(FileError, "save"):
        program.save(tmp_path)

    def half(tensors: Any, filename: Any, metadata: Any = None) -> None:
        Path(filename).write_bytes(saved[:50])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with refused(FileError, "save", "model.forge"):
        program.save(place)
    assert place.read_bytes() == saved
    assert [p.name for p in tmp_path.iterdir()] == ["model.forge"]


def test_options_are_refused_before_any_work() -> None:
    with refused(OptionsError, "options", "alpha"):
        Options(alpha=11.0)
    with refused(OptionsError, "options", "verify"):
        Options(verify="")


def test_a_refused_export_prints_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """torch prints its half-made graph when a branch depends on values; the user sees our sentence only."""

    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with refused(CaptureError, "capture", "Branch", "data-dependent"):
        forge_eq.optimize(Branch(), (torch.ones(3),))
    assert capfd.readouterr() == ("", "")
