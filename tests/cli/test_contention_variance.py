"""``assay contention variance`` on files as users have them, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from assay.cli.main import main
from assay.compat.contention import build_files
from assay.core.values import Adaptive, Role, Subject, Trial
from assay.experiments.contention.layout import build_layout
from tests.compat.test_compat_contention import FOUND, OLDEST
from tests.experiments.comparisons import run_of
from tests.experiments.tunings import MACHINE, folder_of, options

if TYPE_CHECKING:
    from collections.abc import Callable

    Said = tuple[int, str, str]
    Variance = Callable[..., Said]


@pytest.fixture
def variance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Variance:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Said:
        code = main(["contention", "variance", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def older_file(path: str, time_ms: object, **changes: Any) -> str:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(json.dumps({**OLDEST, "best_time_ms": time_ms, **changes}))
    return path


@pytest.fixture
def files(variance: Variance) -> None:
    """Two GPUs, each alone and side by side."""
    for gpu in (0, 1):
        older_file(f"baseline/s_gpu{gpu}.json", 1.0 + gpu)
        older_file(f"concurrent/s_gpu{gpu}.json", 1.2 * (1.0 + gpu), best_config={"block_sizes": [32, 64]})


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "words",
    [
        (
            "baseline/s_gpu0.json",
            "baseline/s_gpu1.json",
            "--against",
            "concurrent/s_gpu0.json",
            "concurrent/s_gpu1.json",
        ),
        ("baseline/s_gpu0.json,baseline/s_gpu1.json", "concurrent/s_gpu0.json,concurrent/s_gpu1.json"),
        ("baseline/*.json", "concurrent/*.json"),
        ("baseline", "--against", "concurrent"),
        ("baseline", "concurrent"),
        ("baseline/*.json", "--against=concurrent/*.json"),
        ("--against", "concurrent/*.json", "--json", "baseline/*.json"),
        ("baseline/s_gpu0.json", "baseline/s_gpu1.json", "concurrent/s_gpu0.json", "concurrent/s_gpu1.json"),
    ],
)
def test_every_way_to_write_two_groups_means_the_same(variance: Variance, words: tuple[str, ...]) -> None:
    code, out, err = variance(*words, "--json") if "--json" not in words else variance(*words)
    assert code == 0, err
    time, picks = json.loads(out)["findings"]
    assert time["estimate"]["value"] == pytest.approx(1.2)
    assert time["estimate"]["low"] == pytest.approx(1.2)
    assert (picks["facts"]["differ"], picks["facts"]["of"], picks["verdict"]) == (2, 2, "unsure")
    assert picks["facts"]["settings"] == "block_sizes"


@pytest.mark.usefixtures("files")
def test_a_glob_that_the_shell_expanded_is_not_guessed_at(variance: Variance) -> None:
    code, _, err = variance("baseline/s_gpu0.json", "baseline/s_gpu1.json")
    assert code == 2
    assert "`assay contention variance baseline/s_gpu0.json --against baseline/s_gpu1.json`" in err
    older_file("baseline/s_gpu2.json", 3.0)
    code, _, err = variance("baseline/s_gpu0.json", "baseline/s_gpu1.json", "baseline/s_gpu2.json")
    assert code == 2
    assert "not clear which of these 3 are the baseline" in err
    assert "BASELINE... --against CONCURRENT..." in err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("words", [("gone.json",), ("gone.json", "concurrent"), ("baseline", "gone.json")])
def test_a_path_that_does_not_exist_is_named(variance: Variance, words: tuple[str, ...]) -> None:
    assert variance(*words) == (2, "", "assay: gone.json does not exist.\n")


@pytest.mark.usefixtures("files")
def test_broken_files_are_named_and_the_rest_is_compared(variance: Variance, tmp_path: Path) -> None:
    Path("baseline/cut.json").write_text('{"kernel_name": "soft')
    Path("baseline/empty.json").touch()
    older_file("concurrent/zero_gpu0.json", 0)
    older_file("concurrent/other_gpu0.json", 3.0, kernel_name="gemm")
    code, out, err = variance("baseline/*.json", "--against", "concurrent/*.json", "--output", "shown")
    assert code == 0, err
    told = " ".join(out.split())
    assert "not valid JSON" in told
    assert "empty.json is empty" in told
    assert "best_time_ms of 0 is no time" in told
    assert "Only the concurrent has gemm" in told
    assert "different configurations" in told
    assert (tmp_path / "shown/report.html").is_file()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("gone.json", "--against", "concurrent/*.json"),
            "Nothing of the baseline can be used: gone.json does not exist",
        ),
        (("baseline", "--against", "nowhere/*.json"), "nowhere/*.json fits no file"),
        (("baseline", "--against"), "Option '--against' requires an argument"),
        (("--against", "concurrent"), "There is no baseline"),
        ((), "Nothing to compare"),
        (("baseline/../baseline", "baseline"), "is named twice: name two different results, the baseline first"),
    ],
)
def test_nothing_usable_is_bad_input(variance: Variance, words: tuple[str, ...], said: str) -> None:
    code, out, err = variance(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_runs_with_other_parameters_are_refused_and_the_difference_is_named(variance: Variance, tmp_path: Path) -> None:
    for rows in (256, 512):
        subject = Subject(workload="softmax", impl="torch", params={"rows": rows})
        role = Role(name="cuda:0", subjects=(subject,), devices=("cuda:0",))
        run_of(
            tmp_path / str(rows), Trial(block="all", roles=(role,), mode=Adaptive(duration_s=1), restarts=5), 1.0 * rows
        )
    code, out, err = variance("256", "512")
    assert (code, out) == (2, "")
    assert "Nothing is comparable: softmax@torch: parameters differ (rows 256 vs 512)." in err


def test_groups_without_a_kernel_in_common_are_refused(variance: Variance) -> None:
    one, other = older_file("a.json", 1.0), older_file("b.json", 1.0, kernel_name="gemm")
    code, _, err = variance(one, "--against", other)
    assert code == 2
    assert "no kernel in common: the baseline has softmax, the other gemm" in err


def test_a_run_of_the_contention_experiment_is_compared_with_itself_and_by_its_older_files(
    variance: Variance, tmp_path: Path
) -> None:
    wanted = options()
    folder = folder_of(tmp_path / "runs", wanted)
    records = folder.records()
    folder.keep_files(build_files(MACHINE, wanted, build_layout(MACHINE, wanted, records), FOUND, records))
    code, out, err = variance("runs/latest", "--json")
    assert code == 0, err
    older = folder.path / "older"
    assert json.loads(variance(older / "baseline", "--against", older / "concurrent", "--json")[1]) == json.loads(out)
    by_claim = {f["claim"].partition(": ")[2]: f["verdict"] for f in json.loads(out)["findings"]}
    assert by_claim["the best time is longer than the baseline's"] == "yes"
    assert "no sure difference in time" in variance("runs/latest", "--phase", "isolated")[1]
