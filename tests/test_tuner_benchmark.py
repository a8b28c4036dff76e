"""The benchmark of tuners in company: a small one for real on cores, and its table from known outcomes."""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import tuners
from benchmarks.tuners_tables import key_of, regrets, table

if TYPE_CHECKING:
    from pathlib import Path

FAST, SLOW = {"block": 1}, {"block": 2}


def tried(condition: str, number: int, config: dict[str, int] | None, time_us: float = 10.0) -> dict[str, Any]:
    return {
        "tuner": "pick",
        "condition": condition,
        "try": number,
        "status": "ok",
        "reason": None if config else "no configuration works",
        "config": config,
        "time_us": time_us if config else None,
        "tuning_s": 1.5,
    }


def test_the_table_says_how_often_company_changes_the_choice_and_what_that_costs() -> None:
    visit = {
        "tries": [
            *(tried("quiet", n, FAST) for n in (1, 2, 3, 4)),
            *(tried("CPU hogs", n, SLOW if n < 3 else FAST, 22.0) for n in (1, 2, 3)),
            tried("CPU hogs", 4, None),
        ],
        "quiet": {"softmax@triton": {key_of(FAST): [10.0, 10.0, 11.0], key_of(SLOW): [11.0, 11.0, 11.0]}},
    }
    assert regrets(visit, "softmax@triton") == pytest.approx({key_of(FAST): 0.0, key_of(SLOW): 0.1})
    told = table({"visits": [visit]}, {"pick": "softmax@triton"})
    assert (
        "| pick | quiet | 4 of 4 | 1 | 0 of 3 (from one try to the next), 0–71 % | 0.0 ± 0.0 % | 0.0 % | 1.00 |" in told
    )
    assert "| pick | CPU hogs | 3 of 4 | 2 | 2 of 3, 9–99 % | 6.7 ± 14.3 % | 10.0 % | 2.00 | 1.5 |" in told
    assert "pick, CPU hogs, try 4: no configuration works." in told


@pytest.mark.full
def test_a_small_one_on_cores_is_kept_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuners, "TUNERS", {"pick": "softmax@numpy"})
    monkeypatch.setattr(tuners, "LOADS", {name: tuners.LOADS[name] for name in ("quiet", "CPU hogs")})
    monkeypatch.setattr(tuners, "BUDGET_S", 1.0)
    monkeypatch.setattr(tuners, "START_S", 0.5)
    tuners.run(tmp_path, tries=1, device="cpu:0", shape={"rows": "64", "cols": "64"})
    raw = tuners.load_kept(tmp_path)
    (visit,) = raw["visits"]
    assert {t["condition"] for t in visit["tries"]} == {"quiet", "CPU hogs"}
    assert all(t["config"] is not None for t in visit["tries"])
    hogs = next(t for t in visit["tries"] if t["condition"] == "CPU hogs")
    assert hogs["load"]["cpu_s"] > 0
    assert {key_of(t["config"]) for t in visit["tries"]} == set(visit["quiet"]["softmax@numpy"])
    assert {len(times) for times in visit["quiet"]["softmax@numpy"].values()} == {tuners.PROCESSES}
    assert tuners.verified(tmp_path).count("| pick |") == 2
    visit["tries"][0]["tuning_s"] += 100
    (tmp_path / "tuners.samples.json.xz").write_bytes(lzma.compress(json.dumps(raw).encode()))
    with pytest.raises(SystemExit):
        tuners.verified(tmp_path)


def test_what_was_tried_is_not_tried_again_and_quick_tuners_come_first() -> None:
    visit = {"tries": [tried("quiet", 1, FAST)], "quiet": {}}
    left = tuners.left_of({"visits": [visit]}, 2)
    assert ("pick", "quiet", 1) not in left
    assert ("pick", "quiet", 2) in left
    assert len(left) == 2 * len(tuners.TUNERS) * len(tuners.LOADS) - 1
    assert [each[0] == tuners.SLOW for each in left] == sorted(each[0] == tuners.SLOW for each in left)
