from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.generation import prompts
from assay.workloads.generation.params import Generation

if TYPE_CHECKING:
    from pathlib import Path


def test_each_line_of_a_text_file_is_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\ufeffWho?\n\n  \nWhy not?\r\nWhere?", encoding="utf-8")
    assert prompts.read_prompts(str(file)) == ("Who?", "Why not?", "Where?")
    assert prompts.read_prompts(str(file), most=2) == ("Who?", "Why not?")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.jsonl", '{"question": "a", "id": 1}\n\n{"question": "b"}\n'),
        ("p.jsonl", '"a"\n"b"\n'),
        ("p.json", '[{"question": "a"}, {"question": "b"}]'),
        ("p.json", '{"question": ["a", "b"]}'),
        ("p.csv", "id,question\n1,a\n2,b\n"),
        ("p.tsv", "id\tquestion\n1\ta\n2\tb\n"),
    ],
)
def test_a_column_of_json_and_csv_holds_the_prompts(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert prompts.read_prompts(str(tmp_path / name), "question") == ("a", "b")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.txt", b" \n\n", "has no prompts"),
        ("p.txt", b"abc\xe9\n", "is not text in UTF-8: byte 3"),
        ("p.csv", b"id,txt\n1,a\n", r"no column 'text'; it has id, txt\. Did you mean txt"),
        ("p.csv", b"", "no column 'text'; it has none"),
        ("p.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "line 2 of .* has no column 'text'"),
        ("p.jsonl", b"{\n", "line 1 of .* is not valid JSON"),
        ("p.jsonl", b'{"text": 3}\n', "line 1 of .* is no text, but 3"),
        ("p.json", b'{"texts": []}', "is not a list of prompts"),
        ("p.docx", b"", "is no prompt file that can be read"),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=said):
        prompts.read_prompts(str(tmp_path / name))


def test_a_file_that_is_not_there_and_a_folder_that_is_no_data_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="There is no prompt file"):
        prompts.read_prompts(str(tmp_path / "none.txt"))
    with pytest.raises(BadInput, match="is no data set"):
        prompts.read_prompts(str(tmp_path))


def test_a_data_set_needs_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "state.json").write_text(json.dumps({}), encoding="utf-8")
    (tmp_path / "train" / "data-00000.arrow").write_bytes(b"no arrow")
    with pytest.raises((MachineCannot, BadInput), match=r"needs pyarrow|cannot be read"):
        prompts.read_prompts(str(tmp_path))


def test_a_prompt_that_is_too_long_is_refused_or_cut() -> None:
    rows = [[1, 2], [3, 4, 5, 6]]
    asked = Generation(prompts="p.txt", input_tokens=3, output_tokens=5)
    with pytest.raises(BadInput, match=r"Prompt 2 of p\.txt has 4 tokens, more than the 3"):
        prompts.fit_prompts(rows, asked, context=100)
    cut = asked.model_copy(update={"truncation": True})
    assert prompts.fit_prompts(rows, cut, context=100) == [[1, 2], [3, 4, 5]]
    with pytest.raises(BadInput, match="has 3 tokens and its answer 5, together more than the 7"):
        prompts.fit_prompts(rows, cut, context=7)
    with pytest.raises(BadInput, match="has no tokens"):
        prompts.fit_prompts([[]], asked, context=7)


def test_random_prompts_are_the_same_for_a_seed_and_fit_the_context() -> None:
    rows = prompts.random_prompts(50, 4, 9, seed=1)
    assert rows == prompts.random_prompts(50, 4, 9, seed=1)
    assert rows != prompts.random_prompts(50, 4, 9, seed=2)
    assert {len(row) for row in rows} == {9}
    assert all(0 <= token < 50 for row in rows for token in row)
    with pytest.raises(BadInput, match="60 tokens in and 50 out are 110, more than the 100"):
        prompts.check_context(Generation(input_tokens=60, output_tokens=50), 100)


def test_batches_use_all_prompts_equally_often() -> None:
    groups = prompts.group_prompts([[1], [2], [3]], 2)
    assert groups == [[[1], [2]], [[3], [1]], [[2], [3]]]
    assert prompts.group_prompts([[1]], 3) == [[[1], [1], [1]]]
    assert prompts.bytes_to_tokens("aä", 200) == [97, 195, 164]
