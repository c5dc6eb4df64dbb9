"""Arguments are read where they lie, results are memory that nobody else sees, and nothing is held in between."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.alloc import checker
from forge_eq.alloc.host import allocate_on_host, outside, without_transfers
from forge_eq.alloc.linear_scan import allocate
from forge_eq.alloc.text import parse, text
from forge_eq.errors import CheckError, InputError
from forge_eq.ir.graph import Builder, Graph
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Program
from forge_eq.ops import elementwise, leaves, linalg, movement
from forge_eq.run.executor import Executable, HostSegment, torch_executable
from forge_eq.run.handover import ALIGNMENT, KEPT, _Buffer
from forge_eq.run.values import evaluate
from run_programs import TARGET, Mlp, captured, language, random_inputs, random_program, scheduled

pytest.importorskip("openvino", reason="the segments are OpenVINO's")
torch.set_num_threads(1)

WIDTH = 8


def products() -> Program:
    """(x @ y, its rows in one, x @ y + x): two arguments, results that share memory, and one that is read again."""
    b = Builder(Graph("products", (), ()))
    x, y = (b.add(leaves.input_, (), (i,), TensorType("f32", (WIDTH, WIDTH))) for i in range(2))
    both = b.add(linalg.matmul, (x, y))
    flat = b.add(movement.reshape, (both,), ((WIDTH * WIDTH,),))
    return scheduled(b.finish((both, flat, b.add(elementwise.add, (both, x)))))


def wanted(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [x @ y, (x @ y).view(-1), x @ y + x]


def draw(seed: int) -> torch.Tensor:
    return torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed))


def close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=["openvino", "torch"])
def run(request: pytest.FixtureRequest) -> Executable:
    program = products()
    return Executable(program, TARGET, threads=1) if request.param == "openvino" else torch_executable(program, TARGET)


def places(run: Executable, inputs: list[torch.Tensor]) -> list[int]:
    """Where the run reads its inputs: the addresses at the time of the first segment."""
    seen: list[int] = []
    first = run.segments[0].run

    def look() -> None:
        seen.extend(run.memory.values[r].data_ptr() for r in run.program.inputs)
        first()

    run.segments[0].run = look  # type: ignore[method-assign]
    try:
        run(inputs)
    finally:
        run.segments[0].run = first  # type: ignore[method-assign]
    return seen


# ------------------------------------------------------------------------------------------ arguments


def test_dense_arguments_are_read_where_they_lie(run: Executable) -> None:
    x, y = draw(0), draw(1)
    assert places(run, [x, y]) == [x.data_ptr(), y.data_ptr()]
    close(run([x, y]), wanted(x, y))


def crooked(kind: str) -> torch.Tensor:
    """A tensor whose bytes are not its elements in order, or lie badly."""
    if kind == "transposed":
        return draw(2).t()
    if kind == "strided":
        return torch.randn(WIDTH, 2 * WIDTH)[:, ::2]
    if kind == "expanded":
        return torch.randn(WIDTH).expand(WIDTH, WIDTH)
    if kind == "negated":
        value = torch._neg_view(draw(2))
        assert value.is_contiguous()
        return value
    value = torch.randn(WIDTH * WIDTH + 1)[1:].view(WIDTH, WIDTH)
    assert value.is_contiguous()
    assert value.data_ptr() % ALIGNMENT
    return value


@pytest.mark.parametrize("kind", ["transposed", "strided", "expanded", "negated", "misaligned"])
def test_others_are_copied(run: Executable, kind: str) -> None:
    x, y = crooked(kind), draw(1)
    before = x.clone()
    assert places(run, [x, y])[0] != x.data_ptr()
    for k in range(3):  # in turn with dense ones, at another place of the same call
        close(run([x, y]), wanted(x, y))
        close(run([draw(k), x]), wanted(draw(k), x))
    assert torch.equal(x, before)


def test_a_subclass_is_copied(run: Executable) -> None:
    class Tagged(torch.Tensor):
        pass

    x, y = draw(0).as_subclass(Tagged), draw(1)
    found = run([x, y])
    close(found, wanted(draw(0), y))
    assert {type(v) for v in found} == {torch.Tensor}


def test_one_buffer_may_be_two_arguments(run: Executable) -> None:
    x = draw(3)
    close(run([x, x]), wanted(x, x))
    wide = torch.randn(WIDTH + 4, WIDTH)
    first, second = wide[:WIDTH], wide[4:]  # they overlap
    close(run([first, second]), wanted(first, second))


def test_arguments_are_neither_held_nor_looked_at_after_the_call(run: Executable) -> None:
    x, y = draw(0), draw(1)
    count = torch._C._storage_Use_Count(x.untyped_storage()._cdata)
    gone = weakref.ref(x)
    found = run([x, y])
    kept = [v.clone() for v in found]
    assert torch._C._storage_Use_Count(x.untyped_storage()._cdata) == count
    x.zero_()
    y.zero_()
    assert all(torch.equal(a, b) for a, b in zip(found, kept, strict=True))
    del x
    gc.collect()
    assert gone() is None


def test_nothing_is_held_after_a_call_that_fails() -> None:
    model, (ids, seen) = language()
    run = Executable(captured(model, ids, seen), TARGET, threads=1)
    wrong = ids + 100
    gone = weakref.ref(wrong)
    with pytest.raises(forge_eq.ForgeError):
        run([wrong, seen])
    with pytest.raises(InputError):
        run([wrong, seen.double()])
    del wrong
    gc.collect()
    assert gone() is None


def test_new_values_at_an_old_address_are_seen(run: Executable) -> None:
    memory = torch.empty(2, WIDTH, WIDTH)
    for k in range(6):
        x, y = memory[k % 2], memory[1 - k % 2]
        x.copy_(draw(2 * k))
        y.copy_(draw(2 * k + 1))
        close(run([x, y]), wanted(x, y))
        del x, y
    for k in range(50):  # freed, and the address given to the next
        x = draw(100 + k)
        close(run([x, memory[0]]), wanted(x, memory[0]))


@pytest.mark.parametrize("seed", range(6))
def test_arguments_stay_as_they_are(seed: int) -> None:
    """No kernel writes over what it reads in the caller's memory."""
    program = random_program(seed)
    inputs = random_inputs(program, random.Random(seed))
    before = [v.clone() for v in inputs]
    values = evaluate(program, inputs)
    for made in (Executable(program, TARGET, threads=1), torch_executable(program, TARGET)):
        for _ in range(2):
            close(made(inputs), [values[r] for r in program.outputs])
            assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


