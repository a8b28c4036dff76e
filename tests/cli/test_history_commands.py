"""``assay history``: runs enter it by themselves, and its verbs show, draw, export and rebuild it."""

from __future__ import annotations

import csv
import io
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from assay.cli.history import import_into_history
from assay.cli.main import cli
from benchmarks.hostile_lines import verbs
from tests.store.folders import HOST, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from assay.store.history.database import HistoryLocation
    from tests.running import Assay
    from tests.store.postgres import Command

RUN = ("run", "bad.py:fine", "--device", "cpu:0", "--benchmark-runs", 3, "--no-monitor")


@pytest.fixture
def filled(history_place: HistoryLocation, command: Command, workplace: Path) -> Path:
    """A folder with three runs that are in the history, and one more on fakes."""
    for day, values in enumerate([(10.0, 1.0), (11.0, None), (12.0, 3.0)]):
        host = HOST.model_copy(update={"git_commit": f"c0ffee{day}", "git_dirty": False})
        write_run(workplace / "runs" / f"run-{day}", values, day=day, on=host)
    write_run(workplace / "runs" / "fakes", (99.0,), day=3, origin="fake")
    assert command("history", "import", workplace / "runs").code == 0
    return workplace / "runs"


@pytest.mark.full
def test_a_finished_run_enters_the_history_by_itself(
    history_place: HistoryLocation, assay: Assay, command: Command, workplace: Path
) -> None:
    assert assay(*RUN).err.count("history") == 0
    (run,) = command("history", "list", "--json").data["runs"]
    assert (run["experiment"], run["workloads"], run["points"]) == ("run", ["bad.py:fine"], 1)
    assert (run["origin"], run["hostname"]) == ("real", None)
    assert run["folder"] == str((workplace / "runs" / "latest").resolve())
    assert command("history", "import", "runs").out == "0 new runs with 0 points, 1 unchanged.\n"
    (course,) = command("history", "list", "--series", "--json").data["series"]
    assert (course["workload"], course["quantity"], course["runs"]) == ("bad.py:fine", "call_us", 1)
    assert course["project"] == workplace.name


def test_a_run_with_failures_enters_with_them_and_is_replaced_when_it_is_resumed(
    assay: Assay, command: Command, workplace: Path
) -> None:
    (workplace / "mine.py").write_text("import os\n\ndef work():\n    os.stat('mended')\n")
    assert assay("run", "mine.py:work", *RUN[2:]).code == 4
    (point,) = command("history", "show", "latest", "--json").data["points"][0]["points"]
    assert (point["value"], point["status"]) == (None, "failed")
    assert "mended" in point["reason"]
    (workplace / "mended").touch()
    assert assay("resume").code == 0
    (run,) = command("history", "list", "--json").data["runs"]
    assert (run["points"], run["failed"]) == (1, 0)
    (point,) = command("history", "show", "latest", "--json").data["points"][0]["points"]
    assert (point["value"] > 0, point["status"], point["reason"]) == (True, "ok", None)


