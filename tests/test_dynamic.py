"""Dynamic sizes: real models are recognised as with static ones, and their modules and programs run at every size."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import forge_eq
from forge_eq import models
from forge_eq.api import Optimized
from forge_eq.capture import capture
from forge_eq.errors import CaptureError, InputError, OptionsError
from forge_eq.families import build
from forge_eq.ir.sizes import bind, is_symbolic, sized
from forge_eq.ir.text import parse, text
from forge_eq.ir.types import Sym, TensorType
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.report.match import calls
from forge_eq.run.differential import float64_outputs
from forge_eq.verify.criterion import compare
from layer_patterns import Architecture, bert, family, faults, gpt2, llama

ARCHITECTURES: dict[str, Architecture] = {"gpt2-tiny": gpt2(2), "llama-tiny": llama(2), "bert-tiny": bert(2)}
TINY = [(name, attention) for name in ARCHITECTURES for attention in ("sdpa", "eager")]
QUICK = {("llama-tiny", "sdpa")}
BATCH, LENGTH = (2, 8), (2, 64)


def exports() -> list[Any]:
    return [pytest.param(*e, marks=() if e in QUICK else pytest.mark.slow) for e in TINY]


def model(name: str, attention: str) -> models.Model:
    """Two rows of the built-in model's inputs: a batch of one would be taken for a constant."""
    pytest.importorskip("transformers", reason="the models are those of transformers")
    found = models.BUILT_IN[name](attention=attention)
    return models.Model(found.name, found.module, tuple(torch.cat([a, a]) for a in found.args))


def both(count: int, batch: tuple[int, int] = BATCH, length: tuple[int, int] = LENGTH) -> tuple[Any, ...]:
    return ({0: Dim("batch", min=batch[0], max=batch[1]), 1: Dim("length", min=length[0], max=length[1])},) * count


@functools.cache
def dynamic(name: str, attention: str) -> tuple[models.Model, Optimized]:
    found = model(name, attention)
    return found, forge_eq.optimize(found.module, found.args, dynamic_shapes=both(len(found.args)), check=True)


def inputs(count: int, batch: int, length: int, seed: int = 0) -> list[torch.Tensor]:
    """Tokens, and a mask that leaves out the end of the last row."""
    tokens = torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 3 :] = 0
    return [tokens, mask][:count]


@pytest.mark.parametrize(("name", "attention"), exports())
def test_every_layer_is_recognised_as_with_static_sizes(name: str, attention: str) -> None:
    _, found = dynamic(name, attention)
    assert all(not n.type.static for n in found.graph.inputs)
    assert found.egraph.saturation.stop == "saturated"
    assert not faults(found.graph, ARCHITECTURES[name])
    inside = [n for n in calls(found.graph) if ".0" in n.origin.module and n.op.name.startswith("opaque")]
    assert not inside, [n.attrs[0] for n in inside]
    assert len(calls(found.graph)) < len(calls(found.captured))


@pytest.mark.parametrize(("name", "attention"), exports())
def test_the_module_runs_at_every_size(name: str, attention: str) -> None:
    original, found = dynamic(name, attention)
    for batch, length in ((2, 2), (2, 5), (3, 16), (8, 64)):
        given = inputs(len(original.args), batch, length)
        with torch.no_grad():
            due, got = original.module(*given), found.module(*given)
        verdict = compare([got], [due], lambda given=given: float64_outputs(found.captured, given))
        assert verdict, (batch, length, verdict.reason)


@pytest.mark.parametrize(("name", "attention"), exports())
def test_the_float64_evaluator_takes_every_size(name: str, attention: str) -> None:
    """It shares no code with the torch executor: symbols in attributes mean the same in both."""
    original, found = dynamic(name, attention)
    given = inputs(len(original.args), 3, 7)
    first, second = (float64_outputs(g, given) for g in (found.captured, found.graph))
    assert first is not None
    assert second is not None
    torch.testing.assert_close(torch.as_tensor(second[0]), torch.as_tensor(first[0]), rtol=1e-9, atol=1e-9)


def test_a_dynamic_program_prints_and_reads_back() -> None:
    _, found = dynamic("llama-tiny", "sdpa")
    again = parse(text(found.graph), constants=found.graph.constants)
    assert text(again) == text(found.graph)
    assert any(is_symbolic(n.attrs) for n in again.nodes)


def test_grouped_heads_are_not_repeated() -> None:
    """What needs symbols in attributes: a repeat is reshape, broadcast, reshape to sizes that the call decides."""
    _, found = dynamic("llama-tiny", "sdpa")
    repeated = {"repeat_heads", "broadcast_to"}
    assert not [n for n in calls(found.graph) if ".layers." in n.origin.module and n.op.name in repeated]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-124m", "llama-3.2-1b", "bert-base"])