# ------------------------------------------------------------------------------------------ results


def test_results_that_are_held_never_change(run: Executable) -> None:
    held = []
    for k in range(2 * KEPT + 3):
        held.append((k, run([draw(k), draw(k + 1)])))
        if k % 3 == 2:
            held.pop(0)
        for j, found in held:
            close(found, wanted(draw(j), draw(j + 1)))
    addresses = [v.untyped_storage().data_ptr() for _, found in held for v in found]
    assert len(set(addresses)) == len(addresses)


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda v: v[1:],
    "detached": lambda v: v.detach(),
    "storage": lambda v: v.untyped_storage(),
    "numpy": lambda v: v.numpy(),
    "memoryview": lambda v: memoryview(v.numpy()),
    "dlpack": lambda v: v.__dlpack__(),
    "autograd": lambda v: torch.ones_like(v, requires_grad=True) * v,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_memory_that_is_held_in_any_way_is_not_used_again(kind: str) -> None:
    run = torch_executable(products(), TARGET)
    found = run([draw(0), draw(1)])
    addresses = [v.data_ptr() for v in found]
    holders: list[Any] = [HOLDERS[kind](v) for v in found]
    del found
    for k in range(KEPT + 2):
        assert not {v.data_ptr() for v in run([draw(k), draw(k)])} & set(addresses)
    del holders
    gc.collect()


def test_memory_that_is_let_go_is_used_again(run: Executable) -> None:
    made = next(iter(run._outputs.values()))
    seen = set()
    for k in range(8):
        seen.add(run([draw(k), draw(k)])[0].data_ptr())
        assert len(made.pool) == 1
    assert len(seen) == 1
    last = run([draw(0), draw(1)])
    for k in range(8):  # a loop that holds the last results while it asks for the next
        last = run([draw(k), draw(k)])
    assert len(made.pool) == 2 == KEPT
    close(last, wanted(draw(7), draw(7)))


@pytest.mark.parametrize("change", ["shared", "resized", "dropped"])
def test_memory_that_was_changed_is_not_used_again(change: str) -> None:
    buffer = _Buffer((4, 4), (16,), torch.float32)
    given = buffer.shown.detach()
    assert not buffer.unheld()
    if change == "shared":
        given.share_memory_()  # another process may go on looking at it
    elif change == "resized":
        given.resize_(1000)
    else:
        given.untyped_storage().resize_(0)
    del given
    assert not buffer.unheld()
    assert _Buffer((4, 4), (16,), torch.float32).unheld()


