"""The executor: the arena, OpenVINO segments and host instructions together give what torch gives."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from forge_eq.errors import InputError, RunError
from forge_eq.ir.graph import Builder, Graph
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Program
from forge_eq.ops import elementwise, leaves, linalg, movement
from forge_eq.run.executor import OPENVINO, Executable, accelerated, torch_executable
from forge_eq.run.segments import ModelSegment
from forge_eq.run.values import evaluate
from run_programs import TARGET, Attention, Mlp, captured, language, random_inputs, random_program, scheduled
from torch_programs import Fn

pytest.importorskip("openvino", reason="the segments are OpenVINO's")
torch.set_num_threads(1)


def close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def expected(program: Program, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    values = evaluate(program, inputs)
    return [values[r] for r in program.outputs]


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow if s >= 6 else ()) for s in range(40)])
def test_random_programs_run_as_torch_runs_them(seed: int) -> None:
    program = random_program(seed)
    inputs = random_inputs(program, random.Random(seed))
    want = expected(program, inputs)
    run = Executable(program, TARGET, threads=1)
    assert run.models
    close(run(inputs), want)
    close(torch_executable(program, TARGET)(inputs), want)
    rng = random.Random(seed)
    some = [p for p in accelerated(program, TARGET) if rng.random() < 0.3]
    close(Executable(program, TARGET, some, threads=1)(inputs), want)


def test_host_and_accelerator_take_turns() -> None:
    model, inputs = language()
    program = captured(model, *inputs)
    run = Executable(program, TARGET, threads=1)
    assert len(run.models) >= 2
    assert len(run.segments) > len(run.models)
    with torch.no_grad():
        close(run(inputs), list(model(*inputs)))
        other = (torch.zeros_like(inputs[0]), torch.tensor([[1, 0, 1, 0, 1]] * 2))
        close(run(other), list(model(*other)))


def test_results_are_fresh_and_calls_repeat() -> None:
    model, (ids, seen) = language()
    run = Executable(captured(model, ids, seen), TARGET, threads=1)
    first = run([ids, seen])
    kept = [v.clone() for v in first]
    for value in first:
        value.fill_(7)  # a caller may write into what it got
    mine = [ids.clone(), seen.clone()]
    second = run(mine)
    mine[0].zero_()  # and into what it gave
    close(second, kept)
    close(run([ids, seen]), kept)
    arenas = [b.untyped_storage().data_ptr() for b in run.memory.blocks.values()]
    assert not {v.untyped_storage().data_ptr() for v in second} & set(arenas)


def test_threads_may_share_a_program() -> None:
    model, (ids, seen) = language()
    run = Executable(captured(model, ids, seen), TARGET, threads=1)
    batches = [[(ids + k) % 13, seen] for k in range(4)]
    want = [run(b) for b in batches]
    found: dict[int, list[list[torch.Tensor]]] = {}

    def work(k: int) -> None:
        found[k] = [run(batches[k]) for _ in range(10)]

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for k, results in found.items():
        for result in results:
            close(result, want[k])
    assert len(found) == 4


def test_inputs_may_be_strided_and_need_gradients() -> None:
    x = torch.randn(8, 3, requires_grad=True).t()
    model = Mlp()
    run = Executable(captured(model, torch.randn(3, 8)), TARGET, threads=1)
    (y,) = run([x])
    assert not y.requires_grad
    close([y], [model(x).detach()])


@pytest.mark.parametrize(
    ("inputs", "word"),
    [([], "0 values"), ([torch.zeros(4, 8)], r"\[4, 8\]"), ([torch.zeros(3, 8).double()], "float64"), ([3], "3")],
)
def test_wrong_inputs_are_refused(inputs: list[object], word: str) -> None:
    run = Executable(captured(Mlp(), torch.randn(3, 8)), TARGET, threads=1)
    with pytest.raises(InputError, match=word):
        run(inputs)


def test_weights_are_shared_with_torch() -> None:
    model = nn.Linear(64, 64, bias=False)
    run = Executable(captured(model, torch.randn(2, 64)), TARGET, threads=1)
    (kept,) = [t for m in run.models for t in m.built.kept]  # type: ignore[union-attr]
    assert kept.data_ptr() == model.weight.data_ptr()
    assert run.ownership().shared == 64 * 64 * 4


def graph_of(*shapes: tuple[int, ...]) -> tuple[Builder, list[int]]:
    b = Builder(Graph("small", (), ()))
    return b, [b.add(leaves.input_, (), (i,), TensorType("f32", s)) for i, s in enumerate(shapes)]


def test_an_argument_or_a_weight_may_be_a_result() -> None:
    b, (x,) = graph_of((2, 2))
    w = b.add(leaves.constant, (), ("w",), TensorType("f32", (2, 2)))
    y = b.add(elementwise.add, (x, w))
    flat = b.add(movement.reshape, (w,), ((4,),))
    data = torch.arange(4.0).view(2, 2)
    program = scheduled(b.finish((x, w, y, flat, y), constants={"w": data}))
    run = Executable(program, TARGET, threads=1)
    given = torch.ones(2, 2)
    found = run([given])
    close(found, [given, data, given + data, data.view(4), given + data])
    for value in found:
        value.fill_(9)
    assert data.tolist() == [[0, 1], [2, 3]]
    assert given.sum() == 4


def test_a_call_without_operands_is_an_instruction_like_any_other() -> None:
    """It has no source that a view could look at; scheduling asked for one."""
    program = captured(Fn(lambda m, x: x + torch.rand(4)), torch.zeros(4))
    assert any(not i.srcs for i in program.instrs)
    run = Executable(program, TARGET, threads=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        (found,) = run([torch.zeros(4)])
        torch.manual_seed(0)
        assert torch.equal(found, torch.rand(4))


def test_values_without_elements_run_on_the_host() -> None:
    b, (x, y) = graph_of((0, 3), (2, 3))
    both = b.add(movement.concat, (b.add(elementwise.neg, (x,)), y), (0,))
    program = scheduled(b.finish((both, b.add(elementwise.exp, (both,)), x)))
    run = Executable(program, TARGET, threads=1)
    inputs = [torch.empty(0, 3), torch.randn(2, 3)]
    close(run(inputs), expected(program, inputs))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "expanded"])
def test_weights_of_any_layout(layout: str) -> None:
    torch.manual_seed(0)
    w = {
        "contiguous": torch.randn(40, 24),
        "transposed": torch.randn(24, 40).t(),
        "strided": torch.randn(80, 24)[::2],
        "expanded": torch.randn(24).expand(40, 24),
    }[layout]
    b, (x,) = graph_of((3, 24))
    weight = b.add(leaves.constant, (), ("w",), TensorType("f32", (40, 24)))
    program = scheduled(b.finish((b.add(linalg.linear, (x, weight), (True,)),), constants={"w": w}))
    run = Executable(program, TARGET, threads=1)
    given = torch.randn(3, 24)
    close(run([given]), [given @ w.t()])
    (kept,) = [t for m in run.models for t in m.built.kept]  # type: ignore[union-attr]
    assert (kept.data_ptr() == w.data_ptr()) == (layout in ("contiguous", "transposed"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(32, 32).to(dtype)
    x = torch.randn(2, 32).to(dtype)
    b, _ = graph_of()
    name = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    i = b.add(leaves.input_, (), (0,), TensorType(name, (2, 32)))
    w, c = (b.add(leaves.constant, (), (n,), TensorType(name, tuple(p.shape))) for n, p in model.named_parameters())
    y = b.add(linalg.linear_bias, (i, w, c), (True,))
    program = scheduled(b.finish((y,), constants=dict(model.named_parameters())))
    run = Executable(program, TARGET, threads=1)
    assert run.models
    torch.testing.assert_close(run([x])[0], model(x).detach(), rtol=2e-2, atol=2e-2)


def test_names_tell_the_instruction() -> None:
    run = Executable(captured(Attention(), torch.randn(1, 3, 16)), TARGET, threads=1)
    parts = [s for s in run.program.segments if TARGET.device(s.device).kind == OPENVINO]
    built = [m.built for m in (ModelSegment(run.memory, s) for s in parts) if m.built is not None]
    names = [n.get_friendly_name() for b in built for n in b.model.get_ops()]
    assert len(names) == len(set(names))
    opcodes = {i.opcode for i in run.program.instrs}
    made = [n for n in names if n.startswith("npu.")]
    assert made
    assert {n.split(" ")[0] for n in made} <= opcodes


def test_an_index_out_of_range_is_an_error_and_the_program_survives_it() -> None:
    model, (ids, seen) = language()
    run = Executable(captured(model, ids, seen), TARGET, threads=1)
    want = run([ids, seen])
    with pytest.raises(RunError, match="embedding"):
        run([ids + 100, seen])
    close(run([ids, seen]), want)


def test_ownership_adds_up() -> None:
    model, inputs = language()
    run = Executable(captured(model, *inputs), TARGET, threads=1)
    owned = run.ownership()
    assert owned.arenas == {a.device: a.peak for a in run.allocation.arenas}
    assert owned.inside > 0
    host = torch_executable(run.program, TARGET).ownership()
    assert host.inside == 0
    assert sum(host.arenas.values()) > 0
    assert str(owned.inside) in str(owned)


def test_a_program_without_its_weights_is_refused() -> None:
    program = captured(Mlp(), torch.randn(3, 8))
    with pytest.raises(RunError, match="no data"):
        Executable(replace(program, data={}), TARGET)


def test_a_kernel_of_the_wrong_size_never_reaches_the_arena() -> None:
    program = captured(Mlp(), torch.randn(3, 8))
    position = next(p for p, i in enumerate(program.instrs) if i.op is linalg.linear_bias)
    assert linalg.linear_bias.kernel is not None
    kernel = replace(linalg.linear_bias.kernel, openvino=lambda g, x, w, b, t: x)
    broken = replace(linalg.linear_bias, kernel=kernel)
    instrs = list(program.instrs)
    instrs[position] = replace(instrs[position], op=broken)
    with pytest.raises(RunError, match="its kernel gives"):
        Executable(replace(program, instrs=tuple(instrs)), TARGET)


@pytest.mark.slow
def test_without_openvino_the_error_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['openvino'] = None\n"
        "from run_programs import *\nfrom forge_eq.run.executor import *\nimport torch\n"
        "p = captured(Mlp(), torch.randn(3, 8))\n"
        "x = torch.randn(3, 8)\n"
        "print(len(torch_executable(p, TARGET)([x])))\n"
        "try: Executable(p, TARGET)\n"
        "except RunError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_env())
    assert done.stdout.startswith("1\n"), done.stderr
    assert "forge_eq[openvino]" in done.stdout


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
