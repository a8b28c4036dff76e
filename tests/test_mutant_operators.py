"""The faults that are put into source code to see whether tests notice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import assay.stats.intervals
from benchmarks.mutant_operators import faults


def mutants(source: str) -> set[str]:
    return {fault.put_into(source) for fault in faults(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a + b", {"x = a - b", "x = a"}),
        ("x = a * (b + c)", {"x = a / (b + c)", "x = a", "x = a * (b - c)", "x = a * (b)"}),
        ("x = a < b", {"x = a <= b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = +a"}),
        ("x = a[1]", {"x = a[2]"}),
        ("x = 0.95", {"x = 0.9"}),
        ("x = 2.0", {"x = 3.0"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = np.argmin(a)", {"x = np.argmax(a)"}),
        ("x = 'é' + f'{a + 1}'", set()),
        ("def f(a: int = 3) -> int: ...", {"def f(a: int = 4) -> int: ..."}),
        ("raise ValueError(a + 1)", set()),
    ],
)
def test_one_fault_at_a_time(source: str, expected: set[str]) -> None:
    assert mutants(source) == expected


@pytest.mark.full
def test_every_fault_in_a_real_file_parses_and_changes_what_it_does() -> None:
    source = Path(assay.stats.intervals.__file__).read_text(encoding="utf-8")
    found = faults(source)
    assert len(found) > 30
    changed = [fault.put_into(source) for fault in found]
    assert all(ast.dump(ast.parse(text)) != ast.dump(ast.parse(source)) for text in changed)


def test_a_fault_that_fits_no_more_is_said() -> None:
    (fault,) = faults("x = -a")
    with pytest.raises(ValueError, match="line 1 has no '-' at 4"):
        fault.put_into("x = a")
