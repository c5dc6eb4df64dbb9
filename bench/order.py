"""Predicted against measured order: programs of a model that differ in fusion, merging, orientation, timed in turn.

Usage: python bench/order.py --out FOLDER [--models gpt2,qwen2,smollm2,llama] [--tokens 1,16,128] [--seconds 240]

A chunk is one model at one number of tokens. Finished chunks are kept in FOLDER/order-chunks.json and not measured
again, so that a long run can be made in pieces: --seconds starts no chunk after that time. On one thread the
processor's time is measured, which equals latency on a quiet core and suffers least on a busy one. The file is what
bench/reweigh.py reads: with each variant it keeps the parts of its prediction under the target as it is here
("classes") and as its file says, whatever was measured here ("shipped").
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from scatter import scatter
from sheet import Sheet, arguments, finish, keep, one_of, pieces, progress, where

LAYERS = {"gpt2": 2, "qwen2": 2, "smollm2": 4, "llama": 1, "bert": 2, "granite": 2}  # of the published widths
FAMILY = {"gpt2": "gpt2-124m", "qwen2": "qwen2-0.5b", "llama": "llama-3.2-1b", "bert": "bert-base",
          "granite": "granite-350m"}  # fmt: skip
VOCABULARY = 256
WANTED = 0.85
LEAST = 8  # variants of a model
TWINS = ("captured", "merged", "left, layers only")  # measured twice, in two builds; the largest difference counts
TIMES = 2.0  # pairs closer than this many A/A spreads do not count
NEVER, ALWAYS = 4.0, 0.25  # factors on a price that keep an op out of a variant, or force it in


def model(name: str, tokens: int) -> Any:
    """A model of the family's widths with few layers, a small vocabulary and random weights."""
    from forge_eq import families, models

    if name in FAMILY:
        return families.build(FAMILY[name], tokens, layers=LAYERS[name], vocabulary=VOCABULARY)
    t = models.require("transformers")
    config = t.LlamaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=LAYERS[name], hidden_size=576, intermediate_size=1536,
        num_attention_heads=9, num_key_value_heads=3,
    )  # fmt: skip
    return models._random(name, t.LlamaForCausalLM, config, tokens, "sdpa")


# ------------------------------------------------------------------------------------------------ variants


def priced(base: Any, job: Any, factors: Callable[[Any, Sequence[Any]], float]) -> Any:
    """A Fusion-Gain cost with factors on some e-nodes: how a variant is made, never how it is judged."""
    from forge_eq.extract.cost import FusionGain

    class Steered(FusionGain):
        def node(self, node: Any, classes: Any, out: Any) -> float:
            return super().node(node, classes, out) * factors(node, [classes[c].type for c in node.children])

    return Steered(base, 1.0, frozenset(n.op for n in job["capture"].nodes))


