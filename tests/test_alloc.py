"""Allocation: validity on random programs, quality on transformers, and a checker that catches sabotage."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from forge_eq import targets
from forge_eq.alloc import skyline as search
from forge_eq.alloc.checker import check
from forge_eq.alloc.linear_scan import STRATEGIES, allocate
from forge_eq.alloc.liveness import Group, Interval, groups, intervals, max_live, steps
from forge_eq.alloc.plan import Allocation, Slot
from forge_eq.alloc.skyline import skyline
from forge_eq.alloc.text import WIDTH, parse, text
from forge_eq.errors import AllocError, CheckError, ParseError
from forge_eq.lower.npu import Program
from forge_eq.lower.select import lower
from forge_eq.ops import elementwise, linalg, movement
from forge_eq.schedule.plan import schedule
from npu_programs import Draft, F, mlp, random_graph, transformer

NPU = targets.load("openvino-cpu")
TORCH = targets.load("torch")
SIZES = ("instr", "segment")


def scheduled(graph, target=NPU) -> Program:
    return schedule(lower(graph, target), target).program


def with_slot(allocation: Allocation, device: str, index: int, slot: Slot) -> Allocation:
    arenas = [
        replace(a, slots=(*a.slots[:index], slot, *a.slots[index + 1 :])) if a.device == device else a
        for a in allocation.arenas
    ]
    return Allocation(allocation.name, allocation.granularity, allocation.alignment, allocation.steps, tuple(arenas))


@pytest.mark.parametrize("granularity", SIZES)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_are_allocated_soundly(seed: int, granularity: str) -> None:
    for target in (NPU, TORCH):
        program = scheduled(random_graph(seed), target)
        allocation = allocate(program, target, granularity)
        check(program, target, allocation)
        assert all(a.peak >= a.bound for a in allocation.arenas)
        assert parse(text(allocation)) == allocation
        assert allocate(program, target, granularity) == allocation


@pytest.mark.parametrize("name", [n for n, _ in STRATEGIES])
@pytest.mark.parametrize("seed", range(10))
def test_every_strategy_is_sound(name: str, seed: int) -> None:
    program = scheduled(random_graph(seed))
    sequence = steps(program, NPU, "instr")
    merged = groups(program, sequence, intervals(program, sequence))
    arenas = []
    for arena in allocate(program, NPU).arenas:
        mine = [g for g in merged if g.members[0].device == arena.device]
        offsets = dict(STRATEGIES)[name](mine, 64)
        slots = tuple(Slot(i.vreg, offsets[g.key], i.nbytes, i.birth, i.death) for g in mine for i in g.members)
        peak = max(s.end for s in slots)
        assert peak + 63 >= max_live(mine, 64)
        arenas.append(replace(arena, slots=slots, peak=peak))
    check(program, NPU, Allocation(program.name, "instr", 64, len(sequence), tuple(arenas)))


def boxes(*sizes: tuple[int, int, int]) -> list[Group]:
    """Buffers by (birth, death, multiples of 64 bytes)."""
    return [Group((Interval(k, "npu", 64 * n, b, d),)) for k, (b, d, n) in enumerate(sizes)]


def peak(made: list[Group], offsets: dict[int, int]) -> int:
    return max(offsets[g.key] + g.nbytes for g in made)


def apart(made: list[Group], offsets: dict[int, int]) -> bool:
    """Whether no two that are live together overlap."""
    return all(
        offsets[a.key] + a.nbytes <= offsets[b.key] or offsets[b.key] + b.nbytes <= offsets[a.key]
        for a, b in itertools.combinations(made, 2)
        if a.birth < b.death and b.birth < a.death
    )


# What is left of one layer of Gemma 3 without which some greedy order finds the bound: (birth, death, size).
NORMED = boxes(
    (0, 3, 1),
    (1, 5, 2),
    (2, 6, 1),
    (4, 7, 2),
    (5, 8, 1),
    (6, 9, 2),
)


def drawn(seed: int, count: int, most: int) -> list[Group]:
    r = random.Random(seed)
    starts = [r.randrange(count) for _ in range(count)]
    return boxes(*((b, b + 1 + int(r.expovariate(0.25)), r.randint(1, most)) for b in starts))


def least(made: list[Group]) -> int:
    """The lowest peak of all, by trying every order at the lowest free offsets."""

    def lowest(order: tuple[Group, ...]) -> int:
        at: dict[int, int] = {}
        for g in order:
            taken = sorted(
                (at[o.key], at[o.key] + o.nbytes)
                for o in order
                if o.key in at and o.birth < g.death and g.birth < o.death
            )
            offset = 0
            for start, end in taken:
                if start - offset >= g.nbytes:
                    break
                offset = max(offset, end)
            at[g.key] = offset
        return peak(made, at)

    return min(map(lowest, itertools.permutations(made)))


@pytest.mark.parametrize("seed", range(30))
def test_the_search_finds_what_there_is(seed: int) -> None:
    made = drawn(seed, 6, 9)
    best = least(made)
    for capacity in (max_live(made, 64) - 64, best - 64, best, best + 64):
        found = skyline(made, 64, capacity)
        assert (found is not None) == (capacity >= best)
        assert found is None or (apart(made, found) and peak(made, found) <= capacity)


@pytest.mark.parametrize("seed", range(6))
def test_the_search_is_tight_where_greedy_orders_are_not(seed: int) -> None:
    made = drawn(seed, 60, 19)
    bound = max_live(made, 64)
    found = skyline(made, 64, bound)
    assert found is not None
    assert apart(made, found)
    assert peak(made, found) == bound


def test_the_search_is_tight_on_a_layer_with_many_norms() -> None:
    bound = max_live(NORMED, 64)
    assert all(peak(NORMED, run(NORMED, 64)) > bound for _, run in STRATEGIES)
    found = skyline(NORMED, 64, bound)
    assert found is not None
    assert apart(NORMED, found)
    assert peak(NORMED, found) == bound


def test_the_search_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(1, 60, 19)
    monkeypatch.setattr(search, "NODES", 59)
    assert skyline(made, 64, max_live(made, 64)) is None
    monkeypatch.undo()
    monkeypatch.setattr(search, "GROUPS", 59)
    assert skyline(made, 64, max_live(made, 64)) is None


@pytest.mark.parametrize("target", [NPU, TORCH], ids=lambda t: t.name)
@pytest.mark.parametrize("layers", [1, 6])
def test_transformer_peak_is_within_five_percent_of_the_bound(target, layers: int) -> None:
    program = scheduled(transformer(layers), target)
    for granularity in SIZES:
        allocation = allocate(program, target, granularity)
        check(program, target, allocation)
        assert allocation.peak <= 1.05 * allocation.bound
    allocation = allocate(program, target)
    assert allocation.physical < allocation.virtual


def test_peak_does_not_grow_with_depth() -> None:
    shallow, deep = (allocate(scheduled(transformer(n)), NPU).arena("npu").peak for n in (2, 6))
    assert deep - shallow < 0.2 * shallow


def test_a_chain_of_elementwise_ops_needs_one_buffer() -> None:
    d = Draft("chain")
    x = d.input(F, 32, 32)
    for _ in range(6):
        x = d.op(elementwise.neg, x)
    program = scheduled(d.done(x))
    allocation = allocate(program, NPU)
    check(program, NPU, allocation)
    assert (allocation.virtual, allocation.physical) == (7, 1)
    assert allocation.peak == allocation.bound == 32 * 32 * 4


def test_no_in_place_write_while_a_view_is_alive() -> None:
    d = Draft("view")
    x = d.op(elementwise.neg, d.input(F, 8, 8))
    flat = d.op(movement.reshape, x, attrs=((64,),))
    y = d.op(elementwise.exp, x)
    program = scheduled(d.done(y, d.op(elementwise.neg, flat)))
    allocation = allocate(program, NPU)
    check(program, NPU, allocation)
    source = program.root(next(i for i in program.instrs if i.op is movement.reshape).dsts[0])
    result = next(i for i in program.instrs if i.op is elementwise.exp).dsts[0]
    sequence = [i.op for i in program.instrs]
    if sequence.index(elementwise.exp) < len(sequence) - 1:  # the view is read later
        assert allocation.slot(program, source) != allocation.slot(program, result)


def test_no_in_place_write_by_a_matmul() -> None:
    d = Draft("mm")
    x = d.op(elementwise.neg, d.input(F, 16, 16))
    program = scheduled(d.done(d.op(linalg.matmul, x, x)))
    allocation = allocate(program, NPU)
    check(program, NPU, allocation)
    slots = [allocation.slot(program, i.dsts[0]) for i in program.instrs]
    assert len({s.offset for s in slots if s is not None}) == 2


def test_constants_and_host_numbers_have_no_slot() -> None:
    program = scheduled(random_graph(3))
    allocation = allocate(program, NPU)
    slots = {s.vreg for a in allocation.arenas for s in a.slots}
    assert not slots & set(program.constant_names)
    assert all(program.vregs[v].nbytes > 0 and program.vregs[v].alias_of is None for v in slots)


def test_segment_granularity_leaves_inner_values_to_the_plugin() -> None:
    program = scheduled(transformer(3))
    fine, coarse = allocate(program, NPU), allocate(program, NPU, "segment")
    check(program, NPU, coarse)
    assert coarse.arena("npu").virtual < fine.arena("npu").virtual / 4
    assert coarse.steps < fine.steps


def test_the_checker_refuses_a_segment_that_reuses_its_own_input() -> None:
    program = scheduled(mlp())
    allocation = allocate(program, NPU, "segment")
    check(program, NPU, allocation)
    first, last = allocation.arena("npu").slots
    assert first.nbytes == last.nbytes
    with pytest.raises(CheckError, match="being read"):
        check(program, NPU, with_slot(allocation, "npu", 1, replace(last, offset=first.offset)))


# ------------------------------------------------------------------------------------------------ sabotage


@pytest.mark.parametrize("seed", range(25))
def test_overlapping_two_live_buffers_is_caught(seed: int) -> None:
    """Every slot in turn is moved onto another that is live at the same time and not its in-place partner."""
    rng = random.Random(seed)
    program = scheduled(random_graph(seed))
    allocation = allocate(program, NPU)
    caught = 0
    for arena in allocation.arenas:
        for index, slot in enumerate(arena.slots):
            rivals = [
                o for o in arena.slots if o is not slot and max(o.birth, slot.birth) < min(o.death, slot.death) - 1
            ]
            if not rivals:
                continue
            offset = rng.choice(rivals).offset
            if offset + slot.nbytes > arena.peak or offset == slot.offset:
                continue
            with pytest.raises(CheckError):
                check(program, NPU, with_slot(allocation, arena.device, index, replace(slot, offset=offset)))
            caught += 1
    assert caught > 0


@pytest.mark.parametrize("seed", range(8))
def test_a_missing_or_resized_or_misaligned_slot_is_caught(seed: int) -> None:
    program = scheduled(random_graph(seed))
    allocation = allocate(program, NPU)
    for arena in allocation.arenas:
        for index, slot in enumerate(arena.slots):
            for broken in (
                replace(slot, nbytes=slot.nbytes + 4),
                replace(slot, offset=slot.offset + 4),
                replace(slot, offset=arena.peak),
                replace(slot, vreg=arena.slots[index - 1].vreg),
            ):
                if broken != slot:
                    with pytest.raises(CheckError):
                        check(program, NPU, with_slot(allocation, arena.device, index, broken))


def test_an_order_other_than_the_allocated_one_is_caught() -> None:
    """Storage is only good for the order it was made for: running a buffer's next owner early clobbers it."""
    d = Draft("order")
    x = d.input(F, 16, 16)
    a = d.op(elementwise.neg, x)
    s = d.op(movement.concat, a, a, attrs=(0,))
    b = d.op(elementwise.exp, x)
    program = scheduled(d.done(d.op(movement.concat, s, b, attrs=(0,))), TORCH)
    allocation = allocate(program, TORCH)
    check(program, TORCH, allocation)
    orders = 0
    for i in range(len(program.instrs) - 1):
        body = list(program.instrs)
        body[i], body[i + 1] = body[i + 1], body[i]
        try:
            check(replace(program, instrs=tuple(body)), TORCH, allocation)
        except CheckError:
            orders += 1
    assert orders >= 2


