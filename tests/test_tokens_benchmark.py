"""The tables of what a token costs, on rows whose truth is known."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from benchmarks.tokens_beside import in_turns
from benchmarks.tokens_tables import against_bare, agreement, reached, split_line


def told_of(table: str) -> list[float]:
    return [float(cell.partition("(")[0]) for cell in table.splitlines()[2].split("|")[2:5]]


def row(mode: str, batch: int, **figures: tuple[float, float] | None) -> dict[str, Any]:
    told = {
        name: None if found is None else {"value": found[0], "low": found[0] - found[1], "high": found[0] + found[1]}
        for name, found in figures.items()
    }
    return {"cell": {"mode": mode, "batch": batch}, "figures": told}


FIRST = [
    row("eager", 1, decode_j_per_token=(10.0, 0.1), decode_tokens_per_s=(12.0, 0.1), prefill_j_per_token=(0.02, 0.001)),
    row("graphs", 1, decode_j_per_token=(2.0, 0.1), decode_tokens_per_s=(150.0, 1.0), bandwidth_share=(0.56, 0.01)),
]


def test_a_run_is_told_cell_by_cell_and_what_is_not_known_is_a_dash() -> None:
    lines = reached(FIRST).splitlines()
    assert lines[2] == "| eager, batch 1 | 20 ± 5.0 % | 10 ± 1.0 % | 12 ± 0.8 % | – | – | – |"
    assert lines[3] == "| graphs, batch 1 | – | 2 ± 5.0 % | 150 ± 0.7 % | 0.56 ± 1.8 % | – | – |"


def test_two_runs_agree_where_their_intervals_meet() -> None:
    again = [row("eager", 1, decode_j_per_token=(10.15, 0.1), prefill_j_per_token=(0.03, 0.001)), FIRST[1]]
    told = agreement(FIRST, again)
    assert "| eager, batch 1 | decode | 10 ± 1.0 % | 10.15 ± 1.0 % | 1.015 | yes |" in told
    assert "| eager, batch 1 | prefill | 0.02 ± 5.0 % | 0.03 ± 3.3 % | 1.500 | no |" in told


def test_our_plain_loop_is_held_against_a_bare_one_by_its_decoding_alone() -> None:
    times = {"one_s": [0.1, 0.1], "bare_s": [1.1, 1.1, 2.1, 2.1], "ours_s": [1.0, 1.0, 2.0, 2.0]}
    told = against_bare({"output_tokens": 13, "batches": {"1": times}})
    assert told.splitlines()[2:] == ["| 1 | 8.0 | 8.0 | 1.000 (1.000–1.000) |"]
    slower = {**times, "ours_s": [1.1, 1.3, 2.2, 2.6]}
    ours, alone, ratio = told_of(against_bare({"output_tokens": 13, "batches": {"8": slower}}))
    assert ours == pytest.approx(8 * alone / 8 / 1.2, rel=0.01)
    assert ratio == pytest.approx(1 / 1.2, rel=0.01)


def test_calls_take_turns_after_one_round_to_warm_up() -> None:
    made: list[str] = []

    def call(name: str) -> float:
        made.append(name)
        return float(len(made))

    said = in_turns({name: partial(call, name) for name in "ab"}, "abba", 0.01)
    rounds = len(made) // 4
    assert rounds > 1
    assert "".join(made) == rounds * "abba"
    assert said["a"][:2] == [5.0, 8.0]
    assert len(said["a"]) == len(said["b"]) == 2 * (rounds - 1)


def test_a_split_model_is_told_by_where_its_parts_lie() -> None:
    split = {"model": "m", "placement": {"a": "cuda:0", "b": "cpu", "c": "cpu"}, "max_error": 1e-5, "largest_logit": 10}
    assert split_line(split) == (
        "`m` split by max_memory: 1 parts on cuda:0, 2 parts on cpu, as planned; logits are off by 1.0e-06."
    )
