"""``assay time``: a number for a function as it is, a verdict for several, and one sentence for whatever goes wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay

MORE = """
import ctypes, itertools, os, subprocess, sys, threading

def double():
    return sum(range(1000)) + sum(range(1000))

def spins():
    while True:
        pass

def stuck():
    open("stuck.txt", "w").close()
    sum(itertools.repeat(1))

calls = itertools.count()

def stuck_later():
    if next(calls) > 1000:
        sum(itertools.repeat(1))

def prints():
    print("hello \\x1b[31mworld")

def prints_and_fails():
    print("the last words")
    raise RuntimeError("then this")

def forks():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def forks_and_returns():
    os.fork()

def forgets_a_nameless_child_and_is_stuck():
    subprocess.Popen(["sleep", "1007"], env={}, start_new_session=True)
    stuck()

def closes_everything():
    os.closerange(3, 256)

def waits_for_itself():
    pass

waits_for_itself.synchronize = lambda: sum(range(20000))

def scaled(n=1):
    return sum(range(1000 * n))

def started():
    number = len(os.listdir("starts")) + 1 if os.path.isdir("starts") else 1
    os.makedirs("starts", exist_ok=True)
    open(f"starts/{number}", "w").close()
    return number

def dies_in_the_second_process():
    global mine
    if "mine" not in globals():
        mine = started()
    if mine == 2:
        print("the last words")
        os._exit(9)