def test_memory_limit_is_a_typed_error() -> None:
    small = replace(NPU, devices=(replace(NPU.devices[0], memory_mib=0.001), NPU.devices[1]))
    with pytest.raises(AllocError, match="do not fit"):
        allocate(scheduled(transformer(1)), small)
    with pytest.raises(AllocError, match="not a granularity"):
        allocate(scheduled(mlp()), NPU, "layer")


def test_text_of_a_small_allocation() -> None:
    assert (
        text(allocate(scheduled(mlp()), NPU))
        == """\
alloc @mlp granularity=instr alignment=64 steps=5 peak=8192 bound=8192 virtual=6 physical=3
  arena npu peak=8192 bound=8192 virtual=6 physical=3 strategy=linear_scan
    v0  0x0000..0x0800  [-1,5)  ######.
    v3  0x0800..0x1800  [0,2)   .##....
    v4  0x0800..0x1800  [1,3)   ..##...
    v6  0x1800..0x2000  [2,4)   ...##..
    v7  0x1800..0x2000  [3,5)   ....##.
    v8  0x0000..0x0800  [4,6)   .....##
"""
    )


def test_chart_is_at_most_its_width() -> None:
    lines = text(allocate(scheduled(transformer(4)), NPU)).splitlines()
    rows = [line.split()[-1] for line in lines if "0x" in line]
    assert len(set(map(len, rows))) == 1
    assert len(rows[0]) <= WIDTH
    assert all("#" in row for row in rows)


@pytest.mark.parametrize(("old", "new"), [("alloc @", "aloc @"), ("0x", "0y"), ("arena npu", "arena"), ("..", "-")])
def test_broken_text_is_refused(old: str, new: str) -> None:
    source = text(allocate(scheduled(mlp()), NPU))
    with pytest.raises(ParseError, match="remedy"):
        parse(source.replace(old, new))
