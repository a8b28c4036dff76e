"""What ``assay time`` and its process say to each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assay.worker.one_shot import distinct_names, load_order
from assay.worker.request import PhaseStarted, RequestFailed, parse_reply


@pytest.mark.parametrize(
    "answer",
    [
        PhaseStarted(phase="loading", name="f", within_s=3.0),
        RequestFailed(error="TrialFailed", reason="it raised"),
        RequestFailed(error="defect", reason="ours", traceback="line 1\nline 2"),
    ],
)
def test_an_answer_is_one_line_and_reads_back(answer: PhaseStarted | RequestFailed) -> None:
    line = answer.model_dump_json().encode()
    assert b"\n" not in line
    assert parse_reply(line) == answer


@pytest.mark.parametrize("line", [b"", b"hello", b'{"kind": "other"}', b"[]"])
def test_what_is_no_answer_is_refused(line: bytes) -> None:
    with pytest.raises(ValidationError):
        parse_reply(line)


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=8))
def test_names_differ_even_where_labels_do_not(labels: list[str]) -> None:
    names = distinct_names(labels)
    assert len(set(names)) == len(labels)
    assert all(name.startswith(label) for name, label in zip(names, labels, strict=True))


def test_subjects_are_loaded_in_another_order_in_each_process() -> None:
    assert [load_order(3, process) for process in (1, 2, 3, 4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    assert load_order(1, 7) == [0]


def test_the_first_of_a_name_keeps_it() -> None:
    assert distinct_names(["f", "g", "f", "f"]) == ("f", "g", "f (2)", "f (3)")
