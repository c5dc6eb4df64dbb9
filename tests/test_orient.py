"""Orientation: the labelling is a cheapest one, and any labelling computes the same values on both executors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq import targets
from forge_eq.capture.export import capture
from forge_eq.errors import CheckError, ParseError
from forge_eq.ir.graph import Graph
from forge_eq.lower.check import check
from forge_eq.lower.mincut import sink_side
from forge_eq.lower.npu import Program
from forge_eq.lower.orient import _Network, orient, orient_all, token_axes
from forge_eq.lower.select import lower
from forge_eq.lower.text import parse, text
from forge_eq.ops import composite, elementwise, linalg, movement
from forge_eq.schedule.plan import schedule
from forge_eq.targets import Target
from forge_eq.targets.kernels import from_table
from npu_programs import Draft, F
from run_programs import TARGET, Attention, Mlp

pytest.importorskip("openvino", reason="the kernels are OpenVINO's")

from forge_eq.run.executor import Executable, torch_executable

GAINS = replace(
    TARGET,
    kernels=from_table({"tokens": [1], "plain": [[64, 64, 50.0]], "act": [[64, 64, 60.0]], "left": [[64, 64, 20.0]]}),
)
LOSES = replace(GAINS, kernels=from_table({"tokens": [1], "plain": [[64, 64, 20.0]], "left": [[64, 64, 50.0]]}))


class Gated(nn.Module):
    """Llama's MLP with its norm and residual."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Merged(nn.Module):
    """One product that is cut into parts along the features and put together again."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.both(x).split([4, 8], -1)
        return self.out(torch.cat((torch.tanh(b), a.relu()), -1))


MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "mlp": (Mlp, 8),
    "stack": (lambda: nn.Sequential(Mlp(), Mlp()), 8),
    "gated": (lambda: nn.Sequential(Gated(), Gated()), 8),
    "heads": (Attention, 16),
    "merged": (Merged, 8),
}
SIZES = [(1, 5), (1, 1), (1, 4), (3, 1), (6,)]  # leading axes; 4 tokens are as many as there are heads


def selected(graph: Graph, target: Target = GAINS) -> Program:
    return lower(graph, target)


def example(name: str, lead: tuple[int, ...]) -> tuple[nn.Module, torch.Tensor, Program]:
    torch.manual_seed(0)
    make, width = MODULES[name]
    module, x = make().eval(), torch.randn(*lead, width)
    return module, x, selected(capture(module, (x,)))


CASES = [(name, lead) for name in MODULES for lead in SIZES if name != "heads" or len(lead) == 2]  # heads: a batch


@pytest.mark.parametrize(("name", "lead"), CASES, ids=str)
def test_every_layout_computes_the_same(name: str, lead: tuple[int, ...]) -> None:
    module, x, program = example(name, lead)
    wanted = module(x)
    axes = sorted(token_axes(program, GAINS))
    assert axes, "nothing can be feature-major"
    everything, rng = orient_all(program, GAINS), random.Random(name)
    tries = [orient(program, GAINS), everything]
    some = {p for p in axes if rng.random() < 0.5}  # any mixture, too: each border is one transposition
    mixed = tuple(everything.instrs[p] if p in some else i for p, i in enumerate(program.instrs))
    tries.append(replace(program, instrs=mixed))
    for oriented in tries:
        planned = schedule(oriented, GAINS).program
        check(planned, GAINS, scheduled=True)
        assert parse(text(planned)) == planned
        for build in (Executable, torch_executable):
            (found,) = build(planned, GAINS)([x])
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_pinned_instruction_between_layouts_is_right() -> None:
    module, x, program = example("gated", (1, 5))
    planned = schedule(orient_all(program, GAINS), GAINS).program
    for position, instr in enumerate(planned.instrs):
        if instr.layout:
            (found,) = Executable(planned, GAINS, {position})([x])
            torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


def test_weights_are_shared_in_either_orientation() -> None:
    module, _, program = example("gated", (1, 5))
    big = {w.data_ptr() for w in module.parameters() if w.numel() * 4 >= 1024}
    built = Executable(schedule(orient_all(program, GAINS), GAINS).program, GAINS)
    kept = {t.data_ptr() for m in built.models for t in m.built.kept}  # type: ignore[union-attr]
    assert kept <= {w.data_ptr() for w in module.parameters()}
    assert big <= kept


def test_no_gain_leaves_the_program_alone() -> None:
    _, _, program = example("gated", (1, 5))
    assert orient(program, LOSES) is program
    assert orient(program, TARGET_WITHOUT) is program


TARGET_WITHOUT = replace(TARGET, kernels=from_table({}))


def test_a_layer_whose_kernel_is_not_known_keeps_its_rows() -> None:
    """GPT-2 stores weights [k, n]: a constant is transposed ahead, what is computed or given is not."""
    d = Draft("mixed")
    x, given = d.input(F, 1, 7, 64), d.input(F, 64, 64)
    y = d.op(linalg.linear, x, given, attrs=(False,))
    z = d.op(linalg.linear, y, d.const("kn", F, 64, 64), attrs=(False,))
    out = d.op(linalg.linear, z, d.const("nk", F, 64, 64), attrs=(True,))
    assert [i.layout for i in orient(selected(d.done(out)), GAINS).instrs] == [(), (0, 2, 1), (0, 2, 1)]


# --------------------------------------------------------------------------------------------- the cut


def spent(program: Program, network: _Network, chosen: set[int]) -> float:
    """The time of a labelling, straight from the edges."""
    inner = [n for edge in network.capacity for n in edge if isinstance(n, tuple)]
    side: dict[object, bool] = {"row": False, "feature": True, **{p: p in chosen for p in network.axes}}
    for aux in dict.fromkeys(inner):  # an auxiliary node takes the cheaper side that its endless edges allow
        costs = {}
        for there in (False, True):
            trial = {**side, aux: there}
            edges = [(a, b, c) for (a, b), c in network.capacity.items() if aux in (a, b)]
            costs[there] = sum(c for a, b, c in edges if not trial[a] and trial[b])
        side[aux] = costs[True] < costs[False]
    return sum(c for (a, b), c in network.capacity.items() if not side[a] and side[b])


def random_chain(rng: random.Random) -> Graph:
    """Layers, elementwise ops and norms in a row with skips; 7 tokens of 64."""
    d = Draft("chain")
    values = [d.input(F, 1, 7, 64)]
    for step in range(rng.randint(3, 7)):
        x = rng.choice(values[-2:])
        kind = rng.randrange(5)
        if kind < 2:
            values.append(d.op(linalg.linear, x, d.const(f"w{step}", F, 64, 64), attrs=(True,)))
        elif kind == 2:
            values.append(d.op(elementwise.add, x, rng.choice(values)))
        elif kind == 3:
            values.append(d.op(composite.rms_norm, x, d.const(f"g{step}", F, 64), attrs=((2,), 1e-6)))
        else:
            values.append(d.op(movement.permute, d.op(movement.permute, x, attrs=((0, 2, 1),)), attrs=((0, 2, 1),)))
    return d.done(values[-1], values[-2])


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_a_cheapest_labelling(seed: int) -> None:
    rng = random.Random(seed)
    table = {"tokens": [1], "plain": [[64, 64, 4.0]], "left": [[64, 64, rng.uniform(1.0, 4.5)]]}
    target = replace(TARGET, kernels=from_table(table), weights={"movement": rng.uniform(0.5, 4.0)})
    program = selected(random_chain(rng), target)
    axes = token_axes(program, target)
    network = _Network(program, target, axes)
    best = min(
        spent(program, network, set(some))
        for size in range(len(axes) + 1)
        for some in itertools.combinations(sorted(axes), size)
    )
    assert spent(program, network, set(network.cut())) == pytest.approx(best, abs=1e-2)


@pytest.mark.parametrize("seed", range(60))
def test_the_minimum_cut_is_that_of_networkx(seed: int) -> None:
    import networkx  # which torch brings along

    rng = random.Random(seed)
    nodes = ["s", "t", *range(rng.randint(0, 9))]
    edges = [rng.sample(nodes, 2) for _ in range(rng.randint(1, 40))]
    capacity = {("s", "t"): 0} | {(a, b): rng.choice((0, 1, 2, 3, 5, 1000)) for a, b in edges}
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from(((a, b, size) for (a, b), size in capacity.items()), "capacity")
    value, (_, far) = networkx.minimum_cut(graph, "s", "t", flow_func=networkx.algorithms.flow.boykov_kolmogorov)
    found = sink_side(capacity, "s", "t")
    assert found == far
    assert sum(size for (a, b), size in capacity.items() if a not in found and b in found) == value


# --------------------------------------------------------------------------------------------- refusals


def test_an_impossible_layout_is_refused() -> None:
    _, _, program = example("heads", (1, 5))
    for position, instr in enumerate(program.instrs):
        for layout in ((0, 1), (2, 1, 0), (0, 0, 1), (0, 1, 2, 3, 4)):
            wrong = list(program.instrs)
            wrong[position] = replace(instr, layout=layout)
            with pytest.raises(CheckError):
                check(replace(program, instrs=tuple(wrong)), GAINS)


@pytest.mark.parametrize("order", ["(0, 0)", "3", '("a",)', "(1,)"])
def test_text_refuses_what_is_no_order(order: str) -> None:
    _, _, program = example("mlp", (6,))
    shown = text(orient_all(program, GAINS))
    assert " stored (1, 0)" in shown
    with pytest.raises(ParseError):
        parse(shown.replace("stored (1, 0)", f"stored {order}"))


# ------------------------------------------------------------------------------------------ the whole way


def test_compile_chooses_checks_saves_and_loads_layouts(tmp_path: Path) -> None:
    source = (Path(targets.__file__).parent / "openvino-cpu.toml").read_text(encoding="utf-8")
    head, _, rest = source.partition("[kernels]")
    table = "[kernels]\ntokens = [1]\nplain = [[64, 64, 50.0]]\nact = [[64, 64, 60.0]]\nleft = [[64, 64, 20.0]]\n"
    file = tmp_path / "mine.toml"
    file.write_text(head + table + rest[rest.index("[[device]]") :], encoding="utf-8")
    torch.manual_seed(0)
    module, x = nn.Sequential(Gated(32), Gated(32)).eval(), torch.randn(1, 7, 32)
    program = forge_eq.compile(module, (x,), target=str(file), threads=1)
    layers = [i for i in program.npuir.instrs if i.unit == "matmul"]
    assert len(layers) == 6
    assert all(i.layout == (0, 2, 1) for i in layers)
    assert any(r.kind == "passed" and r.stage == "guard" for r in program.remarks)
    torch.testing.assert_close(program(x), module(x), rtol=1e-4, atol=1e-5)
    program.save(tmp_path / "p.forge")
    again = forge_eq.load(tmp_path / "p.forge")
    assert again.npuir.instrs == program.npuir.instrs
    assert torch.equal(again(x), program(x))
