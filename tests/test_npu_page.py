"""docs/npu.md is what its kept answers say."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import npu
import npu_calibrate
import npu_page
from performance import BLOCK, DATA, NOT_YET, filled


def test_the_page_is_what_was_kept() -> None:
    page, found = npu_page.PAGE.read_text(encoding="utf-8"), npu_page.blocks(npu_page.read(DATA))
    assert filled(page, found) == page, "run `python bench/npu_page.py`"
    assert sorted(m[1] for m in BLOCK.finditer(page)) == sorted(found)


def answer(us: float, **more: object) -> dict[str, object]:
    times = {k: us for k in ("total", "dma", "dpu", "shave")}
    return {**times, "blob": 2e6, "unknown": 1, "unpriced": ["linear"], "spent": {"head": us}, **more}


def test_a_loss_a_refusal_and_what_is_missing_are_said() -> None:
    lost, refused, whole = npu.LAYERS[0], npu.LAYERS[1], npu.WHOLE[0]
    same = {name: answer(us) for name, us in (("plain", 10.0), ("plain host", 8.0), ("ours", 9.9), ("ours host", 7.0))}
    no = {"refused": "it crashes: somewhere"}
    kept = [
        {"case": lost.name, "found": {**same, "ours host": answer(7.0, form="left")}},
        {"case": refused.name, "found": {**same, "plain": no, "plain host": no}},
        {"case": whole.name, "found": same},
    ]
    made = npu_page.blocks({"cases": kept})
    assert f"{lost.name}: ours / plain: 0.990, not at most 0.98" in made["short"]
    assert f"{refused.name}: plain is refused, so that there is nothing to compare: it crashes" in made["short"]
    assert f"{whole.name}: ours host / plain:" not in made["short"]  # 0.7
    assert f"{npu.DECODE[0].name}: not asked yet" in made["short"]
    assert "-12.5 % | left |" in made["layers"]
    assert "| refused | 9.9 | - | - | refused | 7 | - |" in made["layers"]
    other = {"form": "mask added", "forms": {"mask added": 11.0, "attention spelled out": math.inf}}
    changed = {**same, "plain": no, "plain, changed": answer(11.0, **other)}
    beside = npu_page.blocks({"cases": [{"case": refused.name, "found": changed}]})
    assert "| refused; mask added: 11 | 9.9 | -10.0 % |" in beside["layers"]
    assert f"| {refused.name}: ours / plain, changed | 0.9 | <= 0.98 | met |" in beside["promised"]
    assert "beside it stands mask added: 11 us; attention spelled out: refused" in beside["short"]
    assert "nothing to compare" not in beside["short"]
    dearer = {**same, "ours": {**answer(9.0), "unknown": 2}}
    told = npu_page.blocks({"cases": [{"case": lost.name, "found": dearer}]})["short"]
    assert f"{lost.name}: ours without a price, more than plain: 1.000, not at most 0" in told
    assert made["decode"] == made["fusion"] == made["coded"] == NOT_YET
    assert f"| {whole.name} | head | 8 | 7 |" in made["spent"]


def test_each_platform_has_its_calibration() -> None:
    judged = {"title": "layers (not seen)", "head": [*npu_calibrate.JUDGED], "rows": [[108, 1800, 0.9, 0.12]]}
    forms = {"title": "forms", "head": ["pairs", "concordance"], "rows": [[140, 0.5]]}
    sheets = [{"tables": [{"title": f"rates, NPU {p}"}, judged, forms]} for p in ("3720", "4000")]
    told = npu_page.blocks({"calibration": sheets})["calibration"]
    for platform in ("3720", "4000"):
        assert f"| NPU {platform}, layers (not seen) | 108 | 1800 | 0.9 | 0.12 |" in told
        assert f"| NPU {platform}, forms | - | 140 | 0.5 | - |" in told