"""

QUICK = ("--budget", "0.3", "--processes", "2")


@pytest.fixture(autouse=True)
def more(workplace: Path) -> None:
    (workplace / "more.py").write_text(MORE)


@pytest.mark.full
def test_a_function_is_timed_with_its_interval_and_the_way_it_was_obtained(assay: Assay) -> None:
    ran = assay("time", "bad.py:fine", *QUICK)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "bad.py:fine on cpu, warm cache"
    assert re.match(r"No interference detected\.|\S+ Disturbed: ", lines[1])
    assert lines[3].split() == ["time", "typical", "±", "interval", "what", "it", "is"]
    assert re.match(r"call +[\d.]+ [µn]s ", lines[5])
    assert "wall: on a CPU a call returns when its work is done" in ran.out
    assert "\x1b" not in ran.out + ran.err
    assert "over 2 fresh processes, whose medians are" in " ".join(ran.out.split())
    assert "process 2 of 2: timing bad.py:fine, for 0.1 s at most …" in ran.err


@pytest.mark.full
def test_a_quick_look_says_on_its_face_that_it_is_of_one_process(assay: Assay) -> None:
    ran = assay("time", "bad.py:fine", "--budget", "0.3", "--processes", "1")
    assert ran.code == 0, ran.err
    assert "of this one process and this window" in " ".join(ran.out.split())
    assert "timing bad.py:fine, for 0.3 s at most …" in ran.err


def test_by_default_five_fresh_processes_are_timed_and_each_is_in_the_json(assay: Assay, workplace: Path) -> None:
    ran = assay("time", "more.py:dies_in_the_second_process", "--budget", "0.5", "--json")
    assert ran.code == 4
    assert len(list((workplace / "starts").iterdir())) == 5
    assert (ran.data["scope"], ran.data["processes"]) == ("run", 4)
    measurement = ran.data["measurement"]
    assert measurement["call_us"]["scope"] == "run"
    assert "4 processes" in measurement["call_us"]["method"]
    assert [each["status"] for each in measurement["by_process"]] == ["ok", "failed", "ok", "ok", "ok"]
    assert measurement["by_process"][0]["times"]["call_us"]["scope"] == "process"
    assert "exit code 9" in measurement["by_process"][1]["reason"]
    assert "  | the last words" in ran.err
    assert ran.err.splitlines()[-1] == "assay: 1 of 5 processes failed; the times are those of the other 4."


@pytest.mark.full
def test_one_process_has_its_own_scope_in_the_json(assay: Assay) -> None:
    ran = assay("time", "bad.py:fine", "--budget", "0.3", "--processes", "1", "--json")
    assert (ran.data["scope"], ran.data["processes"]) == ("process", 1)
    assert ran.data["measurement"]["call_us"]["scope"] == "process"
    assert ran.data["measurement"]["by_process"] == []


@pytest.mark.full
def test_the_result_as_json_is_all_there_is_on_stdout(assay: Assay) -> None:
    ran = assay("time", "bad.py:prints_garbage", *QUICK, "--json")
    assert ran.code == 0, ran.err
    assert ran.data["schema"] == 1
    assert ran.data["comparison"] is None
    assert ran.data["measurement"]["name"] == "bad.py:prints_garbage"
    assert ran.data["measurement"]["call_us"]["value"] > 0
    assert ran.data["disturbance"]["observed_s"] > 0
    assert {"outside_cores", "complaints"} <= set(ran.data["disturbance"])
    assert "bytes while it was timed" in ran.err


@pytest.mark.full
def test_two_functions_are_compared_with_the_first_as_the_baseline(assay: Assay) -> None:
    ran = assay("time", "bad.py:fine", "more.py:double", "--budget", "3", "--processes", "3", "--json")
    assert ran.code == 0, ran.err
    assert ran.data["measurement"] is None
    comparison = ran.data["comparison"]
    assert comparison["first"] == "bad.py:fine"
    assert comparison["others"][0]["verdict"] == "slower"
    assert comparison["processes"] == 3
    assert [set(each["ratios"]) for each in comparison["by_process"]] == [{"more.py:double"}] * 3
    assert comparison["first_us"]["scope"] == "run"
    shown = assay("time", "more.py:double", "bad.py:fine", "--budget", "3", "--processes", "3")
    assert re.search(r"✓ bad.py:fine .* faster", shown.out)


@pytest.mark.full
def test_a_function_can_be_compared_with_itself(assay: Assay) -> None:
    ran = assay("time", "bad.py:fine", "bad.py:fine", *QUICK, "--json")
    assert ran.code == 0, ran.err
    assert [o["name"] for o in ran.data["comparison"]["others"]] == ["bad.py:fine (2)"]


@pytest.mark.full
def test_parameters_are_handed_to_the_function(assay: Assay) -> None:
    ran = assay("time", "more.py:scaled", "--param", "n=3", *QUICK, "--json")
    assert ran.code == 0, ran.err


@pytest.mark.full
def test_a_workload_is_checked_before_it_is_timed(assay: Assay) -> None:
    ran = assay("time", "softmax@numpy", "--param", "rows=16", "--param", "cols=64", *QUICK, "--json")
    assert ran.code == 0, ran.err
    (facts,) = ran.data["facts"]
    assert facts["check"]["error"] <= facts["check"]["tolerance"]
    assert ran.data["measurement"]["device"] == "cpu"


@pytest.mark.full
def test_a_wrong_workload_publishes_no_time(assay: Assay, workplace: Path) -> None:
    (workplace / "sitecustomize.py").write_text(
        "import dataclasses\n"
        "import assay.worker.subjects as subjects\n"
        "from assay.core.results import Check\n"
        "own = subjects.prepare_subject\n"
        "wrong = lambda: Check(error=1.0, tolerance=1e-6, measure='relative error')\n"
        "subjects.prepare_subject = lambda *a, **k: dataclasses.replace(own(*a, **k), check=wrong)\n"
    )
    ran = assay("time", "softmax@numpy", *QUICK, PYTHONPATH=str(workplace))
    assert ran.code == 4
    assert ran.out == ""
    assert "softmax@numpy is wrong: its relative error against the float64 reference is 1" in ran.err


@pytest.mark.full
def test_a_function_that_says_how_to_wait_is_timed_with_the_waiting(assay: Assay) -> None:
    ran = assay("time", "more.py:waits_for_itself", "bad.py:tiny", *QUICK, "--json")
    assert ran.code == 0, ran.err
    assert ran.data["comparison"]["others"][0]["ratio"] < 0.1


FAILURES = [
    ("bad.py:raises", 4, r"bad.py:raises raised ValueError: the moon is in the wrong phase \(line \d+ of bad.py\)"),
    ("bad.py:asks_to_leave", 4, r"bad.py:asks_to_leave raised SystemExit: 3 \(line \d+ of bad.py\)"),
    ("bad.py:eats_memory", 4, r"raised MemoryError: cannot allocate 1 TiB"),
    ("bad.py:leaves", 4, r"bad.py:leaves: the process ended without an answer \(exit code 7\)"),
    ("bad.py:segfault", 4, r"the process died of SIGSEGV: a segmentation fault"),
    ("bad.py:killed", 4, r"the process died of SIGKILL"),
    ("bad.py:hangs", 4, r"bad.py:hangs has not returned within 0.2 s"),
    ("more.py:spins", 4, r"more.py:spins has not returned within 0.2 s"),
    ("more.py:stuck", 4, r"more.py:stuck has not returned within 0.2 s, and could not be interrupted; it was ended"),
    ("more.py:stuck_later", 4, r"a call returned at first, and later one did not; the process was ended"),
    ("more.py:forks_and_returns", 4, r"forks, and the copy comes back from the call too"),
    ("more.py:closes_everything", 4, r"the process ended without an answer \(exit code 1\)"),
    ("bad.py:never_awaited", 2, r"only makes a coroutine or generator when called"),
]


@pytest.mark.parametrize(("target", "code", "words"), FAILURES, ids=[target for target, _, _ in FAILURES])
def test_what_goes_wrong_is_said_in_one_sentence_and_nothing_survives(
    target: str, code: int, words: str, assay: Assay, assay_home: Path
) -> None:
    ran = assay("time", target, "--timeout", "0.2", "--budget", "0.2")
    assert ran.code == code
    assert ran.out == ""
    last = ran.err.strip().splitlines()[-1]
    assert last.startswith("assay: ")
    assert re.search(words, last)
    assert "Traceback" not in ran.err
    assert survivors(assay_home) == []
    assert list((assay_home / "leases").iterdir()) == []


@pytest.mark.full
def test_a_function_that_forks_and_waits_is_timed(assay: Assay) -> None:
    assert assay("time", "more.py:forks", *QUICK).code == 0


def test_the_last_words_of_a_function_that_fails_are_shown(assay: Assay) -> None:
    ran = assay("time", "more.py:prints_and_fails")
    assert "  | the last words\nassay: more.py:prints_and_fails raised RuntimeError: then this" in ran.err


def test_a_file_that_cannot_be_loaded_is_said_with_the_line(assay: Assay, workplace: Path) -> None:
    (workplace / "broken.py").write_text("import os\n\n1 / 0\n\ndef f():\n    pass\n")
    ran = assay("time", "broken.py:f")
    assert ran.code == 4
    assert "broken.py:f cannot be loaded: ZeroDivisionError: division by zero (line 3 of broken.py)" in ran.err


@pytest.mark.full
def test_children_that_a_function_forgot_do_not_survive(assay: Assay) -> None:
    for name in ("forgets_a_child", "forgets_a_nameless_child"):
        assert assay("time", f"bad.py:{name}", *QUICK).code == 0
    assert assay("time", "more.py:forgets_a_nameless_child_and_is_stuck", "--timeout", "0.2").code == 4
    assert sleepers() == []


def sleepers() -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in found if line in {"sleep 1000", "sleep 1003", "sleep 1007"}]


def begun(workplace: Path) -> subprocess.Popen[str]:
    """Start timing a function that is stuck; return when it is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "time", "more.py:stuck"],
        cwd=workplace, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for((workplace / "stuck.txt").exists)
    return process


