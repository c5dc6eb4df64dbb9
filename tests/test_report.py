"""Reports: what they say is what happened, and it fits the width."""

from __future__ import annotations

import pytest
import torch

from forge_eq.errors import InputError
from forge_eq.ops.elementwise import neg
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.report import (
    allocation_table,
    because,
    changes,
    explain,
    op_counts,
    program_report,
    rule_counts,
    stage_table,
    summary,
    table,
)
from forge_eq.report.beside import clip, side_by_side
from forge_eq.report.match import Row, rows
from forge_eq.rules.dsl import RuleSet, rule, to


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x) * 1.0)))


class Stack(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def job_of(module: torch.nn.Module, *args: torch.Tensor, last: str = "extract", **options: object) -> Job:
    return run(Job(Options(verify="off", **options), (module.eval(), args, None, None)), last)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def attention() -> Job:
    return job_of(Attention(), *(torch.randn(2, 4, 8, 16) for _ in range(3)), last="alloc")


@pytest.fixture(scope="module")
def stack() -> Job:
    return job_of(Stack(4), torch.randn(3, 8), last="alloc")


def test_before_and_after_stand_side_by_side(attention: Job) -> None:
    text = explain(attention, 100)
    line = next(x for x in text.splitlines() if "attention(" in x)
    left, right = line.split(" | ")
    assert "matmul(" in left  # the value that attention computes is the last product's
    assert left.split()[0] == right.split()[0]  # and has the same name on both sides
    assert "attention(q, k, v; scale=0.25)" in right
    chosen = attention["chosen"]
    assert f"cost {chosen.captured_cost:.4g} us -> {chosen.extraction.cost:.4g} us" in text
    assert "calls 5 -> 1 (-80.0%)" in text
    assert "attention/scaled" in text
    assert "limits: none hit" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_explain_fits_the_width(stack: Job, attention: Job, width: int) -> None:
    for job in (stack, attention):
        lines = explain(job, width).splitlines()
        assert max(map(len, lines)) <= width, max(lines, key=len)
        assert all(c.isprintable() for line in lines for c in line)


def test_a_repeated_layer_is_shown_once(stack: Job) -> None:
    text = explain(stack, 100)
    assert text.count(" -- layers.") == 1
    assert "(x4)" in text
    assert text.count("up.weight") == 2  # before and after, of one layer


def test_a_layer_of_another_form_is_told() -> None:
    left = [Row(i, "add", f"%{i}", f"layers.{i}", "") for i in range(3)]
    right = [*left[:2], Row(2, "mul", "%2", "layers.2", "some/rule")]
    lines = side_by_side(left, right, 80)
    assert any("layers.0  (x2)" in x for x in lines)
    assert any("layers.2: after -1 add, +1 mul" in x for x in lines)


def test_long_programs_are_cut_and_changes_are_not(stack: Job) -> None:
    many = [Row(i, "add", f"%{i} = add", "", "") for i in range(100)]
    lines = side_by_side(many, [], 80)
    assert lines[-1].strip() == "... 40 more lines"
    assert len(side_by_side(many, [], 80, None)) == 101
    assert "more lines" not in changes(stack, 80)


def test_rows_hold_every_call_that_runs(stack: Job) -> None:
    view = stack["saturate"]
    assert len(rows(view, stack["capture"], False)) == op_counts(stack["capture"]).total()
    assert len(rows(view, stack["chosen"].graph, True)) == stack["extract"].calls


def test_counts_agree_with_the_graphs(stack: Job) -> None:
    assert op_counts(stack["capture"]).total() == stack["capture"].live().calls
    made = rule_counts(stack["extract"])
    assert made
    assert made.total() <= stack["extract"].calls
    assert all(name in summary(stack, 100) for name in made)


# ------------------------------------------------------------------------------------------------ because


@pytest.mark.slow
def test_because_names_the_rules_without_which_it_costs_more(attention: Job) -> None:
    heard: list[str] = []
    found = because(attention, lambda name, step, total: heard.append(f"{step}/{total}"))
    needed = dict(found.needed)
    assert {"attention/scaled", "algebra/matmul_swapped"} <= set(needed)
    assert heard[-1] == f"{len(heard)}/{len(heard)}"
    from forge_eq.rules import default

    args = [torch.randn(2, 4, 8, 16) for _ in range(3)]
    for name, cost in found.needed:  # the claim, checked through the front door
        again = job_of(Attention(), *args, rules=RuleSet(r for r in default if r.id != name))
        assert again["chosen"].extraction.cost == pytest.approx(cost)
        assert cost > found.cost
    without = job_of(Attention(), *args, rules=RuleSet(r for r in default if r.id not in found.idle))
    assert without["chosen"].extraction.cost == pytest.approx(found.cost)
    text = explain(attention, 100, why=True)
    assert "because" in text
    assert f"matched but not needed: {len(found.idle)} rule" in text


def test_rules_that_stand_in_for_each_other_are_a_group() -> None:
    def one(x):  # type: ignore[no-untyped-def]
        """Negation undoes itself."""
        return to(neg(neg(x)), x)

    def two(x):  # type: ignore[no-untyped-def]
        """The same once more."""
        return to(neg(neg(x)), x)

    made = [rule("twin", exact="bit", source="test")(f) for f in (one, two)]

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.abs(torch.neg(torch.neg(x)))

    found = because(job_of(Twice(), torch.randn(4), rules=RuleSet() + made[0] + made[1]))
    assert found.needed == ()
    assert [names for names, _ in found.either] == [("twin/one", "twin/two")]
    assert found.either[0][1] > found.cost
    assert found.idle == ()


# ------------------------------------------------------------------------------------------------ tables


def test_stage_table_has_every_stage_and_the_sum(stack: Job) -> None:
    lines = stage_table(stack).splitlines()
    assert [x.split()[0] for x in lines] == ["stage", *stack.seconds, "own"]
    own = sum(s for name, s in stack.seconds.items() if name != "capture")
    assert f"{own:.3f} s" in lines[-1]


def test_allocation_table_agrees_with_the_plan(stack: Job) -> None:
    text = allocation_table(stack)
    plan, figures = stack["alloc"], stack["schedule"].figures
    peak = next(x for x in text.splitlines() if "peak bytes" in x)
    assert int(peak.split()[-1]) == plan.peak
    ratio = next(x for x in text.splitlines() if "peak / bound" in x).split()[-1]
    assert ratio == (f"{plan.peak / plan.bound:.3f}" if plan.bound else "-")
    assert plan.outside
    assert f"inputs and results lie outside of it: {len(plan.outside)} register" in text
    assert f"transitions {figures.transitions_before} in captured order -> {figures.transitions} scheduled" in text


def test_program_report_has_all_parts() -> None:
    import forge_eq

    program = forge_eq.compile(Stack(2).eval(), (torch.randn(3, 8),))
    text = program_report(program)
    assert text == program.report()
    assert summary(program.job, 100) in text
    assert stage_table(program.job) in text
    assert "arena bytes" in text


def test_table_aligns_words_left_and_figures_right() -> None:
    assert table(("name", "n"), [("a", "1"), ("bb", "10")]) == ["   name   n", "   a      1", "   bb    10"]
    assert table(("name",), []) == []


@pytest.mark.parametrize(
    ("text", "width", "cut"), [("abcdef", 6, "abcdef"), ("abcdefg", 6, "abc..."), ("abcd", 2, "...")]
)
def test_clip(text: str, width: int, cut: str) -> None:
    assert clip(text, width) == cut


# ------------------------------------------------------------------------------------------------ demo


def test_demo_on_a_tiny_model_compares_and_tells() -> None:
    from forge_eq.demo import run as demo
    from forge_eq.models import llama_tiny

    heard: list[str] = []
    found = demo(heard.append, "5 7 11", new=4, tokens=16, load=llama_tiny)
    text = "\n".join(heard)
    assert found.same
    assert len(found.tokens) == 7
    assert found.tokens[:3] == (5, 7, 11)
    assert found.fidelity.to_torch < 1e-4
    assert found.fidelity.ours_to_float64 is not None
    assert found.fidelity.ours_to_float64 < 1e-4
    assert "the same as PyTorch's" in text
    for part in ("own stages", "physical buffers", "transitions", "where the time went", " next"):
        assert part in text
    with pytest.raises(InputError, match="do not fit into 16"):
        demo(heard.append, "5 7 11", new=14, tokens=16, load=llama_tiny)


@pytest.mark.slow
def test_demo_gives_the_text_that_pytorch_gives() -> None:
    pytest.importorskip("gguf")
    from forge_eq.demo import run as demo

    heard: list[str] = []
    found = demo(heard.append)
    assert found.same
    assert "girl named" in found.text
    assert found.fidelity.ours_to_float64 is not None
    assert found.fidelity.torch_to_float64 is not None
    assert found.fidelity.ours_to_float64 <= 4 * found.fidelity.torch_to_float64
