"""The case runner itself, on a toy pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

import toy_pipeline as toy
from case_runner import Case, CaseError, bless, differences, parse_case, read_cases, run_case, under_seed

TEXT = """# case: words
## options
keep=3 name=x y=1.5
## input
b a b
a

## after count
A 1
B 2
"""


def case(text: str = TEXT, path: Path = Path("words.case")) -> Case:
    return parse_case(text, path, toy.SECTIONS)


def test_a_case_is_read_and_written_back():
    found = case()
    assert found.title == "words"
    assert found.options == {"keep": 3, "name": "x", "y": 1.5}
    assert found["input"] == "b a b\na\n\n"
    assert found.golden == {"after count": "A 1\nB 2\n"}
    assert found.text == TEXT


def test_a_case_that_holds_has_no_differences():
    made = run_case(case(), toy.compile, reparse=False)
    assert list(made) == ["after count"]
    assert differences(case(), made, "straight") == ""


def test_a_difference_names_section_and_treatment():
    wrong = case(TEXT.replace("B 2", "B 3"))
    shown = differences(wrong, run_case(wrong, toy.compile, reparse=False), "straight")
    assert "--- words.case ## after count" in shown
    assert "+++ words.case ## after count (straight)" in shown
    assert "-B 3\n+B 2\n" in shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("## input\nx\n", "begins with '# case: '"),
        ("# case: \n## input\n", "begins with '# case: '"),
        ("# case: a\nstray\n## input\n", "before the first section"),
        ("# case: a\n## after upper\nA\n", "no section 'input'"),
        ("# case: a\n## input\na\n", "no section to compare"),
        ("# case: a\n## input\na\n## after lower\na\n", "nothing gives a section 'after lower'"),
        ("# case: a\n## input\na\n## remark\na\n", "nothing gives a section 'remark'"),
        ("# case: a\n## input\na\n## after upper\n## after upper\n", "comes twice"),
        ("# case: a\n## options\nkeep\n## input\na\n## after upper\nA\n", "'keep' is not name=value"),
    ],
)
def test_malformed_cases_are_refused(text, reason):
    with pytest.raises(CaseError, match=reason):
        run_case(case(text), toy.compile, reparse=False)


def test_a_section_that_the_run_does_not_give_is_an_error():
    with pytest.raises(CaseError, match="gave no section 'after count'"):
        run_case(case(), toy.silent, reparse=False)


def test_a_stray_file_among_the_cases_is_an_error(tmp_path):
    (tmp_path / "words.case").write_text(TEXT)
    assert [c.title for c in read_cases(tmp_path, toy.SECTIONS)] == ["words"]
    (tmp_path / "words.golden").write_text("A")
    with pytest.raises(CaseError, match=r"words\.golden: not a \.case file"):
        read_cases(tmp_path, toy.SECTIONS)


def test_blessing_rewrites_the_listed_sections_only(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    path = tmp_path / "words.case"
    path.write_text("# case: words\n## after upper\nOLD\n\n\n## input\nb a\n\n## after count\n")
    found = case(path.read_text(), path)
    assert bless(found, run_case(found, toy.compile, reparse=False))
    assert path.read_text() == "# case: words\n## after upper\nB A\n\n\n## input\nb a\n\n## after count\nA 1\nB 1\n"
    again = case(path.read_text(), path)
    assert differences(again, run_case(again, toy.compile, reparse=False), "straight") == ""
    assert not bless(again, run_case(again, toy.compile, reparse=False))


def test_blessing_is_refused_under_ci(tmp_path, monkeypatch):
    monkeypatch.setenv("CI", "true")
    path = tmp_path / "words.case"
    path.write_text(TEXT.replace("B 2", "B 3"))
    found = case(path.read_text(), path)
    with pytest.raises(CaseError, match="CI only compares"):
        bless(found, run_case(found, toy.compile, reparse=False))
    assert path.read_text() == TEXT.replace("B 2", "B 3")


def test_a_text_that_does_not_come_back_is_caught():
    found = case("# case: a\n## input\na b c\n## after upper\nA B C\n")
    assert differences(found, run_case(found, toy.forgetful, reparse=False), "straight") == ""
    assert "(reparse)" in differences(found, run_case(found, toy.forgetful, reparse=True), "reparse")


def test_hash_seeds_are_really_tried(tmp_path):
    path = tmp_path / "words.case"
    path.write_text("# case: words\n## input\na b\n## after upper\nA B\n")
    key = str(path)
    made = [under_seed(seed, "toy_pipeline:hashed", [path], toy.SECTIONS) for seed in ("0", "1")]
    assert made[0][key] != made[1][key]
    assert under_seed("0", "toy_pipeline:compile", [path], toy.SECTIONS)[key] == {"after upper": "A B\n"}


def test_a_failing_process_shows_its_error(tmp_path):
    path = tmp_path / "words.case"
    path.write_text("# case: words\n## input\na b\n## after upper\nA B\n")
    with pytest.raises(CaseError, match="gave no section"):
        under_seed("1", "toy_pipeline:silent", [path], toy.SECTIONS)
