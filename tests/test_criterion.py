"""The criterion lets another order of summation pass, and nothing that is a fault; also where results are few."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from forge_eq.capture import capture
from forge_eq.run.differential import check_graph, input_batches
from forge_eq.run.pooled import MORE, look_again
from forge_eq.verify.criterion import FEW, Verdict, _against, compare

# ------------------------------------------------------------------------------------ the order of a sum


def rmse(value: torch.Tensor, exact: torch.Tensor) -> float:
    return float((value.double() - exact.double()).square().mean().sqrt())


def one_accumulator(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A product that adds one term after the other, each rounded once: what OpenVINO's kernels do."""
    total = torch.zeros(len(weight))
    for k in range(x.numel()):
        total = (total.double() + x[k].double() * weight[:, k].double()).float()
    return total


def product(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A row with outliers, as those before SmolLM2's down projections, and a weight."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1536, generator=generator) * 0.3
    x[::200] *= 40
    return x, torch.randn(1200, 1536, generator=generator) * 0.1


@pytest.mark.parametrize("seed", range(3))
def test_another_order_of_summation_agrees_and_a_rounded_weight_does_not(seed: int) -> None:
    x, weight = product(seed)
    exact, reference, found = weight.double() @ x.double(), weight @ x, one_accumulator(x, weight)
    assert rmse(found, exact) > 2 * rmse(reference, exact)  # PyTorch's own kernel for one row has many accumulators
    assert compare([found], [reference], lambda: [exact])
    for wrong in (weight.bfloat16().float() @ x, weight.half().float() @ x, reference * (1 + 1e-4)):
        assert not compare([wrong], [reference], lambda: [exact])


def test_rows_that_nobody_touched_do_not_dilute_a_fault() -> None:
    """One new row of a cache of 4096: its error is 50 times the tolerance, that of all rows together below it."""
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(1, 2, 4096, 16, generator=generator)
    exact = cache.double()
    exact[:, :, 7] += torch.rand(2, 16, generator=generator, dtype=torch.float64) * 1e-9
    reference, found = exact.float(), exact.float()
    found[:, :, 7] += 5e-4
    assert rmse(found, exact) < 1e-5
    assert not compare([found], [reference], lambda: [exact])


@pytest.mark.parametrize(("count", "worst"), [(FEW - 1, 3.0), (FEW, 2.0)])
def test_few_elements_have_more_room(count: int, worst: float) -> None:
    exact = torch.linspace(100, 200, count, dtype=torch.float64)
    reference = exact.float() + 0.01
    assert compare([exact.float() + 0.0099 * worst], [reference], lambda: [exact])
    assert not compare([exact.float() + 0.0102 * worst], [reference], lambda: [exact])


def test_values_that_are_all_tiny_are_no_zeros() -> None:
    exact = torch.linspace(1, 2, 50, dtype=torch.float64) * 1e-22
    assert not compare([torch.zeros(50)], [exact.float()], lambda: [exact])


# ------------------------------------------------------------------------------------ faults in a step

ROWS, WIDTH, PAST = 512, 32, 300


class Step(nn.Module):
    """One token over a cache: norm, keys and values with bias, masked attention, a layer. The fields are its faults."""

    scale, eps, seen, place = WIDTH**-0.5, 1e-5, 0, 0

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, past: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        y = nn.functional.rms_norm(x, (WIDTH,), eps=self.eps)
        keys = keys.index_copy(1, past + self.place, self.k(y))
        values = values.index_copy(1, past, self.v(y))
        mask = torch.arange(ROWS) <= past + self.seen
        scores = (self.q(y) @ keys.mT * self.scale).masked_fill(~mask, -math.inf)
        return self.out(scores.softmax(-1) @ values), keys, values


def inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(1, ROWS, WIDTH, generator=generator) for _ in range(2))
    return torch.randn(1, 1, WIDTH, generator=generator) * 0.05, torch.tensor([PAST]), keys, values


def rounded(layer: nn.Linear) -> None:
    layer.weight.data = layer.weight.data.bfloat16().float()


def scaled(layer: nn.Linear) -> None:
    layer.weight.data *= 1 + 1e-3


def unbiased(layer: nn.Linear) -> None:
    layer.bias.data.zero_()


def judged(change: Any) -> bool:
    """Whether a step so changed passes for the unchanged one."""
    right, wrong = Step().eval(), Step().eval()
    change(wrong)
    captured, chosen = capture(right, inputs()), capture(wrong, inputs())
    kept, remark = check_graph(captured, chosen, input_batches(captured, inputs(), None, "quick"))
    assert (kept is chosen) == (remark.kind == "passed")
    return kept is chosen


def test_the_same_step_passes() -> None:
    assert judged(lambda step: None)


@pytest.mark.parametrize("layer", ["q", "k", "v", "out"])
@pytest.mark.parametrize("fault", [rounded, scaled, unbiased])
def test_a_fault_in_one_layer_is_found(fault: Any, layer: str) -> None:
    assert not judged(lambda step: fault(getattr(step, layer)))


@pytest.mark.parametrize(
    ("field", "value"),
    [("scale", WIDTH**-0.5 * 1.01), ("eps", 1e-6), ("seen", -1), ("seen", 1), ("place", 1)],
)
def test_a_wrong_number_is_found(field: str, value: float) -> None:
    assert not judged(lambda step: setattr(step, field, value))


# ------------------------------------------------------------------------------------ without float64


def asked(found: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor) -> tuple[Verdict, bool]:
    """The verdict, and whether the exact values were needed for it."""
    calls = []

    def oracle() -> list[torch.Tensor]:
        calls.append(exact)
        return [exact]

    return compare([found], [reference], oracle), bool(calls)