def test_published_sizes_with_dynamic_batch_and_length(name: str) -> None:
    """Without weights, on the meta device."""
    pytest.importorskip("transformers", reason="the models are those of transformers")
    with torch.device("meta"):
        made = build(name, meta=True)
        graph = capture(made.module, (torch.zeros(2, 128, dtype=torch.int64),), None, both(1, (2, 64), (2, 512)))
    done = run(Job(Options(check=True), forms={"capture": graph}), "extract")
    assert done["saturate"].saturation.stop == "saturated"
    assert all(not n.type.static for n in done["extract"].inputs)
    assert not faults(done["extract"], family(name))


@pytest.mark.slow
def test_a_trained_model_runs_at_other_sizes() -> None:
    original = models.BUILT_IN["smollm2"](tokens=16)
    args = (original.args[0].repeat(2, 1),)
    found = forge_eq.optimize(original.module, args, dynamic_shapes=both(1))
    assert not faults(found.graph, llama(30))
    for batch, length in ((2, 5), (3, 33)):
        given = (torch.randint(0, 49152, (batch, length), generator=torch.Generator().manual_seed(length)),)
        with torch.no_grad():
            due, got = original.module(*given), found.module(*given)
        verdict = compare([got], [due], lambda given=given: float64_outputs(found.captured, given))
        assert verdict, (batch, length, verdict.reason)


# ------------------------------------------------------------------------------------------ sizes


class Flat(nn.Module):
    """Rows flattened to a product of two sizes, and a table that only the call's size decides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        rows = self.layer(x.reshape(b * s, d)).reshape(b, s, 6)
        return rows + torch.ones(1, 1, 6).expand(b, s, 6).sum(0, keepdim=True)


def test_products_of_sizes_are_attributes() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    found = forge_eq.optimize(module := Flat().eval(), (x,), dynamic_shapes=({0: Dim("b", min=2), 1: Dim("s", min=2)},))
    assert any(n.op.name == "linear_bias" and len(n.type.shape) == 3 for n in found.graph.live().nodes)
    for shape in ((2, 2, 4), (7, 3, 4), (3, 5, 4)):
        y = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            torch.testing.assert_close(found.module(y), module(y))


class Count(nn.Module):
    """A result of static type, made of constants alone, that is another one for each batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(1, 6).expand(x.shape[0], 6).sum(0)


def test_what_a_call_decides_is_no_constant() -> None:
    found = forge_eq.optimize(Count(), (torch.zeros(3, 5),), dynamic_shapes=({0: Dim("b", min=2)},))
    for batch in (2, 3, 7):
        assert torch.equal(found.module(torch.zeros(batch, 5)), torch.full((6,), float(batch)))


def test_the_optimised_module_exports_again() -> None:
    shapes = ({0: Dim("b", min=2), 1: Dim("s", min=2)},)
    module = Flat().eval()
    once = forge_eq.optimize(module, (torch.zeros(3, 5, 4),), dynamic_shapes=shapes).module
    twice = forge_eq.optimize(once, (torch.zeros(3, 5, 4),), dynamic_shapes={"args": shapes}).module
    x = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(twice(x), module(x))


def test_symbols_become_numbers() -> None:
    type = TensorType("f32", (Sym("a"), 3, Sym("2*b"), Sym("b")))
    assert bind([type, TensorType("f32", (Sym("a"),)), type], [(4, 3, 10, 5), (4,), None]) == {"a": 4, "b": 5}
    assert is_symbolic((1, (2, Sym("a"))))
    assert not is_symbolic((1, "a", 2.0))
    assert sized((1, (Sym("a"), 2)), lambda symbol: symbol.name) == (1, ("a", 2))


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("shape", [(1, 5), (9, 5), (2, 65)])
def test_sizes_out_of_range_are_refused(shape: tuple[int, int]) -> None:
    _, found = dynamic("llama-tiny", "sdpa")
    tokens = inputs(1, *shape)
    with pytest.raises(InputError, match="outside"):
        found.module(*tokens)


def test_a_model_that_fixes_a_size_is_refused() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(4)

    with pytest.raises(CaptureError, match="dynamic_shapes"):
        forge_eq.optimize(Fixed(), (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2)},))


# ------------------------------------------------------------------------------------------ compiled


