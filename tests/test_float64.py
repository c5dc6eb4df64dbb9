"""The float64 reference: the module in float64, without a float64 copy of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

from forge_eq.capture.export import capture
from forge_eq.run import values
from forge_eq.run.values import evaluate, in_float64
from forge_eq.verify import criterion
from forge_eq.verify.criterion import Parts
from run_programs import scheduled

torch.set_num_threads(1)


class Tied(nn.Module):
    """A table that is also the head, layers stored both ways, with bias and without."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(97, 24)
        self.turned = Conv1D(40, 24)
        self.gate = nn.Linear(40, 56, bias=False)
        self.down = nn.Linear(56, 24)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        x = x + self.down(torch.relu(self.gate(self.turned(x))))
        return nn.functional.linear(x, self.table.weight)


class Bare(nn.Module):
    """A weight among the results, and one that is no layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 12))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.weight.exp(), self.weight


def whole(value: Any) -> torch.Tensor:
    return value.whole() if isinstance(value, Parts) else value


class Widenings(TorchDispatchMode):
    """Bytes of each float64 tensor that is made of an f32 one."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and made.dtype is torch.float64:
            self.bytes.append(made.nbytes)
        return made


@pytest.mark.parametrize("most", [1, 1000, 1 << 23])
@pytest.mark.parametrize("tokens", [1, 5])
def test_the_reference_is_the_module_in_float64(most: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.randint(0, 97, (2, tokens))
    graph = capture(module, (ids,))
    monkeypatch.setattr(values, "WIDE_BYTES", most)
    found = whole(*(in_float64(graph)([ids]) or ()))
    wanted = module.double()(ids)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)


def test_constants_that_are_results_or_no_layers() -> None:
    module, x = Bare().eval(), torch.randn(12, 12)
    product, weight = in_float64(capture(module, (x,)))([x]) or ()
    assert weight.dtype is torch.float64
    assert torch.equal(weight, module.weight.double())
    assert torch.equal(product, x.double() * module.weight.double().exp())


def test_no_float64_copy_of_a_large_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 4096
    monkeypatch.setattr(values, "WIDE_BYTES", most)
    ids = torch.randint(0, 97, (1, 3))
    module = Tied().eval()
    run = in_float64(capture(module, (ids,)))
    with torch.no_grad(), Widenings() as seen:
        whole(*(run([ids]) or ()))
    assert max(seen.bytes) <= most < 8 * module.gate.weight.numel()
    # Every element of the layers is widened once, and of the table, as a table, the rows that are looked up.
    layers = [module.turned.weight, module.gate.weight, module.down.weight, module.table.weight]
    biases = [module.turned.bias, module.down.bias]
    assert sum(seen.bytes) == 8 * (sum(t.numel() for t in (*layers, *biases)) + 3 * 24)


def test_logits_are_judged_in_parts_as_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same verdict and the same figures, for a sound result, one wrong column and one wrong row."""
    most = 4096
    monkeypatch.setattr(values, "WIDE_BYTES", most)
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.randint(0, 97, (4, 300))
    (parts,) = in_float64(capture(module, (ids,)))([ids]) or ()
    assert isinstance(parts, Parts)
    with torch.no_grad():
        right = module(ids)
    column, row = right.clone(), right.clone()
    column[..., 96] += 1e-2
    row[3, 299] += 1e-2
    for found in (right + 1e-7, column, row):
        in_parts, in_whole = (criterion._against(found, right, exact, 1.0) for exact in (parts, parts.whole()))
        assert in_parts == in_whole
        assert bool(in_parts) == (found is column or found is row)


def test_registers_in_float64_keep_no_wide_constant() -> None:
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.randint(0, 97, (1, 4))
    program = scheduled(capture(module, (ids,)))
    found = evaluate(program, [ids], wide=True)
    assert all(found[r].dtype is torch.float32 for r in program.constant_names)
    torch.testing.assert_close(found[program.outputs[0]], module.double()(ids), rtol=1e-13, atol=1e-13)
