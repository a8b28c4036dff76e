"""The faults that are put into source code to see whether tests notice."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import assay.stats.intervals
from benchmarks.mutant_operators import Fault, faults
from benchmarks.mutants import BY_HAND, ON_GPU, SOURCE, TESTS, module_faults, place_by_hand


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


def test_every_fault_written_by_hand_has_its_place_and_parses() -> None:
    for fault in json.loads(BY_HAND.read_text(encoding="utf-8")):
        ast.parse(place_by_hand(fault)["source"])


def test_a_fault_written_by_hand_that_fits_no_more_or_twice_is_refused() -> None:
    fault = {"module": "stats/intervals.py", "before": "no such text", "after": ""}
    with pytest.raises(ValueError, match="0 times instead of once"):
        place_by_hand(fault)
    with pytest.raises(ValueError, match="times instead of once"):
        place_by_hand({**fault, "before": "return"})


def test_what_only_a_gpu_runs_and_the_tests_of_the_trace_exist() -> None:
    for entry in ON_GPU:
        module, _, name = entry.partition(":")
        source = SOURCE / module
        assert source.is_dir() or any(f"\n{kind} {name}" in source.read_text() for kind in ("class", "def")), entry
    assert all((SOURCE.parents[1] / part).exists() for part in TESTS)


@pytest.mark.parametrize(
    ("module", "included", "excluded"),
    [
        ("experiments/run/report.py", "_subject_finding", "build_page"),
        ("joules/devices.py", "CpuCallLoad", "CudaCallLoad"),
    ],
)
def test_no_faults_are_drawn_from_what_draws_a_page_or_needs_a_gpu(module: str, included: str, excluded: str) -> None:
    source = (SOURCE / module).read_text(encoding="utf-8")
    definitions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    spans = {node.name: range(node.lineno, (node.end_lineno or 0) + 1) for node in definitions}

    def lines_in(name: str, all_faults: list[Fault]) -> list[int]:
        return [fault.line for fault in all_faults if fault.line in spans[name]]

    assert lines_in(included, module_faults(module)) == lines_in(included, faults(source)) != []
    assert lines_in(excluded, module_faults(module)) == [] != lines_in(excluded, faults(source))
