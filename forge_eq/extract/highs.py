"""The integer program of an extraction problem in HiGHS (the optional package ``highspy``).

Takes a pruned :class:`Problem`. Gives solutions, values and bounds of the program or of its relaxation. Promises: one
thread, a fixed seed, work counted in points where the solver may be stopped and in pivots. Not here: which cuts to add
and when to stop (``extract.ilp``, which also says what the rows mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_eq.extract.loops import Cut
from forge_eq.extract.problem import Problem

Choice = dict[int, int]

SAFETY = 1e-6  # HiGHS computes in floats with tolerances of 1e-9 to 1e-6: its bound is lowered by this share
OBJECTIVE = 1e4  # the incumbent's objective, far above the absolute tolerances
PIVOTS = 50_000  # of one relaxation


@dataclass(frozen=True, slots=True)
class Answer:
    """One solve: a choice that may have cycles, bound and value of the objective, points passed, what went wrong."""

    choice: Choice | None
    dual: float
    claimed: float
    checks: int
    note: str = ""
    stopped: bool = False


class Model:
    """The program in HiGHS. Column ``first[c] + i`` is e-node i of class c."""

    def __init__(self, problem: Problem, cost: int) -> None:
        import highspy
        import numpy as np

        self.highs, self.np, self.problem = highspy, np, problem
        self.unit = OBJECTIVE / cost
        self.first, columns = [], 0
        for nodes in problem.classes:
            self.first.append(columns)
            columns += len(nodes)
        self.edges = _edges(problem, self.first)
        rows: list[tuple[float, float, list[int], list[float]]] = []
        roots = set(problem.roots)
        for c, nodes in enumerate(problem.classes):
            mine = list(range(self.first[c], self.first[c] + len(nodes)))
            rows.append((1.0 if c in roots else 0.0, 1.0, mine, [1.0] * len(mine)))
        for (_, k), users in self.edges.items():
            if k not in roots:
                offers = range(self.first[k], self.first[k] + len(problem.classes[k]))
                rows.append((0.0, highspy.kHighsInf, [*offers, *users], [1.0] * len(offers) + [-1.0] * len(users)))
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = columns, len(rows)
        lp.col_cost_ = np.array([w * self.unit for weights in problem.weights for w in weights], dtype=np.float64)
        lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.ones(columns)
        lp.row_lower_ = np.array([r[0] for r in rows])
        lp.row_upper_ = np.array([r[1] for r in rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(r[2]) for r in rows)], dtype=np.int32)
        lp.a_matrix_.index_ = np.array([j for r in rows for j in r[2]], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([v for r in rows for v in r[3]])
        lp.integrality_ = [highspy.HighsVarType.kInteger] * columns
        self.solver = _quiet(highspy)
        for option, value in SETTINGS.items():
            self.solver.setOptionValue(option, value)
        self.solver.passModel(lp)  # a model that it refuses ends with a status that solve() reports

    def add(self, cuts: Sequence[Cut]) -> None:
        """Adds cuts as rows."""
        np = self.np
        for cut in cuts:
            columns = np.array([self.first[c] + i for c, i in (*cut.entries, *cut.uses)], dtype=np.int32)
            values = np.array([1.0] * len(cut.entries) + [-1.0] * len(cut.uses))
            self.solver.addRow(0.0, self.highs.kHighsInf, len(columns), columns, values)

    def bound(self, dual: float) -> int:
        """A bound of the objective in units of the problem: the least cost is an integer."""
        return math.ceil(dual * (1 - SAFETY) / self.unit)

    def rows(self, choice: Choice) -> list[list[float]]:
        """A choice as values per class and e-node."""
        values = [[0.0] * len(nodes) for nodes in self.problem.classes]
        for c, i in choice.items():
            values[c][i] = 1.0
        return values

    def relax(self) -> tuple[float, list[list[float]]]:
        """The linear relaxation: its value, 0 where HiGHS fails, and its solution, then empty."""
        self._kind(self.highs.HighsVarType.kContinuous)
        self.solver.setOptionValue("simplex_iteration_limit", PIVOTS)
        self.solver.run()
        self.solver.setOptionValue("simplex_iteration_limit", self.highs.kHighsIInf)
        status, value = self.solver.getModelStatus(), float(self.solver.getInfo().objective_function_value)
        found = self.solver.getSolution().col_value
        self._kind(self.highs.HighsVarType.kInteger)
        if status != self.highs.HighsModelStatus.kOptimal:
            return 0.0, []
        return value, [list(found[f : f + len(n)]) for f, n in zip(self.first, self.problem.classes, strict=True)]

    def _kind(self, kind: Any) -> None:
        count = self.solver.getNumCol()
        self.solver.changeColsIntegrality(count, self.np.arange(count, dtype=self.np.int32), self.np.full(count, kind))

    def solve(self, start: Choice, checks: int) -> Answer:
        """Runs HiGHS from a start without cycles, to its end or for ``checks`` points where it may be stopped."""
        answer = self._run(start, checks)
        if answer.choice is None or self._objective(answer.choice) <= answer.claimed * (1 + SAFETY):
            return answer
        # HiGHS 1.16 reports the start as the solution beside a lower objective when presolve alone finds the optimum.
        return self._run(None, checks)

    def _objective(self, choice: Choice) -> float:
        return self.unit * sum(self.problem.weights[c][i] for c, i in choice.items())

    def _run(self, start: Choice | None, checks: int) -> Answer:
        highs, np, solver = self.highs, self.np, self.solver
        passed = 0

        def watch(_kind: Any, _message: str, _out: Any, answer: Any, _data: Any) -> None:
            nonlocal passed
            passed += 1
            answer.user_interrupt = passed >= checks

        solver.clearSolver()
        if start is not None:
            every = np.arange(solver.getNumCol(), dtype=np.int32)
            values = np.zeros(len(every))
            values[[self.first[c] + i for c, i in start.items()]] = 1.0
            solver.setSolution(len(every), every, values)
        solver.setCallback(watch, None)
        solver.startCallback(highs.cb.HighsCallbackType.kCallbackMipInterrupt)
        solver.run()
        solver.stopCallback(highs.cb.HighsCallbackType.kCallbackMipInterrupt)
        status, info = solver.getModelStatus(), solver.getInfo()
        if status not in (highs.HighsModelStatus.kOptimal, highs.HighsModelStatus.kInterrupt):
            return Answer(None, 0.0, 0.0, passed, f"HiGHS ended with {solver.modelStatusToString(status)!r}")
        dual, claimed = float(info.mip_dual_bound), float(info.objective_function_value)
        dual = dual if math.isfinite(dual) else 0.0
        if info.primal_solution_status != highs.SolutionStatus.kSolutionStatusFeasible:
            return Answer(None, dual, claimed, passed, "HiGHS was stopped before it had a solution")
        choice = self._used(np.asarray(solver.getSolution().col_value) > 0.5)
        stopped = status == highs.HighsModelStatus.kInterrupt
        note = "" if choice else "HiGHS left a used class without an e-node"
        return Answer(choice, dual, claimed, passed, note, stopped)

    def _used(self, found: Sequence[bool]) -> Choice | None:
        chosen: Choice = {}
        frontier = list(dict.fromkeys(self.problem.roots))
        while frontier:
            c = frontier.pop()
            if c in chosen:
                continue
            at = self.first[c]
            index = next((i for i in range(len(self.problem.classes[c])) if found[at + i]), None)
            if index is None:
                return None
            chosen[c] = index
            frontier.extend(self.problem.kids[c][chosen[c]])
        return chosen


def _quiet(highspy: Any) -> Any:
    """A solver that prints nothing: its constructor enables callbacks, which prints a banner unless output is off."""

    class Quiet(highspy.Highs):
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return Quiet()


SETTINGS: Mapping[str, Any] = {
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
    "mip_rel_gap": 1e-7,
    "mip_abs_gap": 1e-7 * OBJECTIVE,
    # Local search does what the solver's searches by smaller programs would; those pass no point at which it may be
    # stopped, and took most of the time.
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    "mip_heuristic_run_feasibility_jump": False,
}


def _edges(problem: Problem, first: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """Per (class, child class): the columns of the class's e-nodes that use the child."""
    edges: dict[tuple[int, int], list[int]] = {}
    for c, nodes in enumerate(problem.kids):
        for i, kids in enumerate(nodes):
            for k in kids:
                edges.setdefault((c, k), []).append(first[c] + i)
    return edges