@pytest.mark.full
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_ends_everything_at_once(sent: signal.Signals, workplace: Path, assay_home: Path) -> None:
    process = begun(workplace)
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4
    assert err.strip().splitlines()[-1] == f"assay: Stopped by {sent.name}; nothing was measured."
    wait_for(lambda: not survivors(assay_home))


@pytest.mark.full
def test_killed_outright_it_leaves_nothing_behind(workplace: Path, assay_home: Path) -> None:
    process = begun(workplace)
    assert set(survivors(assay_home)) > {process.pid}
    assert list((assay_home / "leases").iterdir())
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    wait_for(lambda: not survivors(assay_home))
    wait_for(lambda: not list((assay_home / "leases").iterdir()))


@pytest.mark.full
def test_on_a_terminal_there_is_a_line_of_progress_that_goes_away_and_colour(workplace: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "90"}
        words = ("-m", "assay", "time", "bad.py:tiny", "bad.py:fine", "--budget", "2", "--processes", "2")
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - on a terminal of its own
    shown = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        shown += data
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = shown.decode()
    assert "process 2 of 2: timing bad.py:tiny and bad.py:fine …" in text
    assert "\r\x1b[2K\x1b[1m2 functions in turns on cpu" in text
    assert "\x1b[31m✗ bad.py:fine" in text


