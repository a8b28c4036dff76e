"""Picks that are kept: found again for the same workload, shape, GPU and driver, and for nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, DamagedFile
from assay.timing import saved_picks
from assay.timing.results import Pick, PickCandidate

if TYPE_CHECKING:
    from pathlib import Path

HERE: Any = {"gpu": "NVIDIA H200", "driver": "580.1"}


def pick(winner: str = "b", **config: int) -> Pick:
    return Pick(
        winner=winner,
        config=dict(config) or None,
        time_us=5.0,
        probability=0.98,
        expected_regret=0.001,
        tolerance=0.01,
        ranking=(PickCandidate(name=winner), PickCandidate(name="a")),
        quantity="busy_us",
        device="cuda:0",
        cache="cold",
        rounds=10,
        calls=100,
        stopped="decided",
        took_s=1.0,
    )


def test_a_pick_is_found_again_with_its_configuration() -> None:
    saved = saved_picks.save(pick(block=128), "gemm@triton", {"m": 512, "dtype": "float16"}, **HERE)
    found = saved_picks.lookup("gemm@triton", {"dtype": "float16", "m": 512}, **HERE)
    assert found == saved
    assert found is not None
    assert (found.winner, found.config, found.candidates) == ("b", {"block": 128}, 2)


@pytest.mark.parametrize(
    "other",
    [
        {"workload": "gemm@torch"},
        {"shape": {"m": 513}},
        {"shape": None},
        {"gpu": "NVIDIA L4"},
        {"driver": "570.0"},
    ],
)
def test_for_anything_else_there_is_none(other: dict[str, object]) -> None:
    saved_picks.save(pick(), "gemm@triton", {"m": 512}, **HERE)
    asked = {"workload": "gemm@triton", "shape": {"m": 512}, **HERE, **other}
    assert saved_picks.lookup(**asked) is None


def test_a_newer_pick_for_the_same_place_replaces_the_older() -> None:
    saved_picks.save(pick("old"), "gemm", {"m": 1}, **HERE)
    saved_picks.save(pick("new"), "gemm", {"m": 1}, **HERE)
    found = saved_picks.lookup("gemm", {"m": 1}, **HERE)
    assert found is not None
    assert found.winner == "new"
    assert len(saved_picks.list_all()) == 1


def test_a_pick_can_be_forgotten() -> None:
    saved_picks.save(pick(), "gemm", **HERE)
    assert saved_picks.forget("gemm", **HERE)
    assert saved_picks.lookup("gemm", **HERE) is None
    assert not saved_picks.forget("gemm", **HERE)


def test_everything_that_is_kept_can_be_listed() -> None:
    assert saved_picks.list_all() == []
    for m in (1, 2, 3):
        saved_picks.save(pick(), "gemm", {"m": m}, **HERE)
    assert {saved.key.shape["m"] for saved in saved_picks.list_all()} == {1, 2, 3}


def test_without_a_place_it_is_kept_for_this_machine() -> None:
    saved = saved_picks.save(pick(), "gemm")
    assert saved.key.gpu
    assert saved.key.driver
    assert saved_picks.lookup("gemm") == saved


def test_picks_are_kept_in_assays_home(assay_home: Path) -> None:
    saved_picks.save(pick(), "gemm", **HERE)
    (file,) = (assay_home / "picks").iterdir()
    assert json.loads(file.read_text())["winner"] == "b"


@pytest.mark.parametrize("content", ["{", '{"winner": 5}', "[]", ""])
def test_a_file_that_was_spoilt_is_named_and_not_believed(content: str, assay_home: Path) -> None:
    saved_picks.save(pick(), "gemm", **HERE)
    (file,) = (assay_home / "picks").iterdir()
    file.write_text(content)
    with pytest.raises(BadInput, match=file.name):
        saved_picks.lookup("gemm", **HERE)


def test_a_kept_time_that_was_changed_is_not_believed(assay_home: Path) -> None:
    saved = saved_picks.save(pick(), "gemm", **HERE)
    (file,) = (assay_home / "picks").iterdir()
    file.write_text(file.read_text().replace(str(saved.time_us), str(2 * saved.time_us)))
    with pytest.raises(DamagedFile, match="Remove it"):
        saved_picks.lookup("gemm", **HERE)


@pytest.mark.parametrize("shape", [{"m": [1, 2]}, {"m": {}}])
def test_a_place_that_is_none_is_bad_input(shape: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="no place for a pick"):
        saved_picks.save(pick(), "gemm", shape, **HERE)  # type: ignore[arg-type]


def test_a_workload_has_a_name() -> None:
    with pytest.raises(BadInput, match="no place for a pick"):
        saved_picks.lookup("", **HERE)
