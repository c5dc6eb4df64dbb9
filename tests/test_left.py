"""Weights on the left where a target names them: which layers, the same values, the same int8 scales."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from forge_eq import targets
from forge_eq.capture.export import capture
from forge_eq.errors import OptionsError
from forge_eq.lower import left
from forge_eq.lower.blocks import in_blocks
from forge_eq.lower.npu import Program
from forge_eq.lower.orient import orient
from forge_eq.lower.select import expand, lower
from forge_eq.npu import precision
from forge_eq.npu.segments import npu_segments, segment_model
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.run.executor import Executable
from forge_eq.schedule.plan import schedule
from forge_eq.targets import Blocks, Target

ov = pytest.importorskip("openvino", reason="the kernels are OpenVINO's")


class Feed(nn.Module):
    """A gated layer without biases, one with a bias, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(8, 24, bias=False) for _ in range(2))
        self.down, self.more, self.back = nn.Linear(24, 8, bias=False), nn.Linear(8, 24), nn.Linear(24, 8)
        self.head = nn.Linear(8, 40, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        x = x + self.back(nn.functional.gelu(self.more(x)))
        y: torch.Tensor = self.head(x)
        return y


def made(left: str, rows: int = 2, name: str = "openvino-cpu") -> tuple[Program, Target, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    module, x = Feed().eval(), torch.randn(1, 5, 8)
    target = replace(targets.load(name), blocks=Blocks(1 << 30, rows, 1, outer=True, left=left))
    job = Job(Options(target=name), forms={"capture": capture(module, (x,))})
    return orient(lower(run(job, "extract")["extract"], target), target), target, module, x


def named(program: Program) -> list[str]:
    """The modules of the layers with their weight on the left, or of the last of what they were made from."""
    return sorted(i.origin.module.rpartition(".")[2] for i in program.instrs if i.layout)


@pytest.mark.parametrize(
    ("which", "layers"),
    [("none", 0), ("returned", 1), ("wide", 3), ("all", 6)],
)
def test_the_layers_that_a_target_names(which: str, layers: int) -> None:
    program, target, module, x = made(which, name="intel-npu-4000")
    assert len(named(program)) == layers
    assert program.instrs[-1].layout == ((0, 2, 1) if layers else ())
    program, target, module, x = made(which)
    (found,) = Executable(schedule(program, target).program, target)([x])
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


def test_fewer_rows_and_larger_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not named(made("all", rows=6, name="intel-npu-4000")[0])
    monkeypatch.setattr(left, "MOST", 8 * 24 - 1)
    assert len(named(made("wide", name="intel-npu-4000")[0])) == 1


@pytest.mark.parametrize(("which", "products"), [("none", 11), ("wide", 8)])
def test_what_layers_on_the_left_make_is_not_read_in_parts(which: str, products: int) -> None:
    """The gated layer's is; the one with a bias is cut either way."""
    torch.manual_seed(0)
    x = torch.randn(1, 5, 8)
    job = Job(Options(), forms={"capture": capture(Feed().eval(), (x,))})
    graph = expand(run(job, "extract")["extract"].live())
    found = in_blocks(graph, Blocks(24, 2, 2, outer=True, left=which))
    assert sum(n.op.name.startswith("linear") for n in found.nodes) == products


def test_scales_belong_to_the_same_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "LEAST", 1)
    results, coded = [], []
    for which in ("none", "all"):
        program, target, _, x = made(which, name="intel-npu-4000")
        planned = schedule(program, replace(target, transfer_us=0.0)).program
        (segment,) = npu_segments(planned, target)
        built = segment_model(planned, segment, precision.Int8Builder)
        assert built is not None
        nodes = built.model.get_ordered_ops()
        coded.append(sum(n.get_type_name() == "Constant" and n.get_output_element_type(0) == ov.Type.i8 for n in nodes))
        request = (
            ov.Core().compile_model(built.model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        )
        results.append(torch.from_numpy(next(iter(request.infer([x.numpy()]).values())).copy()))
    assert coded == [6, 6]
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_an_unknown_name_is_refused() -> None:
    file = Path(targets.__file__).with_name("intel-npu-4000.toml")
    text = file.read_text(encoding="utf-8").replace('left = "wide"', 'left = "some"')
    with pytest.raises(OptionsError, match="'some' is not one of none, returned, wide, all"):
        targets.parse(text, "here")