def programs(job: Any) -> dict[str, Any]:
    """Selected programs by name, all equal in value; the same ones whatever was measured on this machine."""
    from forge_eq.extract.fold import fold
    from forge_eq.extract.program import choose
    from forge_eq.lower.orient import is_layer, orient, orient_all
    from forge_eq.lower.select import lower
    from forge_eq.targets import shipped

    target = shipped(job.target.name)
    right = tuple(p for p in target.kernels.points if not p.form.startswith("left"))
    rows = replace(target, kernels=replace(target.kernels, points=right))

    def fused(node: Any) -> bool:
        return node.op.cost.form == "act"

    def merged(node: Any) -> bool:
        return bool(node.rule) and node.rule.startswith("fusion/merge")

    steer: dict[str, Callable[[Any, Sequence[Any]], float]] = {
        "best": lambda node, types: 1.0,
        "activation apart": lambda node, types: NEVER if fused(node) else 1.0,
        "activation fused": lambda node, types: ALWAYS if fused(node) else 1.0,
        "merged": lambda node, types: ALWAYS if merged(node) else NEVER if fused(node) else 1.0,
    }
    graphs = {"captured": job["capture"]}
    for name, factors in steer.items():
        graphs[name] = choose(job["saturate"], job["capture"], priced(rows, job, factors), job.options.limits).graph
    found = {n: lower(fold(g, job.options.limits), target) for n, g in graphs.items()}

    def only(program: Any, keep: Callable[[int, int], bool]) -> Any:
        """Weight on the left in the layers whose (k, n) qualify, rows elsewhere."""
        wide = orient_all(program, target)

        def kept(i: Any) -> bool:
            return is_layer(i) and keep(*program.vregs[i.srcs[1]].type.shape)

        return replace(
            program, instrs=tuple(w if kept(i) else i for w, i in zip(wide.instrs, program.instrs, strict=True))
        )

    apart = found["activation apart"]
    sizes = [p.type.shape for i in apart.instrs if is_layer(i) for p in [apart.vregs[i.srcs[1]]]]
    large = max(math.prod(s) for s in sizes)
    found["cut"] = orient(apart, target)
    found["left everywhere"] = orient_all(apart, target)
    found["left, layers only"] = only(apart, lambda a, b: True)
    found["left, large layers"] = only(apart, lambda a, b: a * b == large)
    found["left, small layers"] = only(apart, lambda a, b: a * b < large)
    found["merged, left"] = only(found["merged"], lambda a, b: True)
    found["fused, left small"] = only(found["activation fused"], lambda a, b: a * b < large)
    return found


def saturated(name: str, tokens: int) -> tuple[Any, Any]:
    """The model and its e-graph."""
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run

    made = model(name, tokens)
    return made, run(Job(Options(), (made.module, made.args, None, None)), "saturate")


def planned(job: Any) -> dict[str, Any]:
    """The schedules of the variants that differ, by name."""
    from forge_eq.lower.text import text
    from forge_eq.schedule.plan import schedule

    plans, seen = {}, set()
    for variant, program in programs(job).items():
        plan = schedule(program, job.target)
        if (shown := text(plan.program)) not in seen:
            seen.add(shown)
            plans[variant] = plan
    return plans


def predictions(job: Any, plan: Any) -> dict[str, Any]:
    """Predicted microseconds of a scheduled program, and their parts on the target as it is and as it was shipped."""
    from forge_eq.schedule.plan import parts
    from forge_eq.targets import shipped
    from forge_eq.tune.measured import gain

    targets = {"classes": job.target, "shipped": shipped(job.target.name)}
    return {
        "predicted": plan.predicted_us,
        **{base: parts(plan.program, target) for base, target in targets.items()},
        "gains": {base: gain(plan.program, job["capture"], target) for base, target in targets.items()},
    }


def predict_again(chunks: dict[str, Any]) -> None:
    """The predictions of kept chunks under the target as it is now; the measured times stay."""
    for key in progress(list(chunks), "predict"):
        name, _, tokens = key.partition(", ")
        job = saturated(name, int(tokens))[1]
        for variant, plan in planned(job).items():
            if variant in chunks[key]["variants"]:
                chunks[key]["variants"][variant] |= predictions(job, plan)
        chunks[key]["measured figures"] = list(job.target.measured)


def chunk(name: str, tokens: int, threads: int, rounds: int) -> dict[str, Any]:
    """One model at one number of tokens: predictions, and times of all variants in turn."""
    import torch

    from forge_eq.run.executor import Executable
    from forge_eq.tune.measure import clock_of, interleaved

    made, job = saturated(name, tokens)
    target, plans = job.target, planned(job)
    twins = [n for n in TWINS if n in plans]  # built again: what differs between two builds of one program is noise
    names = [*plans, *twins]
    built = [Executable(plans[n].program, target, (), threads) for n in names]
    inputs, wanted = list(made.args), made.module(*made.args)
    for variant, executable in zip(names, built, strict=True):
        torch.testing.assert_close(
            executable(inputs)[0], wanted, rtol=1e-3, atol=1e-4, msg=f"{name} {tokens} {variant}"
        )
    samples = interleaved([lambda e=e: e(inputs) for e in built], rounds, clock_of(threads))
    times = [1e6 * median(s) for s in samples]
    spreads = []
    for twin, again in zip(twins, samples[len(plans) :], strict=True):
        ratios = [b / a for a, b in zip(samples[names.index(twin)], again, strict=True)]
        spreads.append(abs(math.log(median(ratios))))
    return {
        "variants": {n: {**predictions(job, plans[n]), "measured": us} for n, us in zip(plans, times, strict=False)},
        "spread": max(spreads),
        "spreads": dict(zip(twins, spreads, strict=True)),
        "measured figures": list(target.measured),
        "rounds": rounds,
        "layers": LAYERS[name],
    }


