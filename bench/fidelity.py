"""How far the compiled program is from PyTorch and from float64, beside plain OpenVINO, on trained models.

Usage: python bench/fidelity.py [--models smollm2,minilm] [--tokens 128] [--windows 8] [--out FOLDER]

Every window of text goes through every candidate in turn. Needs the data folder (FORGE_EQ_SHARED).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from candidates import Candidate, eager, float64, plain_openvino
from forge_eq.paper.programs import text_windows
from forge_eq.report.differences import Errors
from sheet import PAPER, SHARED, Sheet, arguments, finish, one_of, paper, progress, tell, where

RMSE_FACTOR, PLAIN_FACTOR, KL_LIMIT = 2.0, 1.25, 8.4e-9
EAGER, SDPA, PLAIN, OURS, TRUTH = "torch eager", "torch sdpa", "plain OpenVINO f32", "forge_eq", "torch float64"
LANGUAGE, ENCODERS = ("smollm2", "gpt2-tiny", "llama-tiny"), ("minilm", "bert-tiny")  # built-in models


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "fidelity")
    known = (*LANGUAGE, *ENCODERS)
    parser.add_argument("--models", default="smollm2,minilm", type=one_of(known), help=f"of {', '.join(known)}")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--windows", type=int, default=8, help="windows of text (8 of 128 tokens: 1,024 positions)")
    parser.add_argument("--sentences", type=int, default=0, help="sentences of SST-2; 0 takes all")
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"), help="the export that is compiled")
    parser.add_argument("--verify", default="quick", help="what forge_eq checks itself: off, quick, full")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    sheet = Sheet("Fidelity on trained models", where(given.threads, tokens=given.tokens, export=given.attention))
    for name in given.models:
        measure(sheet, name, given)
    return finish(sheet, "fidelity", given.out)


def measure(sheet: Sheet, name: str, given: Any) -> None:
    """One model: builds the candidates, runs them on each batch in turn, and adds tables and criteria."""
    from forge_eq import models
    from forge_eq.program import compile

    language = name in LANGUAGE
    tell(f"{name}: loading")
    exports = {a: models.BUILT_IN[name](tokens=given.tokens, attention=a) for a in ("eager", "sdpa")}
    model = exports[given.attention]
    batches = text_windows(model, given.tokens, given.windows) if language else sentences(model, given)
    tell(f"{name}: plain OpenVINO")
    plain = plain_openvino(model.module, model.args, given.threads)
    tell(f"{name}: forge_eq")
    ours = compile(model.module, model.args, verify=given.verify, threads=given.threads)
    candidates: dict[str, Candidate] = {
        TRUTH: float64(exports["eager"].module),
        EAGER: eager(exports["eager"].module),
        SDPA: eager(exports["sdpa"].module),
        PLAIN: plain,
        OURS: ours,
    }
    errors = {n: Errors() for n in candidates}
    exact = self_check(ours.captured, candidates[TRUTH], batches[0])
    for inputs in progress(batches, name):
        found = {n: run(*inputs) for n, run in candidates.items()}
        for n, got in found.items():
            errors[n].add(got, found[EAGER], found[TRUTH])
            if language:
                errors[n].add_logits(got[0], found[EAGER][0], found[TRUTH][0], inputs[0][0])
    count = len(batches) * given.tokens if language else len(batches)
    texts = ("WikiText", "SST-2") if model.tokenizer else ("random tokens", "random tokens")
    what = f"{count} positions of {texts[0]}" if language else f"embeddings of {count} sentences of {texts[1]}"
    fill(sheet, name, language, errors, what, exact)
    sheet.figures[f"{name} seconds"] = ours.job.seconds
    sheet.figures[f"{name} remarks"] = [f"{r.kind} {r.stage} {r.node}: {r.reason}" for r in ours.remarks]


def fill(sheet: Sheet, name: str, language: bool, errors: dict[str, Errors], what: str, exact: float) -> None:
    head = ["", "RMSE to float64", "largest to float64", "largest to eager"]
    if language:
        head += ["KL to eager", "KL to float64", "largest KL to float64", "perplexity"]
    rows = []
    for n, e in errors.items():
        row: list[Any] = [n, e.rmse, e.to_truth, e.to_eager]
        if language:
            row += [mean(e.kl_eager), mean(e.kl_truth), max(e.kl_truth), f"{e.perplexity:.4f}"]
        rows.append(row)
    note = f"torch float64 and forge_eq's own float64 evaluator differ by {exact:.2g} on the first batch."
    sheet.table(f"{name}, {what}", head, rows, f"{note} KL in nats, mean per position." if language else note)
    _paper_table(sheet, language)
    ours, torch_, plain = errors[OURS], errors[EAGER], errors[PLAIN]
    sheet.demand(f"{name}: RMSE to float64 over eager's", ours.rmse / torch_.rmse, RMSE_FACTOR)
    sheet.demand(f"{name}: largest to eager over plain OpenVINO's", ours.to_eager / plain.to_eager, PLAIN_FACTOR)
    if language:
        sheet.demand(f"{name}: KL to eager", mean(ours.kl_eager), KL_LIMIT)
        sheet.demand(f"{name}: KL to float64", mean(ours.kl_truth), KL_LIMIT)
        sheet.demand(f"{name}: perplexity", round(ours.perplexity, 2), round(torch_.perplexity, 2), equal=True)
    sheet.figures[name] = {
        n: {**{k: v for k, v in vars(e).items()}, "rmse": e.rmse, "perplexity": e.perplexity if language else None}
        for n, e in errors.items()
    }


def _paper_table(sheet: Sheet, language: bool) -> None:
    rows = paper().get("fidelity", {}).get("rows", {})
    title = "paper: perplexity before and after, largest difference of logits, KL"
    if rows and language and all(t.title != title for t in sheet.tables):
        shown = [(m, f"{a:.2f}", f"{b:.2f}", d, k) for m, (a, b, d, k) in rows.items()]
        sheet.table(title, ("model", "before", "after", "largest", "KL"), shown, f"Absolute figures: {PAPER}.")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def self_check(graph: Any, truth: Candidate, inputs: Sequence[torch.Tensor]) -> float:
    """Largest difference of two float64 computations that share no code: whether the truth is one."""
    from forge_eq.run.differential import float64_outputs

    found = float64_outputs(graph, list(inputs))
    return math.nan if found is None else float((torch.as_tensor(found[0]) - truth(*inputs)).abs().max())


# -------------------------------------------------------------------------------------------------- data


def sentences(model: Any, given: Any) -> list[tuple[torch.Tensor, ...]]:
    """(tokens, mask) of each sentence, padded; a model without tokenizer gets random ones."""
    if model.tokenizer is None:
        generator = torch.Generator().manual_seed(1)
        made = []
        for index in range(given.sentences or 8):
            mask = (torch.arange(given.tokens) < 2 + index % (given.tokens - 1)).long()[None]
            made.append((torch.randint(0, 97, (1, given.tokens), generator=generator), mask))
        return made
    lines = (SHARED / "data/text/sst2_sample.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t", 1)[1] for line in lines if "\t" in line]
    made = []
    for text in texts[: given.sentences or None]:
        found = model.tokenizer(
            text, padding="max_length", truncation=True, max_length=given.tokens, return_tensors="pt"
        )
        made.append((found["input_ids"], found["attention_mask"]))
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
