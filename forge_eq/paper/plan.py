"""What is measured: models, settings, and the single measurements that tables need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forge_eq import families
from forge_eq.errors import InputError
from forge_eq.paper.graphs import parts_of
from forge_eq.peers.measure import GIB

GPT2 = "GPT-2 (125M)"  # the paper's name of the model that five of its tables are about
TRAINED = "smollm2"  # beside the paper's models, whose weights are random here
GLUE = 32  # tokens: a sentence of SST-2 has 22 words (median)
WEIGHTED = ("cell", "fusion", "fidelity", "run")  # kinds that need weights and so cut models to what fits


@dataclass(frozen=True)
class Plan:
    """``tokens`` is the length of a window of WikiText; ``rounds``, ``blocks``, ``seconds`` as of ``bench peers``."""

    models: tuple[str, ...] = families.PAPER
    threads: int = 1
    tokens: int = 128
    rounds: int = 3
    blocks: int = 4
    seconds: float = 0.5
    runs: int = 10  # fresh processes of the table of variation
    calls: int = 40  # of each of them
    trials: int = 50  # of tuning
    windows: int = 4  # of text, for fidelity

    @property
    def gpt2(self) -> str:
        """The chosen GPT-2. Raises InputError when there is none."""
        found = next((m for m in self.models if paper_row(m) == GPT2), None)
        if found is None:
            raise InputError("bench", "GPT-2", "the table is about it, and it is not among --models", "add gpt2-124m")
        return found

    def settings(self) -> dict[str, Any]:
        """What any measurement depends on; which models are asked for does not matter to one of them."""
        return {k: v for k, v in asdict(self).items() if k not in ("models", "runs")}


@dataclass(frozen=True)
class Unit:
    """One measurement: its kind, the model, and what else tells it apart (tokens of a cell, number of a run)."""

    kind: str
    spec: str
    more: str = ""

    @property
    def fitted(self) -> bool:
        """Whether it runs the model, so that layers are left out where memory does not hold them."""
        return self.kind in WEIGHTED and self.spec != TRAINED

    @property
    def key(self) -> str:
        """A name for files."""
        return "-".join(p for p in (self.kind, self.spec.replace(":", "-"), self.more) if p)


def called(spec: str) -> str:
    """The model with its truncation: ``llama-3.1-8b (2 of 32 layers)``."""
    base, colon, layers = spec.partition(":")
    if not colon:
        return spec
    name, tiny, _ = parts_of(base)
    return f"{base} ({layers} of {families.layers_of(name, tiny)} layers)"


def subjects(names: Sequence[str]) -> tuple[str, ...]:
    """The specs, checked. Raises InputError for a model that the paper has no row for."""
    for spec in names:
        base, colon, layers = spec.partition(":")
        if base.removesuffix("-tiny") not in families.PAPER:
            remedy = f"use some of {', '.join(families.PAPER)}, with :LAYERS to truncate"
            raise InputError("bench", spec, "is no model of the paper", remedy)
        if colon and not layers.isdecimal():
            raise InputError("bench", spec, "is not of the form FAMILY:LAYERS", "for example llama-3.1-8b:2")
    return tuple(dict.fromkeys(names))


def paper_row(spec: str) -> str:
    """The model's name in the paper."""
    return families.FAMILIES[parts_of(spec)[0]].paper


def fitting(spec: str, info: Mapping[str, Any], memory: int) -> str:
    """The spec with as many layers as two processes may hold beside the file of weights, at least one.

    A process is reckoned to need twice the weights beside its mapping of them, and 1 GiB (``peers.measure``). A spec
    that says how many layers stays as it is.
    """
    layers = info["layers"]
    if ":" in spec:
        return spec
    room = (0.85 * memory - 2 * GIB) / 5
    count = next((n for n in range(len(layers), 0, -1) if info["rest"] + sum(layers[:n]) <= room), 1)
    return spec if count == len(layers) else f"{spec}:{count}"