def test_a_result_is_no_view_and_its_own_tensor(run: Executable) -> None:
    both, flat, _ = run([draw(0), draw(1)])
    for value in (both, flat):
        assert not value._is_view()
        assert value.is_contiguous()
        assert value.untyped_storage().nbytes() == value.nbytes
    both.resize_(2, 2).fill_(7)
    flat.requires_grad_()
    close(run([draw(0), draw(1)]), wanted(draw(0), draw(1)))
    assert not run([draw(0), draw(1)])[1].requires_grad


def test_results_of_inference_mode_serve_who_trains_later(run: Executable) -> None:
    with torch.inference_mode():
        run([draw(0), draw(1)])
        run([draw(0).t(), draw(1)])
    (found, *_) = run([draw(0), draw(1)])
    assert not found.is_inference()
    (torch.ones(WIDTH, WIDTH, requires_grad=True) * found).sum().backward()


def test_a_result_may_be_the_next_argument(run: Executable) -> None:
    x, due = draw(0), draw(0)
    y = draw(1) / WIDTH
    for _ in range(6):
        x, due = run([x, y])[0], due @ y
    torch.testing.assert_close(x, due, rtol=1e-4, atol=1e-5)


def test_threads_keep_their_own_results(run: Executable) -> None:
    faults: list[int] = []

    def work(k: int) -> None:
        held = [(j, run([draw(j), draw(k)])) for j in range(20)]
        for j, found in held:
            if not torch.allclose(found[0], draw(j) @ draw(k), rtol=1e-4, atol=1e-5):
                faults.append(j)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not faults


# ------------------------------------------------------------------------------------------ the whole program


class Count(nn.Module):
    """Adds to a buffer; the result is its new value and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total.add_(x)
        return self.total @ x, self.total + 0.0


def test_written_buffers_and_results_are_apart() -> None:
    compiled, eager = forge_eq.compile(Count().eval(), (draw(0),), threads=1), Count().eval()
    held = []
    for k in range(5):
        held.append((compiled(draw(k)), [v.clone() for v in eager(draw(k))]))
    for found, due in held:
        close(list(found), due)
    state = compiled.captured.constants["total"]
    due = state + state
    close(list(compiled(state))[1:], [due])  # the buffer that is written, as the argument


@pytest.mark.parametrize(
    "wrong", [[draw(0)[1:]], [draw(0).double()], [3], [], [draw(0), draw(1)], [draw(0).to_sparse()]]
)
def test_the_quick_look_at_arguments_misses_nothing(wrong: list[Any]) -> None:
    program = forge_eq.compile(Mlp().eval(), (draw(0),), threads=1)
    with pytest.raises(InputError):
        program(*wrong)
    assert torch.equal(program(draw(0)), program(nn.Parameter(draw(0))))


# ------------------------------------------------------------------------------------------ storage


@pytest.mark.parametrize("seed", range(12))
def test_nothing_at_either_end_has_a_slot(seed: int) -> None:
    program = without_transfers(random_program(seed))
    made = allocate_on_host(program, TARGET)
    checker.check(program, TARGET, made)
    assert parse(text(made)) == made
    assert made.outside == outside(program)
    ends = {*program.inputs, *(program.root(o) for o in program.outputs)} - set(program.constant_names)
    assert set(made.outside) == {v for v in ends if program.vregs[v].nbytes}
    assert not any(made.slot(program, v) for v in ends)
    assert made.peak <= allocate(program, TARGET, "segment").peak


def test_the_checker_refuses_what_has_no_place_outside() -> None:
    program = captured(*language()[:1], *language()[1])
    inner = next(i.dsts[0] for i in program.instrs if program.root(i.dsts[0]) not in outside(program))
    with pytest.raises(CheckError, match="cannot lie outside"):
        checker.check(program, TARGET, allocate(program, TARGET, "segment", (inner,)))


def test_transfers_move_nothing() -> None:
    model, inputs = language()
    program = captured(model, *inputs)
    assert program.copies
    run = Executable(program, TARGET, threads=1)
    assert not any(i.is_copy for s in run.segments if isinstance(s, HostSegment) for i, _ in s.steps)
    twins = [(i.dsts[0], i.reads[0]) for i in run.program.instrs if i.is_copy]
    assert all(run.program.root(a) == run.program.root(b) for a, b in twins)
    close(run(list(inputs)), list(model(*inputs)))