class Mixed(nn.Module):
    """Row by row: what is padded reaches no result that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor], scale: float = 2.0) -> dict[str, torch.Tensor]:
        return {"y": self.layer(x).relu() * scale + pair["shift"], "twice": torch.cat([x, x], -1)}


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def mixed(batch: int, length: int, seed: int = 0) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    x, shift = (torch.randn(batch, length, 4, generator=generator) for _ in range(2))
    return x, {"shift": shift}


B, S = Dim("batch", min=2, max=16), Dim("length", min=2, max=32)
MIXED_SHAPES = ({0: B, 1: S}, {"shift": {0: B, 1: S}})


def close(got: Any, due: Any) -> None:
    assert got.keys() == due.keys()
    for key in due:
        torch.testing.assert_close(got[key], due[key].detach())


def test_a_shape_is_compiled_once_and_the_last_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge_eq.program.KEPT_SHAPES", 2)
    module = Mixed().eval()
    program = forge_eq.compile(module, mixed(3, 5), dynamic_shapes=MIXED_SHAPES, threads=1)
    assert program.counts == {"compiled": 1, "reused": 0, "dropped": 0}
    for length in (5, 6, 5, 7, 5):
        given = mixed(3, length)
        close(program(*given), module(*given))
    # three shapes for a table of two: when 7 comes, 6 was not used for longest
    assert program.counts == {"compiled": 3, "reused": 3, "dropped": 1}
    assert [shapes[0] for shapes in program.shapes] == [(3, n, 4) for n in (7, 5)]
    assert "3 compiled, 3 reused, 1 dropped; kept: 3x7x4 3x7x4; 3x5x4 3x5x4" in program.report()
    with pytest.raises(InputError, match="outside 2 to 32"):
        program(*mixed(3, 33))


@pytest.mark.parametrize("max_size", [pytest.param(8, marks=pytest.mark.slow), {"batch": 4, "length": 8}])
def test_one_program_for_the_largest_sizes(max_size: Any, tmp_path: Any) -> None:
    module = Mixed().eval()
    program = forge_eq.compile(module, mixed(3, 5), dynamic_shapes=MIXED_SHAPES, max_size=max_size, threads=1)
    assert any(r.kind == "passed" and r.stage == "padding" for r in program.remarks)
    assert "arguments padded" in program.report()
    program.save(tmp_path / "padded.forge")
    built = program.last.executable
    for each in (program, forge_eq.load(tmp_path / "padded.forge")):
        for batch, length in ((2, 2), (4, 8), (3, 5)):
            given = mixed(batch, length, seed=batch)
            close(each(*given), module(*given))
        for wrong in (mixed(4, 9), mixed(9, 8)):
            with pytest.raises(InputError, match="outside 2 to"):
                each(*wrong)
    assert program.last.executable is built, "no second program was made"


def test_a_program_that_reads_the_padding_is_refused() -> None:
    shapes = ({1: Dim("length", min=2, max=32)},)
    with pytest.raises(OptionsError, match="beyond the sizes"):
        forge_eq.compile(Mean(), (torch.randn(2, 5, 4),), dynamic_shapes=shapes, max_size=8, threads=1)


@pytest.mark.parametrize(
    ("max_size", "words"),
    [
        (33, "outside 2 to 32"),
        (1, "outside"),
        ({"batch": 4}, "length is missing"),
        ({"batch": 4, "length": 4, "depth": 4}, "depth is missing or unknown"),
    ],
)
def test_largest_sizes_that_make_no_sense(max_size: Any, words: str) -> None:
    with pytest.raises(OptionsError, match=words):
        forge_eq.compile(Mixed(), mixed(3, 5), dynamic_shapes=MIXED_SHAPES, max_size=max_size)


def test_a_static_program_has_no_largest_size() -> None:
    with pytest.raises(OptionsError, match="no dynamic size"):
        forge_eq.compile(Mixed(), mixed(3, 5), max_size=8)


def test_an_exported_program_is_compiled_per_shape() -> None:
    module = Mixed().eval()
    exported = torch.export.export(module, mixed(3, 5), dynamic_shapes=(*MIXED_SHAPES,), strict=False)
    program = forge_eq.compile(exported, threads=1)
    for length in (3, 7):
        given = mixed(2, length)
        close(program(*given), module(*given))
    assert program.counts["compiled"] == 2


SIZES = {"batch": 4, "length": 24}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_a_causal_model_is_compiled_for_its_longest_text(name: str) -> None:
    original = model(name, "sdpa")
    program = forge_eq.compile(original.module, original.args, dynamic_shapes=both(1), max_size=SIZES, threads=1)
    for batch, length in ((2, 3), (4, 24), (3, 11)):
        given = inputs(1, batch, length)
        with torch.no_grad():
            torch.testing.assert_close(program(*given), original.module(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "bert-tiny"])
def test_a_model_is_compiled_per_shape(name: str) -> None:
    original = model(name, "sdpa")
    program = forge_eq.compile(original.module, original.args, dynamic_shapes=both(len(original.args)), threads=1)
    for batch, length in ((2, 3), (3, 9)):
        given = inputs(len(original.args), batch, length)
        with torch.no_grad():
            torch.testing.assert_close(program(*given), original.module(*given), rtol=1e-4, atol=1e-5)
    assert program.counts == {"compiled": 3, "reused": 0, "dropped": 0}
