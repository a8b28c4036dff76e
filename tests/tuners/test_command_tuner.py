"""A command as a tuner: what it writes is read in all its forms, and what it leaves undone is said."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.values import Command, Subject, Tuner
from assay.tuners import command
from assay.tuners.base import TuningJob
from assay.tuners.command import NO_TIME, parse_output

if TYPE_CHECKING:
    from pathlib import Path

    from assay.tuners.base import TuningResult

WRITTEN: dict[str, Any] = {
    "kernel_name": "matmul",
    "best_config": {"block": 64, "order": [0, 1], "fast": True},
    "best_time_ms": 0.25,
    "all_benchmark_times": [0.5, 0.25, None],
    "num_configs_tested": 3,
    "autotune_duration_seconds": 1.5,
}


def found(**changes: Any) -> TuningResult:
    return parse_output(json.dumps({**WRITTEN, **changes}))


def test_what_was_chosen_and_tried_is_read() -> None:
    it = found()
    assert it.config == {"block": 64, "order": "[0, 1]", "fast": True}
    assert (it.time_us, it.tuning_s, it.notes) == (250.0, 1.5, ("kernel matmul",))
    assert [(tried.config, tried.time_us) for tried in it.tried] == [
        ({"number": 0}, 500.0),
        ({"number": 1}, 250.0),
        ({"number": 2}, None),
    ]
    assert it.tried[2].reason == NO_TIME


@pytest.mark.parametrize(
    "times",
    [
        [{"config": {"block": 32}, "time_ms": 0.5}, {"config": {"block": 64}, "time_ms": 0.25}],
        {'{"block": 32}': 0.5, '{"block": 64}': 0.25},
    ],
)
def test_times_come_with_their_configurations_in_either_form(times: Any) -> None:
    it = found(all_benchmark_times=times, num_configs_tested=2)
    assert [(tried.config, tried.time_us) for tried in it.tried] == [({"block": 32}, 500.0), ({"block": 64}, 250.0)]


def test_a_configuration_that_is_only_a_word_is_kept_as_one() -> None:
    it = found(best_config="block 64", all_benchmark_times={"block 64": 0.25}, num_configs_tested=1)
    assert it.config == {"config": "block 64"}
    assert it.tried[0].config == {"config": "block 64"}


def test_a_count_that_does_not_fit_the_list_is_said() -> None:
    assert found(num_configs_tested=48).notes[-1] == "it says that it tested 48 configurations, and lists 3"


def test_a_tuner_that_chose_nothing_has_no_configuration_and_a_reason() -> None:
    it = found(best_config=None, best_time_ms=None)
    assert (it.config, it.time_us, it.reason) == (None, None, "it chose no configuration")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps(WRITTEN)[:-20], "what the tuner wrote is not JSON"),
        ("", "what the tuner wrote is not JSON"),
        ("[1, 2]", "what the tuner wrote is no object, but list"),
        (
            '{"kernel_name": "matmul", "best_config": {}}',
            "what the tuner wrote lacks best_time_ms, all_benchmark_times",
        ),
        (json.dumps({**WRITTEN, "best_time_ms": "fast"}), "has a best_time_ms of 'fast', which is no time"),
        (json.dumps({**WRITTEN, "best_time_ms": float("nan")}), "has a best_time_ms of nan, which is no time"),
        (json.dumps({**WRITTEN, "autotune_duration_seconds": -1}), "has a autotune_duration_seconds of -1"),
        (json.dumps({**WRITTEN, "all_benchmark_times": 7}), "has all_benchmark_times of type int"),
    ],
)
def test_what_is_cut_off_or_incomplete_is_refused_in_words(text: str, reason: str) -> None:
    with pytest.raises(TrialFailed) as caught:
        parse_output(text)
    assert reason in str(caught.value)


def job(program: str, *words: str) -> TuningJob:
    argv = (sys.executable, "-c", program, *words)
    tuner = Tuner(name="command", budget_s=1, command=Command(argv=argv))
    return TuningJob(Subject(workload="fine", impl="python"), tuner, "cpu:0", seed=0)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_SCRATCH", str(tmp_path))
    return tmp_path


def test_the_file_is_named_in_its_words_and_in_its_environment_and_goes_afterwards(scratch: Path) -> None:
    write = (
        "import os, sys; assert os.environ['ASSAY_OUTPUT'] == sys.argv[1]\n"
        f"open(sys.argv[1], 'w').write({json.dumps(WRITTEN)!r})"
    )
    assert command.tune(job(write, "{output}")).config == {"block": 64, "order": "[0, 1]", "fast": True}
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(3)", "the tuner's command exited with 3"),
        ("import os; os.kill(os.getpid(), 9)", "the tuner's command was killed by SIGKILL"),
        ("pass", r"the tuner's command wrote no file to \{output\} or \$ASSAY_OUTPUT"),
        ("import os; open(os.environ['ASSAY_OUTPUT'], 'w').write('{')", "what the tuner wrote is not JSON"),
    ],
)
def test_a_command_that_ends_badly_or_writes_nothing_says_so(scratch: Path, program: str, reason: str) -> None:
    with pytest.raises(TrialFailed, match=reason):
        command.tune(job(program))


def test_a_command_that_is_not_there_is_refused(scratch: Path) -> None:
    tuner = Tuner(name="command", budget_s=1, command=Command(argv=("no-such-tuner",)))
    with pytest.raises(MachineCannot, match="the tuner's command 'no-such-tuner' cannot be started"):
        command.tune(TuningJob(Subject(workload="fine", impl="python"), tuner, "cpu:0", seed=0))