# ------------------------------------------------------------------------------------------------- judging


def pairs(found: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(variant, variant, whether prediction and measurement agree) for the pairs that noise cannot order."""
    variants = found["variants"]
    for a, b in itertools.combinations(variants, 2):
        apart = math.log(variants[a]["measured"] / variants[b]["measured"])
        if abs(apart) > TIMES * found["spread"]:
            told = math.log(variants[a]["predicted"] / variants[b]["predicted"])
            yield a, b, told * apart > 0 and abs(told) > 1e-9


def fill(sheet: Sheet, chunks: Mapping[str, Any]) -> None:
    """Tables and criteria."""
    rows, good, count, least = [], 0, 0, math.inf
    for key, found in sorted(chunks.items()):
        judged = [agrees for _, _, agrees in pairs(found)]
        good, count, least = good + sum(judged), count + len(judged), min(least, len(found["variants"]))
        best = min(found["variants"], key=lambda n: found["variants"][n]["predicted"])
        fastest = min(v["measured"] for v in found["variants"].values())
        rows.append((
            key, len(found["variants"]), f"{100 * found['spread']:.1f} %", len(judged),
            sum(judged) / len(judged) if judged else math.nan, best, found["variants"][best]["measured"] / fastest,
        ))  # fmt: skip
    head = ("model, tokens", "variants", "A/A", "pairs", "concordance", "predicted best", "its time over the fastest")
    sheet.table(
        "order", head, rows, "pairs count that differ by more than twice the A/A spread; few layers, see --help"
    )
    body = [
        (key, n, v["predicted"], v["measured"], v["predicted"] / v["measured"])
        for key, found in sorted(chunks.items())
        for n, v in found["variants"].items()
    ]
    sheet.table("variants", ("model, tokens", "variant", "predicted us", "measured us", "ratio"), body)
    share = good / count if count else math.nan
    sheet.demand("share of pairs in the wrong order", 1 - share, 1 - WANTED)
    sheet.demand("fewest variants below 8", max(0, LEAST - least), 0)
    sheet.figures["concordance"] = share
    sheet.figures["chunks"] = dict(chunks)


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "order")
    parser.add_argument("--models", default=",".join(LAYERS), type=one_of(LAYERS), help=f"of {', '.join(LAYERS)}")
    parser.add_argument("--tokens", default="1,16,128", type=lambda text: [int(t) for t in text.split(",")])
    parser.add_argument("--rounds", type=int, default=15, help="times that every variant runs")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no chunk after this time")
    parser.add_argument("--again", action="store_true", help="predict kept chunks again, after a calibration")
    given = parser.parse_args(argv)

    import torch

    torch.set_num_threads(given.threads)
    file = given.out / "order-chunks.json" if given.out is not None else None
    wanted = {f"{m}, {t}": (m, t) for m in given.models for t in given.tokens}
    chunks = pieces(
        file, list(wanted), lambda key: chunk(*wanted[key], given.threads, given.rounds), "order", given.seconds
    )
    if given.again:
        predict_again(chunks)
        keep(file, chunks)
    chosen = {key: chunks[key] for key in wanted if key in chunks}
    sheet = Sheet("Predicted and measured order", where(given.threads, layers=LAYERS))
    fill(sheet, chosen)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "order.html").write_text(scatter(chosen), encoding="utf-8")
    return finish(sheet, "order", given.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
