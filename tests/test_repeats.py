"""Repeats: layers that are alike share one compiled model, and give what a model of their own gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from forge_eq.capture.export import capture
from forge_eq.lower.npu import Program
from forge_eq.lower.orient import orient_all
from forge_eq.lower.select import lower
from forge_eq.run import cuts, repeats
from forge_eq.run.borders import borders
from forge_eq.run.repeats import Outline, alike, find
from forge_eq.run.values import evaluate
from forge_eq.schedule.plan import schedule
from forge_eq.targets.kernels import from_table
from run_programs import TARGET, Attention, Mlp

pytest.importorskip("openvino", reason="the models are OpenVINO's")

from forge_eq.run.executor import Executable, to_compile

# Weights on the left wherever they can be; times that make a layer worth a segment.
LEFT = replace(TARGET, kernels=from_table({"tokens": [1], "plain": [[64, 64, 50.0]], "left": [[64, 64, 20.0]]}))
TOKENS, WIDTH = 5, 8


@pytest.fixture(autouse=True)
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "HEAVY", 0)
    monkeypatch.setattr(cuts, "LONG", 3)
    monkeypatch.setattr(cuts, "PART", 1)


class Gated(nn.Module):
    """Llama's MLP: no bias, a norm, a residual."""

    def __init__(self, width: int = WIDTH, eps: float = 1e-6) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Swapped(Gated):
    """The same with the residual written first or last by turns."""

    turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        made = self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return made + x if self.turn else x + made


