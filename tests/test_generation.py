"""Text from a compiled model with a cache: the same tokens as transformers, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import forge_eq
from forge_eq import models
from forge_eq.cli import app
from forge_eq.errors import InputError, OptionsError
from forge_eq.generation import Generator, Sampling

pytest.importorskip("transformers", reason="the models are those of transformers")

ROWS = 24


def model_of(name: str, attention: str = "sdpa") -> Any:
    return models.BUILT_IN[name](attention=attention).module.model


@pytest.fixture(scope="module")
def llama() -> Generator:
    return Generator(model_of("llama-tiny"), ROWS, run=4)


def theirs(model: Any, ids: list[int], new: int, **how: Any) -> list[int]:
    given = torch.tensor([ids])
    mask = torch.ones_like(given)
    found = model.generate(given, attention_mask=mask, max_new_tokens=new, eos_token_id=None, pad_token_id=0, **how)
    return list(found[0, len(ids) :].tolist())


# One token, less than a run of the prompt, just a run, several runs, and a last run that would leave the cache.
@pytest.mark.parametrize("length", [1, 3, 4, 10, 23])
def test_greedy_tokens_are_those_of_transformers(llama: Generator, length: int) -> None:
    ids = torch.randint(97, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    found = llama(ids, ROWS - length, eos=())
    assert list(found.tokens) == theirs(llama.module.model, ids, ROWS - length, do_sample=False)
    assert found.stop == "length"


def test_a_prompt_is_not_remembered(llama: Generator) -> None:
    first = llama([5, 6, 7, 8, 9], 6, eos=())
    llama([90, 2, 44], 9, eos=())
    assert llama([5, 6, 7, 8, 9], 6, eos=()).tokens == first.tokens


@pytest.mark.parametrize(
    "how", [{"temperature": 0.8}, {"temperature": 1.3, "top_k": 7}, {"temperature": 1.0, "top_p": 0.6}]
)
def test_sampled_tokens_are_those_of_transformers_for_a_seed(llama: Generator, how: dict[str, Any]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        due = theirs(llama.module.model, [3, 1, 4], 12, do_sample=True, **{"top_k": 0, **how})
    assert list(llama([3, 1, 4], 12, seed=11, eos=(), **how).tokens) == due
    assert list(llama([3, 1, 4], 12, seed=12, eos=(), **how).tokens) != due


def test_the_text_ends_with_a_token_that_ends_it(llama: Generator) -> None:
    heard: list[int] = []
    whole = llama([1, 2, 3], 10, eos=(), on_token=heard.append).tokens
    assert heard == list(whole)
    at = max(whole.index(t) for t in whole)  # the last token that is new
    found = llama([1, 2, 3], 10, eos=(whole[at],))
    assert found.tokens == whole[: at + 1]
    assert found.stop == "eos"


@pytest.mark.parametrize(
    ("ids", "new", "word"),
    [([], 3, "0 tokens"), ([1], 0, "0 new"), ([97], 3, "outside"), ([-1], 3, "outside"), ([1] * 20, 5, "do not fit"),
     ([1] * 40, 1, "do not fit")],
)  # fmt: skip
def test_what_cannot_be_continued_is_refused(llama: Generator, ids: list[int], new: int, word: str) -> None:
    with pytest.raises(InputError, match=word):
        llama(ids, new)


@pytest.mark.parametrize("how", [{"temperature": -1.0}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 0.0}])
def test_settings_out_of_range_are_refused(llama: Generator, how: dict[str, Any]) -> None:
    with pytest.raises(OptionsError):
        llama([1], 2, **how)


def test_models_without_such_a_cache_are_refused() -> None:
    with pytest.raises(InputError, match="not a causal language model"):
        Generator(torch.nn.Linear(2, 2), 8)
    with pytest.raises(OptionsError, match="rows"):
        Generator(model_of("llama-tiny"), 1)


def test_sampling_cuts_what_it_says() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5])
    assert torch.allclose(Sampling(1.0).probabilities(logits), logits.softmax(0))
    assert (Sampling(1.0, top_k=2).probabilities(logits) > 0).tolist() == [True, False, False, False, True]
    assert (Sampling(1.0, top_p=0.4).probabilities(logits) > 0).tolist() == [True, False, False, False, False]
    assert (Sampling(1.0, top_p=0.7).probabilities(logits) > 0).tolist() == [True, False, False, False, True]
    sharp, flat = (Sampling(t).probabilities(logits).max() for t in (0.5, 2.0))
    assert sharp > flat


@pytest.mark.slow
def test_the_function_is_the_class(llama: Generator) -> None:
    found = forge_eq.generate(llama.module.model, torch.tensor([[3, 1, 4]]), 5, eos=())
    assert found.tokens == llama([3, 1, 4], 5, eos=()).tokens


@pytest.mark.slow
def test_the_command_continues_a_prompt(llama: Generator) -> None:
    done = CliRunner().invoke(app, ["generate", "llama-tiny", "--prompt", "3 1 4", "--new", "5", "--max-tokens", "16"])
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["3", "1", "4", *map(str, llama([3, 1, 4], 5).tokens)]
    refused = CliRunner().invoke(
        app, ["generate", "llama-tiny", "--prompt", "3 1 4", "--new", "50", "--max-tokens", "16"]
    )
    assert refused.exit_code == 2
    assert "do not fit" in refused.output
    refused = CliRunner().invoke(app, ["generate", "bert-tiny", "--prompt", "3 1 4"])
    assert refused.exit_code == 2
    assert "causal" in refused.output


@pytest.mark.slow
def test_smollm2_writes_64_tokens_as_transformers_does() -> None:
    model = models.smollm2(8)
    ids = model.tokenizer("Once upon a time, there was a little")["input_ids"]
    generator = Generator(model.module.model, 128)
    found = generator(ids, 64, eos=())
    assert list(found.tokens) == theirs(model.module.model, ids, 64, do_sample=False)
