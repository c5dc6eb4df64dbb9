"""``generate``: text from a compiled language model, with a cache of keys and values.

Takes a causal model of transformers. Gives a :class:`Generator`: two compiled programs, one for a run of the prompt's
tokens and one for a single token, over one cache. Promises: greedy choice gives the tokens that the model's own
``generate`` gives; a seed fixes what is sampled; the cache has a fixed number of rows and is never outgrown.
Not here: the step (``cached``), tokenizers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forge_eq.api import Progress, make_options
from forge_eq.cached import CachedLogits
from forge_eq.errors import InputError, OptionsError
from forge_eq.options import Options
from forge_eq.program import CompiledProgram, compile

RUN = 32  # tokens of the prompt that one call takes


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its logits.

    ``temperature`` 0 takes the most likely token. Otherwise logits are divided by it; then only the ``top_k`` most
    likely tokens stay (0: all), and of these the fewest whose probabilities reach ``top_p``; one is drawn with
    ``seed``.

    Raises:
        OptionsError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise OptionsError("options", "temperature", f"{self.temperature} is out of range", "use 0 or more")
        if self.top_k < 0:
            raise OptionsError("options", "top_k", f"{self.top_k} is out of range", "use 0 for all tokens, or more")
        if not 0 < self.top_p <= 1:
            raise OptionsError("options", "top_p", f"{self.top_p} is out of range", "use more than 0, at most 1")

    def chooser(self) -> Callable[[torch.Tensor], int]:
        """A function of logits ``float[vocabulary]``; draws of one chooser continue each other."""
        if self.temperature == 0:
            return lambda logits: int(logits.argmax())
        generator = torch.Generator().manual_seed(self.seed)
        return lambda logits: int(torch.multinomial(self.probabilities(logits), 1, generator=generator))

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """What tokens are drawn with; 0 for those that are cut. Nucleus sampling: Holtzman et al. 2020."""
        scores = logits.float() / self.temperature
        if 0 < self.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(self.top_k).values[-1], -math.inf)
        if self.top_p < 1:
            # From the least likely up: what together has at most 1 - top_p goes, never the most likely one.
            ordered, places = scores.sort(stable=True)
            cut = ordered.softmax(0).cumsum(0) <= 1 - self.top_p
            cut[-1] = False
            scores = scores.index_fill(0, places[cut], -math.inf)
        return scores.softmax(0)


@dataclass(frozen=True)
class Generated:
    """``tokens`` are the new ones; ``stop`` is "eos" (then it is the last token) or "length". Seconds of wall time."""

    tokens: tuple[int, ...]
    stop: str
    prefill_seconds: float
    decode_seconds: float


class Generator:
    """A compiled language model with a cache.

    Args:
        model: a causal language model of transformers whose layers have attention, in float32.
        max_tokens: rows of the cache: prompt and new tokens together may not be more.
        run: tokens of the prompt that one call takes.
        options: as :func:`forge_eq.compile`; ``changes`` name single ones.
        on_stage: hears the name of each stage of the two compilations.

    Raises:
        InputError: a model without such a cache.
        ForgeError: whatever :func:`forge_eq.compile` raises.

    Example:
        >>> generator = forge_eq.Generator(model, max_tokens=256)
        >>> generator(tokenizer("Once upon a time")["input_ids"], 40).tokens
    """

    def __init__(
        self,
        model: Any,
        max_tokens: int,
        *,
        run: int = RUN,
        options: Options | None = None,
        on_stage: Progress | None = None,
        **changes: Any,
    ) -> None:
        if max_tokens < 2 or run < 1:
            raise OptionsError("options", "max_tokens", f"{max_tokens} rows, {run} a call", "use 2 rows and 1 or more")
        self.max_tokens, self.run = max_tokens, min(run, max_tokens)
        self.module = CachedLogits(model.eval(), max_tokens).eval()
        self.ends = _ends(model)
        chosen = make_options(options, changes)
        self.prefill = compile(self.module, self.module.example(self.run), options=chosen, on_stage=on_stage)
        self.step = self.prefill if self.run == 1 else self._single(chosen, on_stage)

    def _single(self, options: Options, on_stage: Progress | None) -> CompiledProgram:
        return compile(self.module, self.module.example(1), options=options, on_stage=on_stage)

    def __call__(
        self,
        prompt: Sequence[int] | torch.Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        eos: Collection[int] | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> Generated:
        """Continues ``prompt`` (token ids, at least one).

        Args:
            max_new_tokens: where to stop at the latest.
            temperature, top_k, top_p, seed: see :class:`Sampling`; greedy unless temperature is above 0.
            eos: tokens that end the text; None takes the model's own, () none.
            on_token: hears each new token.

        Raises:
            InputError: an empty prompt, a token that the model does not have, or more tokens than the cache has rows.
            OptionsError: a setting out of range.
        """
        choose = Sampling(temperature, top_k, top_p, seed).chooser()
        ids = self._checked(prompt, max_new_tokens)
        ends = self.ends if eos is None else frozenset(eos)
        cache, start = self.module.empty(), time.perf_counter()
        logits = self._read(ids, cache)
        middle = time.perf_counter()
        found: list[int] = []
        while len(found) < max_new_tokens:
            if found:
                past, row = torch.tensor(len(ids) + len(found) - 1), torch.tensor([0])
                logits = self.step(torch.tensor([[found[-1]]]), past, row, *cache)[0, 0]
            found.append(choose(logits))
            if on_token is not None:
                on_token(found[-1])
            if found[-1] in ends:
                break
        stop = "eos" if found[-1] in ends else "length"
        return Generated(tuple(found), stop, middle - start, time.perf_counter() - middle)

    def _read(self, ids: Sequence[int], cache: Sequence[torch.Tensor]) -> torch.Tensor:
        """Writes the prompt's rows and gives the logits after it.

        A run that would leave the cache begins earlier and computes some rows again; one that is short is filled up
        with tokens whose rows lie behind all that is in use, and are replaced before they are ever looked at.
        """
        for first in range(0, len(ids), self.run):
            start = min(first, self.max_tokens - self.run)
            part = list(ids[start : start + self.run])
            tokens = torch.tensor([part + [0] * (self.run - len(part))])
            logits = self.prefill(tokens, torch.tensor(start), torch.tensor([len(part) - 1]), *cache)
        last: torch.Tensor = logits[0, 0]
        return last

    def _checked(self, prompt: Sequence[int] | torch.Tensor, new: int) -> list[int]:
        ids = [int(t) for t in (prompt.flatten().tolist() if isinstance(prompt, torch.Tensor) else prompt)]
        known = self.module.model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        if not ids or new < 1:
            raise InputError("generate", "prompt", f"{len(ids)} tokens and {new} new ones", "pass one or more of each")
        if any(not 0 <= t < known for t in ids):
            raise InputError("generate", "prompt", f"has a token outside 0 to {known - 1}", "use the model's tokenizer")
        if len(ids) + new > self.max_tokens:
            raise InputError(
                "generate",
                "prompt",
                f"{len(ids)} tokens and {new} new ones do not fit into a cache of {self.max_tokens} rows",
                "pass a shorter prompt, fewer new tokens, or a larger max_tokens",
            )
        return ids


def _ends(model: Any) -> frozenset[int]:
    """The tokens that end a text, as the model says."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset() if found is None else frozenset([found] if isinstance(found, int) else found)


def generate(
    model: Any,
    prompt: Sequence[int] | torch.Tensor,
    max_new_tokens: int,
    *,
    max_tokens: int | None = None,
    options: Options | None = None,
    on_stage: Progress | None = None,
    **how: Any,
) -> Generated:
    """Compiles ``model`` and continues ``prompt``. To continue more than one prompt, keep a :class:`Generator`.

    Args:
        max_tokens: rows of the cache; by default just enough.
        how: as :meth:`Generator.__call__`.

    Raises: as :class:`Generator`.

    Example:
        >>> forge_eq.generate(model, tokens, 40, temperature=0.8, seed=1).tokens
    """
    ids = prompt.flatten().tolist() if isinstance(prompt, torch.Tensor) else list(prompt)
    rows = max(len(ids) + max_new_tokens, 2) if max_tokens is None else max_tokens
    return Generator(model, rows, options=options, on_stage=on_stage)(ids, max_new_tokens, **how)


def token_numbers(text: str) -> list[int]:
    """Tokens written as numbers. Raises InputError for anything else."""
    try:
        return [int(p) for p in text.split()]
    except ValueError:
        raise InputError("generate", "prompt", f"{text!r} is not a list of tokens", "write numbers: 3 1 4") from None