@pytest.mark.parametrize("seed", range(200))
def test_what_passes_without_exact_values_passes_with_the_worst_ones(seed: int) -> None:
    """The exact values on the far side of the reference, at every distance: none makes the result too wrong."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    count, size = draw.choice([1, 3, 40, 1500]), 10 ** draw.uniform(-7, 3)
    reference = torch.randn(count, generator=generator) * size
    step = torch.randn(count, generator=generator) * (torch.rand(count, generator=generator) < draw.choice([0.1, 1.0]))
    near = max(1e-5 * min(1.0, size), 1.2e-7 * size)
    found = reference + step * near * 10 ** draw.uniform(-1, 1)
    if compare([found], [reference]):
        return
    for away in (-3.0, -1.0, -0.5, -0.1, -1e-3, 0.0, 0.5, 1.0, 2.0):
        far = reference.double() + away * (found.double() - reference.double())
        for exact in (far, far + 1e-9 * size, far * (reference != found)):
            _, needed = asked(found, reference, exact)
            if not needed:
                assert not _against(found, reference, exact, 0.0)


def test_exact_values_are_asked_for_only_where_they_decide() -> None:
    exact = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reference = exact.float()
    for error, needed in ((2e-6, False), (6e-6, False), (4e-5, True)):
        noise = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * error
        assert asked(reference + noise, reference, exact)[1] == needed
    assert not asked(reference + 1e-3, reference, exact)[0]
    one = reference.clone()
    one[17] += 1e-3  # the elements that agree do not dilute it
    assert not asked(one, reference, exact)[0]


@pytest.mark.parametrize("place", [0, 70_000, 140_000])
def test_values_that_are_not_finite_are_found_in_any_block(place: int) -> None:
    reference = torch.randn(150_000, generator=torch.Generator().manual_seed(0))
    for value in (math.nan, math.inf, -math.inf):
        odd = reference.clone()
        odd[place] = value
        assert not compare([odd], [reference])
        assert not compare([reference], [odd])
        assert compare([odd], [odd.clone()])
    assert not compare([reference * (torch.arange(150_000) != place)], [reference])


def test_comparing_changes_nothing() -> None:
    pair = [torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (0, 0)]
    kept = [t.clone() for t in pair]
    assert compare([pair[0]], [pair[1]])
    assert all(torch.equal(a, b) for a, b in zip(pair, kept, strict=True))


# ------------------------------------------------------------------------------------ a second look


class Noisy:
    """Doubles its operand, with an error along one direction whose size is drawn anew for each operand."""

    def __init__(self, size: float, seed: int) -> None:
        self.size, self.seed, self.calls = size, seed, 0

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        self.calls += 1
        draw = random.Random(f"{self.seed} {self.calls}").gauss()
        return [(given[0].double() * 2 + self.size * draw).float()]


def exactly(given: Sequence[Any]) -> list[Any]:
    return [given[0].double() * 2]


X = torch.linspace(1, 30, 1 << 11)


def looked(size: float, seed: int) -> Verdict:
    return look_again(Verdict("differs", 1.0), [X], Noisy(size, seed), Noisy(0.01, seed + 500), exactly)


def test_a_program_as_good_as_the_other_is_seldom_blamed_and_a_worse_one_mostly() -> None:
    """Of one sample each, programs with errors alike differ by more than the limit in about a third of all cases."""
    alone = [compare(Noisy(0.01, s)([X]), Noisy(0.01, s + 500)([X]), lambda: exactly([X])) for s in range(100)]
    assert sum(not v for v in alone) > 20
    assert sum(not looked(0.01, s) for s in range(100)) <= 8
    assert sum(not looked(0.05, s) for s in range(100)) >= 95
    assert not any(looked(0.1, s) for s in range(100))


@pytest.mark.parametrize(("times", "found"), [(4.0, False), (6.0, True)])
def test_worse_on_one_input_alone_is_found_from_a_limit(times: float, found: bool) -> None:
    def run(given: Sequence[Any]) -> list[Any]:
        error = 0.01 * (times if torch.equal(given[0], X) else 0.0)
        return [(given[0].double() * 2 + error).float()]

    verdict = look_again(Verdict("differs", 1.0), [X], run, lambda g: [(g[0].double() * 2 - 0.01).float()], exactly)
    assert bool(verdict) != found
    assert 4.0 < 2 * math.sqrt(1 + MORE) < 6.0


def test_failing_on_another_input_is_found() -> None:
    def fails(given: Sequence[Any]) -> list[Any]:
        if not torch.equal(given[0], X):
            raise RuntimeError("no such order")
        return [given[0] * 2]

    def no_number(given: Sequence[Any]) -> list[Any]:
        return [given[0] * 2 if torch.equal(given[0], X) else given[0] * math.nan]

    for run, word in ((fails, "no such order"), (no_number, "NaN")):
        assert word in look_again(Verdict("differs", 1.0), [X], run, lambda g: [g[0] * 2], exactly).reason


def test_there_is_no_second_look_at_many_elements_or_without_float64() -> None:
    first, many = Verdict("differs", 1.0), torch.ones(1 << 19)
    twice = [lambda g: [g[0][: 1 << 18] * 2, g[0][: (1 << 18) + 1]]] * 2
    assert look_again(first, [many], *twice, lambda g: twice[0](g)) is first
    assert look_again(first, [X], lambda g: [g[0] * 2], lambda g: [g[0] * 2], lambda g: None) is first
