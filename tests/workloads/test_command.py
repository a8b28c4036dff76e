"""Any command as a workload: what it used, what it printed, how it ended."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.core.values import Command, Metric
from assay.workloads.command import RESULT_VARIABLE, find_metric, prepare_command, read_metric, run_command

if TYPE_CHECKING:
    from pathlib import Path

OWN = {"call_us", "cpu_user_s", "cpu_system_s"}


def shell(script: str, **metrics: str) -> Command:
    found = tuple(Metric(name=name, pattern=pattern) for name, pattern in metrics.items())
    return Command(argv=("sh", "-c", script), metrics=found)


def writes(text: str) -> Command:
    """Return a command that writes a text to its result file."""
    return Command(argv=("sh", "-c", f'printf %s "$1" > "${RESULT_VARIABLE}"', "sh", text))


def test_a_command_reports_its_wall_time_and_what_it_used() -> None:
    extras = run_command(shell("true"))
    assert set(extras) == OWN
    assert extras["call_us"] > 0
    assert extras["cpu_user_s"] >= 0
    assert extras["cpu_system_s"] >= 0


def test_the_memory_a_command_used_is_seen_where_it_is_more_than_our_own() -> None:
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 + 128
    hungry = Command(argv=(sys.executable, "-S", "-c", f"x = b'x' * ({mib} << 20)"))
    assert run_command(hungry)["max_rss_mib"] > mib
    assert "max_rss_mib" not in run_command(shell("true"))


def test_a_command_that_works_uses_the_cpu_within_its_wall_time() -> None:
    extras = run_command(Command(argv=(sys.executable, "-S", "-c", "sum(range(2_000_000))")))
    used_us = (extras["cpu_user_s"] + extras["cpu_system_s"]) * 1e6
    assert 0 < used_us < extras["call_us"] + 20_000


def test_a_prepared_command_runs_afresh_each_time_and_reports_for_itself(tmp_path: Path) -> None:
    prepared = prepare_command(Command(argv=("sh", "-c", 'echo x >> "$1"', "sh", str(tmp_path / "log"))))
    assert prepared.reports_extras
    for _ in range(3):
        reported = prepared.call()
        assert isinstance(reported, dict)
        assert "call_us" in reported
    assert (tmp_path / "log").read_text() == "x\n" * 3


def test_arguments_reach_the_command_as_they_are() -> None:
    command = Command(
        argv=("printf", "%s", "$HOME * time 5 ms"), metrics=(Metric(name="t_ms", pattern=r"\* time (\d)"),)
    )
    assert run_command(command)["t_ms"] == 5.0


def test_a_command_reads_nothing_and_what_it_prints_does_not_reach_our_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert set(run_command(shell("cat; echo printed"))) == OWN
    assert capfd.readouterr().out == ""


def test_what_a_command_says_on_stderr_goes_on_to_the_workers_log(capfd: pytest.CaptureFixture[str]) -> None:
    run_command(shell("echo careful >&2"))
    assert capfd.readouterr().err == "careful\n"


@pytest.mark.parametrize(
    ("printed", "pattern", "value"),
    [
        ("time 1.5 ms", r"time ([0-9.]+) ms", 1.5),
        ("step 1\\nstep 2\\nstep 3", r"step (\d+)", 3.0),
        ("a 1\\nb 2", r"^a (\d+)$", 1.0),
        ("loss: -1.5e-3", r"loss: (\S+)", -1.5e-3),
        ("x=1 y=2", r"x=(\d) y=(\d)", 1.0),
    ],
)
def test_a_metric_is_the_number_in_the_last_match_of_its_pattern(printed: str, pattern: str, value: float) -> None:
    assert run_command(shell(f"printf '{printed}'", found=pattern))["found"] == value


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_whatever_number_is_printed_last_is_found(numbers: list[float]) -> None:
    printed = "\n".join(f"value: {number!r}" for number in numbers)
    assert find_metric(Metric(name="v", pattern=r"value: (\S+)"), printed) == numbers[-1]


@pytest.mark.parametrize(
    ("printed", "pattern", "message"),
    [
        (
            "nothing",
            r"time (\d+)",
            r"metric 'found': 'time \(\\\\d\+\)' matches nothing on standard output",
        ),
        ("", r"(\d+)", "matches nothing"),
        ("time fast", r"time (\w+)", "metric 'found': 'fast' is not a number"),
        ("time nan", r"time (\w+)", "metric 'found': 'nan' is not a number"),
        ("time -inf", r"time (\S+)", "metric 'found': '-inf' is not a number"),
        ("time", r"time( \d+)?", "metric 'found': None is not a number"),
        ("1\\ntime slow", r"(\d+|slow)", "metric 'found': 'slow' is not a number"),
    ],
)
def test_a_metric_that_is_not_there_fails_the_trial_in_words(printed: str, pattern: str, message: str) -> None:
    with pytest.raises(TrialFailed, match=message):
        run_command(shell(f"printf '{printed}'", found=pattern))


def test_output_that_is_not_text_harms_nothing() -> None:
    assert run_command(shell(r"printf '\377\376\000 time 5'", found=r"time (\d)"))["found"] == 5.0


@pytest.mark.parametrize(
    ("text", "name", "pattern"),
    [
        ("t_ms=time ([0-9.]+) ms", "t_ms", "time ([0-9.]+) ms"),
        (" t = ([0-9]+)", "t", " ([0-9]+)"),
        ("rate=x=(.*)", "rate", "x=(.*)"),
    ],
)
def test_a_metric_is_written_as_name_and_pattern(text: str, name: str, pattern: str) -> None:
    assert read_metric(text) == (name, pattern)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t_ms", r"^A metric is written NAME=REGEX, not 't_ms'\.$"),
        ("=(x)", r"^A metric is written NAME=REGEX"),
        ("  =(x)", r"^A metric is written NAME=REGEX"),
        ("t=time ([0-9]+", r"^The pattern of metric 't' is not a regular expression: .*position"),
        ("t=time [0-9]+", r"^The pattern of metric 't' needs a group around the number"),
        ("t=", r"needs a group"),
        ("t=(?:x)", r"needs a group"),
    ],
)
def test_a_metric_that_cannot_be_read_is_bad_input(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_metric(text)


def test_numbers_that_a_command_writes_to_its_result_file_are_kept() -> None:
    extras = run_command(writes('{"loss": 0.25, "steps": 3}'))
    assert {name: extras[name] for name in set(extras) - OWN} == {"loss": 0.25, "steps": 3.0}


def test_a_command_may_write_its_own_time_and_is_believed() -> None:
    assert run_command(writes('{"call_us": 12.5}'))["call_us"] == 12.5


def test_an_empty_object_is_a_result_without_numbers() -> None:
    assert set(run_command(writes("{}"))) == OWN


@pytest.mark.parametrize("text", ["", "{", "loss = 1", "{'a': 1}"])
def test_a_result_that_is_not_json_fails_the_trial_in_words(text: str) -> None:
    with pytest.raises(TrialFailed, match=r"what the command wrote to \$ASSAY_RESULT is not JSON: "):
        run_command(writes(text))


def test_a_result_that_is_not_even_text_fails_the_trial_in_words() -> None:
    with pytest.raises(TrialFailed, match="is not JSON"):
        run_command(shell(r"""printf '\377\376' > "$ASSAY_RESULT" """))


@pytest.mark.parametrize(
    "content",
    [
        "[1, 2]",
        "3",
        "null",
        '{"a": {"b": 1}}',
        '{"a": [1]}',
        '{"a": "1"}',
        '{"a": true}',
        '{"a": null}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        json.dumps({"a": 10**400}),
    ],
)
def test_a_result_that_is_not_names_and_numbers_fails_the_trial_in_words(content: str) -> None:
    with pytest.raises(TrialFailed, match="is not an object of names and numbers"):
        run_command(writes(content))


def test_the_result_file_of_one_run_is_not_seen_by_the_next(tmp_path: Path) -> None:
    once = Command(
        argv=(
            "sh",
            "-c",
            '[ -e "$1" ] && exit 0; touch "$1"; echo \'{"a": 1}\' > "$ASSAY_RESULT"',
            "sh",
            f"{tmp_path}/x",
        )
    )
    assert "a" in run_command(once)
    assert "a" not in run_command(once)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_command(writes("{}"))
    with pytest.raises(TrialFailed):
        run_command(shell("exit 1"))
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_exits_with_an_error_fails_and_the_end_of_its_output_is_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(TrialFailed, match=r"^the command exited with 7$") as caught:
        run_command(shell("echo on the way; exit 7", found=r"(\d+)"))
    assert caught.value.exit_code == 4
    assert "on the way" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_command_killed_by_a_signal_says_by_which(number: signal.Signals) -> None:
    with pytest.raises(TrialFailed, match=rf"^the command was killed by {number.name}$"):
        run_command(shell(f"ulimit -c 0; kill -{int(number)} $$"))


def test_a_command_killed_by_a_signal_without_a_name_says_its_number() -> None:
    number = signal.SIGRTMIN + 1
    killed = f"import os; os.kill(os.getpid(), {number})"
    with pytest.raises(TrialFailed, match=rf"^the command was killed by signal {number}$"):
        run_command(Command(argv=(sys.executable, "-S", "-c", killed)))


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [("missing", None, "No such file or directory"), ("plain", 0o644, "Permission denied")],
)
def test_a_command_that_cannot_be_started_is_refused_with_the_reason(
    tmp_path: Path, name: str, mode: int | None, reason: str
) -> None:
    path = tmp_path / name
    if mode is not None:
        path.touch(mode)
    with pytest.raises(MachineCannot, match=rf"^the command '{path}' cannot be started: {reason}$"):
        run_command(Command(argv=(str(path),)))


def test_a_command_runs_in_the_working_folder_with_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_SIZE", "17")
    assert run_command(shell("touch here; echo $MY_SIZE", size=r"(\d+)"))["size"] == 17.0
    assert (tmp_path / "here").exists()
    assert RESULT_VARIABLE not in os.environ