class Stored(nn.Module):
    """GPT-2's layers: weights stored [k, n], biases."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(width, 24)), nn.Parameter(torch.randn(24, width))
        self.a, self.b = nn.Parameter(torch.randn(24)), nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        y = torch.addmm(self.b, torch.tanh(torch.addmm(self.a, flat, self.up)), self.down)
        return torch.tanh(x + y.reshape(x.shape))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = Attention(heads=2, size=4), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.inner(x).transpose(1, 2).flatten(2))


def stack(make: Callable[[], nn.Module], count: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [make() for _ in range(count)]
    for turn, layer in enumerate(layers):
        layer.turn = turn % 2  # type: ignore[assignment]
    module = nn.Sequential(*layers).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return module, torch.randn(1, TOKENS, WIDTH)


def left(module: nn.Module, x: torch.Tensor) -> Program:
    return schedule(orient_all(lower(capture(module, (x,)), LEFT), LEFT), LEFT).program


def patterns(run: Executable) -> int:
    return sum(m.pattern is not None for m in run.models)


@pytest.mark.parametrize("layer", [Gated, Swapped, Stored, Mlp, Heads])
def test_layers_that_are_alike_share_one_model(layer: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = stack(layer, 6)
    program = left(module, x)
    run = Executable(program, LEFT, threads=1)
    assert patterns(run) >= 3
    assert to_compile(program, LEFT, ()) <= len(program.instrs) * 0.7
    monkeypatch.setattr(cuts, "PART", 1e12)
    monkeypatch.setattr(cuts, "LONG", 1 << 30)
    one = Executable(program, LEFT, threads=1)
    assert patterns(one) == 0
    with torch.no_grad():
        wanted = module(x)
    for given in (x, x * 2.0, x):  # twice, and with other values between
        (found,), (alone,) = run([given]), one([given])
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(run([x])[0], wanted, rtol=1e-4, atol=1e-5)


def test_weights_are_read_where_they_lie() -> None:
    module, x = stack(Gated, 6)
    run = Executable(left(module, x), LEFT, threads=1)
    before = run([x])[0]
    with torch.no_grad():
        module[3].down.weight.mul_(2.0)  # type: ignore[union-attr]
    wanted = module(x).detach()
    assert not torch.allclose(before, wanted)
    torch.testing.assert_close(run([x])[0], wanted, rtol=1e-4, atol=1e-5)


def test_parts_of_several_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = stack(Gated, 9)
    program = left(module, x)
    counts = []
    for part in (1, 30, 90, 1e12):
        monkeypatch.setattr(cuts, "PART", part)
        run = Executable(program, LEFT, threads=1)
        counts.append(len(run.models))
        torch.testing.assert_close(run([x])[0], module(x).detach(), rtol=1e-4, atol=1e-5)
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 2


def test_a_layer_that_differs_has_its_own_model() -> None:
    module, x = stack(Gated, 7)
    module[3].norm.eps = 1e-2  # type: ignore[union-attr]
    run = Executable(left(module, x), LEFT, threads=1)
    assert 0 < patterns(run) < 6
    torch.testing.assert_close(run([x])[0], module(x).detach(), rtol=1e-4, atol=1e-5)


def test_no_longer_layers_than_told_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = stack(Gated, 6)
    program = left(module, x)
    monkeypatch.setattr(repeats, "LONGEST", 3)
    assert patterns(Executable(program, LEFT, threads=1)) == 0


def test_a_weight_that_layers_share_stays_a_constant() -> None:
    module, x = stack(Gated, 6)
    for layer in module:  # type: ignore[attr-defined]
        layer.up = module[0].up  # type: ignore[index]
    run = Executable(left(module, x), LEFT, threads=1)
    assert patterns(run) >= 3
    pattern = next(m.pattern for m in run.models if m.pattern is not None)
    assert pattern.built is not None
    shared = module[0].up.weight.data_ptr()  # type: ignore[index, union-attr]
    registers = {w.register for w in pattern.built.weights}
    assert all(run.memory.values[r].data_ptr() != shared for r in registers)
    torch.testing.assert_close(run([x])[0], module(x).detach(), rtol=1e-4, atol=1e-5)


def test_weights_in_rows_are_not_shared() -> None:
    """The plugin packs these ahead, which it can do with a constant only."""
    module, x = stack(Gated, 6)
    program = schedule(lower(capture(module, (x,)), TARGET), TARGET).program
    assert patterns(Executable(program, TARGET, threads=1)) == 0
    segment = max(program.segments, key=lambda s: s.stop - s.start)
    assert find(program, segment, [0] * (segment.stop - segment.start + 1)) is None


def test_one_row_is_not_shared() -> None:
    module, x = stack(Gated, 6)
    program = left(module, x[:, :1])
    assert patterns(Executable(program, LEFT, threads=1)) == 0


@pytest.mark.parametrize("position", range(0, 40, 3))
def test_a_pinned_instruction_leaves_the_rest_right(position: int) -> None:
    module, x = stack(Gated, 6)
    program = left(module, x)
    run = Executable(program, LEFT, {position % len(program.instrs)}, threads=1)
    torch.testing.assert_close(run([x])[0], module(x).detach(), rtol=1e-4, atol=1e-5)


def test_equal_outlines_compute_the_same() -> None:
    """Read by torch: with its own registers' values at the ends, each part gives what the first gives for these."""
    module, x = stack(Swapped, 6)
    program = left(module, x)
    whole = cuts.cut(program, LEFT)
    groups = alike(whole, whole.segments, borders(whole, whole.segments))
    assert groups
    values = evaluate(program, [x])
    for outlines in groups.values():
        first = outlines[0]
        for other in outlines:
            assert other.form == first.form
            match = dict(zip(first.registers, other.registers, strict=True))
            made = dict(enumerate(values))
            made.update({r: values[match[r]] for r in first.registers if r not in first.made})
            for instr in (program.instrs[p] for p in first.positions):
                for dst, value in zip(instr.dsts, results(program, instr, made), strict=True):
                    made[dst] = value
            for register in first.made:
                torch.testing.assert_close(made[register], values[match[register]], rtol=0, atol=0)


def results(program: Program, instr: object, values: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    from forge_eq.run.values import run_instr

    return list(run_instr(program, instr, values))  # type: ignore[arg-type]


def test_values_between_models_are_stored_as_both_work() -> None:
    module, x = stack(Gated, 6)
    program = cuts.cut(left(module, x), LEFT)
    models = [s for s in program.segments if LEFT.device(s.device).kind == "openvino"]
    layouts = borders(program, models)
    assert layouts
    assert not set(layouts) & {*program.outputs, *program.inputs}
    inside = {p for s in models for p in range(s.start, s.stop)}
    for position, instr in enumerate(program.instrs):
        assert position in inside or not set(instr.reads) & set(layouts)


def test_another_order_at_the_border_is_another_outline() -> None:
    module, x = stack(Gated, 6)
    program = left(module, x)
    a, b = Outline(program, range(2, 5)), Outline(program, range(2, 5), {program.instrs[2].dsts[0]: (0, 2, 1)})
    assert a.form != b.form
