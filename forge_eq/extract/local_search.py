"""Local search: moves on the true DAG cost, from a complete acyclic choice.

Takes a :class:`Problem` and a choice. Gives a choice that costs no more. Promises: acyclic after every move;
the same moves in every run. Not here: a first choice, bounds.

Moves (n is an e-node, C a class):
- one class switches to another of its e-nodes;
- towards C: every used class that can use C does ("all slices of one merged product");
- away from C: every used class that can do without C does ("all consumers of one fused producer").
After a group move, its members and the classes it brought into use may each switch once more, which lets a
member that does not profit stay behind; the whole is kept if the total is lower, else undone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from forge_eq.extract.answer import summarise
from forge_eq.extract.base import Budget, Extraction, Promise
from forge_eq.extract.bottom_up import cheapest_trees
from forge_eq.extract.problem import Problem
from forge_eq.extract.prune import prune

STEPS = 200  # changes of references that count as one move more


class State:
    """A complete choice with reference counts, so that a switch costs only what it changes."""

    def __init__(self, problem: Problem, choice: Sequence[int]) -> None:
        self.kids, self.weights, self.scc, self.cyclic = problem.kids, problem.weights, problem.scc, problem.cyclic
        self.choice = list(choice)
        self.refs = [0] * len(self.choice)
        self.cost = 0
        self.steps = 0  # references changed so far
        self.gained: list[int] = []  # log since begin(): a reference added
        self.lost: list[int] = []  # log since begin(): a reference removed
        self.moved: list[tuple[int, int]] = []  # log since begin(): (class, e-node before)
        self._add(dict.fromkeys(problem.roots))

    def begin(self) -> int:
        """Forgets the log, which :meth:`undo` would take back. Returns the cost now."""
        self.gained, self.lost, self.moved = [], [], []
        return self.cost

    def undo(self, cost: int) -> None:
        """Takes back everything since :meth:`begin`, which returned ``cost``."""
        refs = self.refs
        for c in self.gained:
            refs[c] -= 1
        for c in self.lost:
            refs[c] += 1
        for c, i in reversed(self.moved):
            self.choice[c] = i
        self.cost = cost

    def switch(self, c: int, i: int) -> bool:
        """Chooses e-node ``i`` of class ``c``; False, and nothing done, if that closes a cycle."""
        before = self.choice[c]
        self.choice[c] = i
        if self.cyclic[c] and self._on_cycle(c):
            self.choice[c] = before
            return False
        self.moved.append((c, before))
        if self.refs[c]:
            self.cost += self.weights[c][i] - self.weights[c][before]
            self._add(self.kids[c][i])
            self._remove(self.kids[c][before])
        return True

    def _add(self, classes: Iterable[int]) -> None:
        refs, stack, before = self.refs, list(classes), len(self.gained)
        self.gained.extend(stack)
        while stack:
            c = stack.pop()
            if not refs[c]:
                kids = self.kids[c][self.choice[c]]
                self.cost += self.weights[c][self.choice[c]]
                self.gained.extend(kids)
                stack.extend(kids)
            refs[c] += 1
        self.steps += len(self.gained) - before

    def _remove(self, classes: Iterable[int]) -> None:
        refs, stack, before = self.refs, list(classes), len(self.lost)
        self.lost.extend(stack)
        while stack:
            c = stack.pop()
            refs[c] -= 1
            if not refs[c]:
                kids = self.kids[c][self.choice[c]]
                self.cost -= self.weights[c][self.choice[c]]
                self.lost.extend(kids)
                stack.extend(kids)
        self.steps += len(self.lost) - before

    def _on_cycle(self, start: int) -> bool:
        """Whether the choice leads from a class back to it; unused classes count, so the choice stays acyclic."""
        scc, home, seen = self.scc, self.scc[start], {start}
        stack = [start]
        while stack:
            c = stack.pop()
            for kid in self.kids[c][self.choice[c]]:
                if kid == start:
                    return True
                if scc[kid] == home and kid not in seen:
                    seen.add(kid)
                    stack.append(kid)
        return False


class _Search:
    """The queue of moves worth trying, and the moves."""

    def __init__(self, problem: Problem, choice: Sequence[int], moves: int) -> None:
        self.problem, self.state, self.moves, self.moved = problem, State(problem, choice), moves, 0
        self.state.steps = 0  # the first choice is no move
        self.open = [c for c, nodes in enumerate(problem.kids) if len(nodes) > 1]
        self.open_set = set(self.open)
        # Per class: the open classes for which using it or not is a question; and the inverse.
        self.askers: dict[int, list[int]] = {}
        self.asks: dict[int, list[int]] = {}
        for p in self.open:
            nodes = problem.kids[p]
            common = set(nodes[0]).intersection(*nodes[1:])
            self.asks[p] = [k for k in dict.fromkeys(k for kids in nodes for k in kids) if k not in common]
            for k in self.asks[p]:
                self.askers.setdefault(k, []).append(p)
        self.uses = {
            (p, k): [i for i, kids in enumerate(problem.kids[p]) if k in kids]
            for k, group in self.askers.items()
            for p in group
        }

    def tried(self) -> int:
        """Moves so far; in a deep program, where one changes hundreds of references, each counts for more."""
        return self.moved + self.state.steps // STEPS

    def run(self) -> None:
        queue: deque[tuple[str, int]] = deque()
        queued: set[tuple[str, int]] = set()

        def push(item: tuple[str, int]) -> None:
            if item not in queued:
                queued.add(item)
                queue.append(item)

        for p in self.open:
            push(("switch", p))
        for k in sorted(self.askers):
            push(("towards", k))
            push(("away", k))
        while queue and self.tried() < self.moves:
            item = queue.popleft()
            queued.discard(item)
            kind, c = item
            if not (self._single(c) if kind == "switch" else self._group(c, kind == "towards")):
                continue
            touched = dict.fromkeys([*(p for p, _ in self.state.moved), *self.state.gained, *self.state.lost])
            for x in touched:
                for p in (x, *self.problem.users[x]):
                    if p in self.open_set:
                        push(("switch", p))
                        for k in self.asks[p]:
                            push(("towards", k))
                            push(("away", k))

    def _single(self, p: int) -> bool:
        """The best switch of one class, if it lowers the total."""
        state = self.state
        if not state.refs[p]:
            return False
        start = state.begin()
        best, best_cost = -1, start
        for i in range(len(self.problem.kids[p])):
            if i != state.choice[p]:
                self.moved += 1
                if state.switch(p, i):
                    if state.cost < best_cost:
                        best, best_cost = i, state.cost
                    state.undo(start)
                    state.begin()
        return best >= 0 and state.switch(p, best)

    def _group(self, k: int, towards: bool) -> bool:
        """Every used class that can use ``k`` does (or can avoid it does), then polish; kept if cheaper."""
        state = self.state
        group = [p for p in self.askers[k] if state.refs[p] and (k in self.problem.kids[p][state.choice[p]]) != towards]
        if not group or (not towards and not state.refs[k]):
            return False
        self.moved += len(group)
        start = state.begin()
        switched = [p for p in group if self._switch_cheapest(p, k, towards)]
        if not switched:
            return False
        if state.cost >= start or len(switched) > 1:
            self._polish(dict.fromkeys([*switched, *state.gained]), start)
        if state.cost < start:
            return True
        state.undo(start)
        state.begin()
        return False

    def _switch_cheapest(self, p: int, k: int, towards: bool) -> bool:
        weights, using = self.problem.weights[p], self.uses[p, k]
        nodes = using if towards else [i for i in range(len(weights)) if i not in using]
        return any(self.state.switch(p, i) for i in sorted(nodes, key=lambda i: (weights[i], i)))

    def _polish(self, classes: Iterable[int], start: int) -> None:
        """Lets each of the classes switch once if that lowers the total."""
        state = self.state
        for p in classes:
            if p not in self.open_set or not state.refs[p]:
                continue
            for i in range(len(self.problem.kids[p])):
                before, cost = state.choice[p], state.cost
                if i == before:
                    continue
                self.moved += 1
                if state.switch(p, i) and state.cost >= cost:
                    state.switch(p, before)


def improve(problem: Problem, choice: Sequence[int], moves: int) -> tuple[list[int], int, int]:
    """Improves a complete acyclic choice. Returns the choice, its exact cost, and the moves tried.

    Every class must have a choice (prune first). At most about ``moves`` moves are tried.
    """
    search = _Search(problem, choice, moves)
    search.run()
    return search.state.choice, search.state.cost, search.tried()


class LocalSearch:
    """Local search from the cheapest trees."""

    name = "local-search"
    promise: Promise = "dag-heuristic"

    def solve(self, problem: Problem, budget: Budget) -> Extraction:
        """Raises ExtractError when a root has no finite term."""
        pruned = prune(problem)
        choice, _, tried = improve(pruned.problem, cheapest_trees(pruned.problem)[0], budget.moves)
        small = summarise(
            pruned.problem, choice, self.name, {"nodes": problem.size, "moves": tried}, stopped=tried >= budget.moves
        )
        return Extraction(
            pruned.restore(small.choice), small.cost, small.lower_bound, small.status, self.name, small.work
        )