CASES = [
    (["time"], 2, "Nothing to time"),
    (["time", "softmx"], 2, "Did you mean softmax"),
    (["time", "gone.py:work"], 2, "gone.py cannot be read"),
    (["time", "bad.py:segfalt"], 2, "Did you mean segfault"),
    (["time", "bad.py:needs_an_argument"], 2, "needs n; set it with --param n=VALUE"),
    (["time", "softmax@triton", "--device", "cpu"], 2, "runs on cuda, not on cpu"),
    (["time", "bad.py:fine", "--device", "tpu"], 2, "--device must be cpu, cuda or cuda:N, not 'tpu'"),
    (["time", "bad.py:fine", "--precision", "0"], 2, "out of range"),
    (["time", "bad.py:fine", "--budget", "0"], 2, "longer than zero"),
    (["time", "bad.py:fine", "--processes", "0"], 2, "--processes"),
    (["time", "bad.py:fine", "--timeout", "soon"], 2, "'soon' is not a duration"),
    (
        ["time", "bad.py:fine", "--method", "guess"],
        2,
        "--method must be auto, graph, queue, trace or wall",
    ),
    (["time", "bad.py:fine", "--cache", "hot"], 2, "--cache must be cold or warm, not 'hot'"),
    (["time", "bad.py:fine", "--decide-on", "call"], 2, "--decide-on and --min-effect compare targets"),
    (["time", "bad.py:fine", "--min-effect", "2%"], 2, "--decide-on and --min-effect compare targets"),
    (["time", "bad.py:fine", "bad.py:tiny", "--precision", "2%"], 2, "--precision applies to one target"),
    (["time", "bad.py:fine", "--lock-clock", "0"], 2, "--lock-clock"),
    (["time", "bad.py:fine", "--param", "rows"], 2, "NAME=VALUE"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), CASES, ids=[" ".join(arguments) for arguments, _, _ in CASES])
def test_bad_input_gets_one_line_before_anything_is_started(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str], assay_home: Path
) -> None:
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert not (assay_home / "leases").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--device", "cpu", "--cache", "cold"), 2, "cache='cold' is for a GPU"),
        (("--device", "cpu", "--method", "graph"), 2, "method='graph' is for a GPU"),
        (("--device", "cpu", "--lock-clock", "1410"), 2, "lock_mhz is for a GPU"),
        (("bad.py:tiny", "--decide-on", "busy"), 2, "by='busy' is for a GPU"),
    ],
)
def test_what_only_a_gpu_can_is_said_in_one_line(options: tuple[str, ...], code: int, words: str, assay: Assay) -> None:
    ran = assay("time", "bad.py:fine", *options, *QUICK)
    assert ran.code == code
    assert words in ran.err.splitlines()[-1]


def test_cuda_that_is_not_there_is_the_machines_fault(assay: Assay) -> None:
    ran = assay("time", "bad.py:fine", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert ran.code == 3
    assert re.search("sees no CUDA GPU|cannot be imported here", ran.err)


@pytest.mark.full
def test_a_defect_of_ours_in_the_process_is_called_one_and_kept_whole(assay: Assay, workplace: Path) -> None:
    (workplace / "sitecustomize.py").write_text(
        "import sys\n"
        "if sys.argv[0] == '-m':\n"
        "    import assay.timing.measure as m\n"
        "    def broken(*_): raise ZeroDivisionError('by our own hand')\n"
        "    m.classify_shape = broken\n"
    )
    ran = assay("time", "bad.py:fine", *QUICK, PYTHONPATH=str(workplace))
    assert ran.code == 70, ran.err
    assert "This is a defect of Assay (AssayDefect: ZeroDivisionError: by our own hand)" in ran.err
    (kept,) = re.findall(r"with (\S+)\.", ran.err)
    with open(kept, encoding="utf-8") as file:  # noqa: PTH123 - its path is text
        assert "in broken" in file.read()


@pytest.mark.full
def test_the_result_can_be_read_back(assay: Assay) -> None:
    from assay.timing.results import Measurement

    ran = assay("time", "bad.py:fine", *QUICK, "--json")
    assert Measurement.model_validate(json.loads(ran.out)["measurement"]).name == "bad.py:fine"
