"""What went wrong, and the exit code that says so."""

from __future__ import annotations

import pytest

from assay.core import errors
from assay.core.errors import AssayError, suggest_nearest


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("GateFailed", 1),
        ("BadInput", 2),
        ("MachineCannot", 3),
        ("TrialFailed", 4),
        ("EndedEarly", 4),
        ("BudgetEnded", 4),
        ("StopRequested", 4),
        ("AssayError", 70),
    ],
)
def test_each_error_has_the_exit_code_that_the_manual_promises(name: str, code: int) -> None:
    assert getattr(errors, name).exit_code == code


def test_a_request_to_stop_is_no_error_that_could_be_swallowed() -> None:
    assert not issubclass(errors.StopRequested, Exception)
    assert issubclass(errors.BudgetEnded, errors.AssayError)


def test_every_error_is_in_the_drawing_with_its_code() -> None:
    drawing = (errors.__doc__ or "").splitlines()
    for error in AssayError.__subclasses__():
        if error.__module__ == errors.__name__:
            assert any(line.split()[1:3] == [error.__name__, str(error.exit_code)] for line in drawing), error


def test_a_misspelt_word_is_answered_with_the_nearest_ones() -> None:
    assert suggest_nearest("sofmax", ["gemm", "softmax"]) == " Did you mean softmax?"
    assert suggest_nearest("run_a", ["run_b", "run_c"]) in {
        " Did you mean run_b or run_c?",
        " Did you mean run_c or run_b?",
    }


def test_a_word_that_resembles_nothing_gets_no_suggestion() -> None:
    assert suggest_nearest("zebra", ["gemm", "softmax"]) == ""
    assert suggest_nearest("zebra", []) == ""


def test_no_more_than_three_words_are_suggested() -> None:
    assert suggest_nearest("abcd", (f"abcd{n}" for n in range(9))).count("abcd") == 3
