"""The main job: a trained language model through the whole compiler, beside PyTorch.

Takes a prompt. Gives the texts and figures of a :class:`Result`, told as they come. Promises: no network; what is
compared is PyTorch's own module, called on the text without padding; a difference is told, not hidden.
Not here: caches of keys and values; each token runs the whole sequence again.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from forge_eq.errors import InputError
from forge_eq.models import Model, smollm2
from forge_eq.report import allocation_table, plural, stage_table, summary, table

Say = Callable[[str], None]
TOP = 5


@dataclass(frozen=True)
class Fidelity:
    """Largest absolute differences of logits over the positions of the text. Figures to float64 may be absent."""

    to_torch: float
    ours_to_float64: float | None = None
    torch_to_float64: float | None = None


@dataclass(frozen=True)
class Result:
    """What the demo found."""

    tokens: tuple[int, ...]
    torch_tokens: tuple[int, ...]
    text: str
    fidelity: Fidelity
    seconds: dict[str, float]

    @property
    def same(self) -> bool:
        return self.tokens == self.torch_tokens


def run(
    say: Say,
    prompt: str = "The capital of France is",
    new: int = 12,
    tokens: int = 64,
    exact: bool = True,
    on_stage: Callable[[str], None] = lambda name: None,
    load: Callable[[int], Model] = smollm2,
) -> Result:
    """Loads the model, compiles it for ``tokens`` tokens, continues the prompt by ``new``, and compares.

    Args:
        say: hears lines of text.
        exact: also evaluate the captured program in float64 NumPy (some seconds).
        on_stage: hears what goes on.
        load: gives the model for a number of tokens.

    Raises:
        InputError: a package is missing, or the prompt does not fit.
    """
    from forge_eq.program import compile

    clock = _Clock(on_stage)
    clock("load")
    model = load(tokens)
    ids = list(model.tokenizer(prompt)["input_ids"]) if model.tokenizer else [int(p) for p in prompt.split()]
    if not ids or len(ids) + new > tokens:
        raise InputError(
            "demo",
            "prompt",
            f"{plural(len(ids), 'token')} and {new} new ones do not fit into {tokens}",
            "pass a prompt, fewer new tokens (--new) or a longer program (--tokens)",
        )
    millions = sum(p.numel() for p in model.module.parameters()) / 1e6
    say(f"{model.name}: {millions:.4g} million parameters in float32, {tokens} tokens\n")
    clock("")
    program = compile(model.module, model.args, on_stage=on_stage)
    clock("PyTorch")
    theirs = _continue(lambda text: model.module(torch.tensor([text])), ids, new)
    clock("forge_eq")
    ours = _continue(lambda text: program(_padded(text, tokens)), ids, new)
    clock("compare")
    fidelity = _fidelity(program, model.module, ours, tokens, exact)
    clock("")
    text = model.tokenizer.decode(ours) if model.tokenizer else " ".join(map(str, ours))
    result = Result(tuple(ours), tuple(theirs), text, fidelity, clock.seconds)
    _tell(say, program, result, model, len(ids), new)
    return result


class _Clock:
    """Seconds per step; the step that ends is entered when the next begins."""

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self.on_stage, self.seconds = on_stage, dict[str, float]()
        self.name, self.start = "", time.perf_counter()

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[self.name or "compile"] = now - self.start
        self.name, self.start = name, now
        if name:
            self.on_stage(name)


def _padded(text: list[int], tokens: int) -> torch.Tensor:
    """The text with zeros after it: a causal model's logits at a position do not depend on later ones."""
    return torch.tensor([text + [0] * (tokens - len(text))])


@torch.no_grad()
def _continue(logits: Callable[[list[int]], torch.Tensor], text: list[int], new: int) -> list[int]:
    """The text with ``new`` tokens added, each the most likely one."""
    text = list(text)
    for _ in range(new):
        text.append(int(logits(text)[0, len(text) - 1].argmax()))
    return text


@torch.no_grad()
def _fidelity(program: Any, module: torch.nn.Module, text: list[int], tokens: int, exact: bool) -> Fidelity:
    from forge_eq.run.differential import float64_outputs

    padded, used = _padded(text, tokens), len(text)
    ours, theirs = program(padded)[0, :used].double(), module(padded)[0, :used].double()
    if not exact:
        return Fidelity(_largest(ours, theirs))
    outputs = float64_outputs(program.captured, [padded])
    if outputs is None:  # a call outside the vocabulary that knows float32 only
        return Fidelity(_largest(ours, theirs))
    truth = torch.as_tensor(outputs[0])[0, :used]
    return Fidelity(_largest(ours, theirs), _largest(ours, truth), _largest(theirs, truth))


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


# ------------------------------------------------------------------------------------------------ telling


def _tell(say: Say, program: Any, result: Result, model: Model, given: int, new: int) -> None:
    job, f = program.job, result.fidelity
    say(summary(job, 100))
    say(stage_table(job))
    say(allocation_table(job))
    verdict = "the same" if result.same else "NOT the same"
    say(f'   "{result.text}"')
    say(f"   {plural(new, 'new token')}, each the most likely one: {verdict} as PyTorch's\n")
    rows = [("forge_eq to PyTorch float32", f"{f.to_torch:.3g}")]
    if f.ours_to_float64 is not None and f.torch_to_float64 is not None:
        rows += [
            ("forge_eq to float64", f"{f.ours_to_float64:.3g}"),
            ("PyTorch float32 to float64", f"{f.torch_to_float64:.3g}"),
        ]
    say("\n".join(table((f"largest difference of logits, {given + new} positions", ""), rows)) + "\n")
    say("\n".join(table(("where the time went", ""), _times(result, new))))
    say(f"   peak memory {_peak_mib():.0f} MiB\n")
    say(_NEXT)


def _times(result: Result, new: int) -> list[tuple[str, str]]:
    rows = []
    for name, seconds in result.seconds.items():
        each = f"{name}, {seconds / new * 1e3:.0f} ms a token" if name in ("PyTorch", "forge_eq") else name
        rows.append((each, f"{seconds:.1f} s"))
    return rows


def _peak_mib() -> float:
    """The largest resident set of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


_NEXT = """\
 next
   forge-eq explain smollm2 --tokens 64       before and after, layer by layer
   forge-eq compile smollm2 --out smol.forge  keep the compiled program; forge_eq.load reads it
   forge-eq optimize FILE.py:ATTR             a model of yours
   forge-eq rules show attention/grouped      a rule, its ground and its evidence
   forge-eq demo --prompt "..." --new 20      another text
"""