@pytest.mark.full
def test_a_run_stays_out_of_the_history_where_that_is_asked_for(
    assay: Assay, assay_home: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = assay(*RUN, "--no-history")
    assert (ran.code, "history" in ran.err) == (0, False)
    monkeypatch.setenv("ASSAY_HISTORY", "off")
    import_into_history(workplace / "runs" / "latest")
    assert capsys.readouterr().err == ""
    assert not (assay_home / "history.sqlite").exists()


def test_switched_off_there_is_nothing_to_show(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HISTORY", "off")
    ran = command("history", "list")
    assert (ran.code, ran.err) == (2, "assay: The history is switched off: ASSAY_HISTORY is off.\n")


def test_every_measuring_verb_can_leave_a_run_out() -> None:
    offered = {path: [n for p in verb.params for n in p.secondary_opts] for path, verb in verbs(cli)}
    measuring = {path for path, names in offered.items() if "--no-monitor" in names} | {"resume", "energy run"}
    assert measuring >= {"run", "contention run", "contention matrix", "scaling run", "scaling predict"}
    assert {path for path, names in offered.items() if "--no-history" in names} == measuring


def test_runs_are_listed_and_filtered(filled: Path, command: Command) -> None:
    def ids(*words: str) -> list[str]:
        return [run["folder"].rpartition("/")[2] for run in command("history", "list", "--json", *words).data["runs"]]

    assert ids() == ["fakes", "run-2", "run-1", "run-0"]
    assert ids("--origin", "real", "--limit", "2") == ["run-2", "run-1"]
    assert ids("--since", "2026-01-02T12:00:00+00:00") == ["fakes", "run-2"]
    assert ids("--since", "1h") == []
    assert ids("--workload", "softmax@numpy", "--limit", "1") == ["fakes"]
    shown = command("history", "list", "--limit", "1")
    assert "1 run; there are more, see --limit." in shown.out
    assert "fake numbers" in shown.out


def test_a_run_and_a_series_are_shown(filled: Path, command: Command) -> None:
    run = command("history", "show", filled / "run-1", "--json").data
    assert [point["points"][0]["status"] for point in run["points"]] == ["ok", "failed"]
    series = command("history", "show", "softmax@numpy", "rows=1", "--json").data
    assert [point["value"] for point in series["points"]] == [1.0, None, 3.0]
    assert [point["git_commit"] for point in series["points"]] == ["c0ffee0", "c0ffee1", "c0ffee2"]
    everything = command("history", "show", series["key"][:6], "--origin", "all", "--json").data
    assert len(everything["points"]) == 3
    text = command("history", "show", series["key"]).out
    assert "failed: it fell over" in " ".join(text.split())
    assert "c0ffee2" in text


def test_a_series_is_drawn(filled: Path, command: Command, workplace: Path) -> None:
    drawn = command("history", "plot", "rows=0")
    assert drawn.code == 0
    (html,) = workplace.glob("history-*.html")
    assert "<svg" in html.read_text()
    assert f"Drawn: {html.name}" in drawn.err
    assert "the last value is 12.00 µs" in drawn.err
    assert command("history", "plot", "rows=0", "--output", "course.png").code == 0
    assert (workplace / "course.png").read_bytes().startswith(b"\x89PNG")


def test_points_are_exported(filled: Path, command: Command, workplace: Path) -> None:
    assert command("history", "export", "h.csv").code == 0
    printed = command("history", "export", "-", "--csv", "--workload", "softmax").out
    assert printed == (workplace / "h.csv").read_text()
    assert [row["value"] for row in csv.DictReader(io.StringIO(printed))] == ["10.0", "1.0", "11.0", "", "12.0", "3.0"]
    assert len(command("history", "export", "-", "--json", "--origin", "all").data["points"]) == 7


def test_an_export_to_a_pipe_is_read_from_it_and_leaves_it_a_pipe(
    filled: Path, command: Command, workplace: Path
) -> None:
    pipe = workplace / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        assert command("history", "export", pipe).code == 0
        assert reader.communicate()[0] == command("history", "export", "-").out
    assert pipe.is_fifo()


def test_a_history_is_rebuilt_from_the_folders(filled: Path, command: Command) -> None:
    refused = command("history", "import", "--rebuild", filled / "run-0")
    assert refused.code == 2
    assert "would forget 3 of 4 runs" in refused.err
    (filled / "run-2" / "plan.json").write_text("{")
    rebuilt = command("history", "import", "--rebuild", "--yes", filled)
    assert (rebuilt.code, rebuilt.out) == (2, "3 new runs with 5 points, 1 forgotten.\n")
    assert "run-2" in rebuilt.err
    assert "not valid JSON" in rebuilt.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show sofmax", "There is no run or series 'sofmax' in the history. Did you mean softmax?"),
        ("show softmax", "'softmax' is 2 series; name one by its key: "),
        ("plot rows=0 --output course.gif", "--output course.gif must be a .html or .png file."),
        ("plot rows=0 --origin simulated", "has no simulated numbers; --origin all shows what it has."),
        ("list --workload sofmax", "The history knows no workload 'sofmax'. Did you mean softmax"),
        ("list --gpu H200", "The history knows no GPU 'H200'."),
        ("list --since yesterday", "--since: yesterday is not a time; write a date (2026-11-01) or a period (12h"),
        ("export h.csv --csv --json", "--csv and --json exclude each other; give one."),
        ("import --yes runs", "--yes needs --rebuild."),
        ("import nowhere", "nowhere does not exist."),
        ("import empty", "No run was found in empty."),
        ("lst", "There is no command 'lst'. Did you mean list"),
    ],
)
def test_bad_input_is_one_sentence(words: str, said: str, command: Command, workplace: Path, assay_home: Path) -> None:
    write_run(workplace / "runs" / "run", (1.0, 2.0))
    (workplace / "empty").mkdir()
    command("history", "import", "runs")
    ran = command("history", *words.split())
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_an_empty_history_says_how_it_is_filled(command: Command) -> None:
    ran = command("history", "list")
    assert (ran.code, ran.out) == (0, "")
    assert "`assay history import DIR` adds older ones" in ran.err
    assert command("history", "list", "--json").data == {"schema": 1, "runs": []}
