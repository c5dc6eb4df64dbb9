"""The path along alpha: no alpha has a cheaper program than the segment that covers it, and gains only rise."""

from __future__ import annotations

import itertools

import pytest
import torch

from forge_eq.extract.alpha import alpha_path
from forge_eq.extract.cost import FusionGain
from forge_eq.extract.program import choose
from forge_eq.models import BUILT_IN
from forge_eq.options import Options
from forge_eq.pipeline import Job, run


@pytest.fixture(scope="module", params=["gpt2-tiny", "llama-tiny"])
def job(request: pytest.FixtureRequest) -> Job:
    torch.set_num_threads(1)
    model = BUILT_IN[request.param](tokens=8)
    return run(Job(Options(verify="off"), (model.module, model.args, model.kwargs or None, None)), "saturate")


def test_the_path_is_the_lower_envelope(job: Job) -> None:
    graph, view = job["capture"], job["saturate"]
    path = alpha_path(view, graph, job.target)
    assert (path[0].low, path[-1].high) == (0.0, 1.0)
    assert len(path) >= 3
    for a, b in itertools.pairwise(path):
        assert a.high == b.low
        assert a.gain < b.gain
        assert a.cost(a.high) == pytest.approx(b.cost(b.low), rel=1e-8)
    for alpha in (0.0, 0.013, 0.1, 0.31, 0.5, 0.77, 1.0):
        covering = next(s for s in path if s.low <= alpha <= s.high)
        found = choose(view, graph, FusionGain.of(graph, job.target, alpha)).extraction.cost
        assert covering.cost(alpha) == pytest.approx(found, rel=1e-8)
        assert all(s.cost(alpha) >= found * (1 - 1e-8) for s in path)


def test_alpha_zero_fuses_nothing_although_some_penalties_are_zero(job: Job) -> None:
    assert 0.0 in job.target.penalties.values()
    path = alpha_path(job["saturate"], job["capture"], job.target)
    assert path[0].fused == {}
    assert path[0].gain == pytest.approx(0.0, abs=1e-9 * path[0].base)
    assert sum(path[-1].fused.values()) > 0
