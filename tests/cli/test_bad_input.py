"""What makes no sense gets one clear line and the right exit code, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main, save_crash_report

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay

CASES = [
    (["run", "softmx"], 2, "Did you mean softmax"),
    (["run", "softmax@nump"], 2, "Did you mean softmax@numpy"),
    (["run"], 2, "Nothing to run"),
    (["rum"], 2, "Did you mean run"),
    (["run", "softmax", "--device", "cpu:0,cpu:0"], 2, "The same device is named twice: cpu:0"),
    (["run", "softmax", "--device", "tpu"], 2, "'tpu' is not a device"),
    (["run", "softmax", "--device", "cpu:99"], 3, "There is no device cpu:99"),
    (["run", "softmax", "--gpus", "0"], 3, "There is no GPU 0 here"),
    (["run", "softmax", "--gpus", "0", "--device", "cpu"], 2, "either --gpus or --device"),
    (["run", "softmax", "--duration", "-5"], 2, "'-5' is not a duration"),
    (["run", "softmax", "--duration", "0"], 2, "longer than zero"),
    (["run", "softmax", "--duration", "nan"], 2, "not a duration"),
    (["run", "softmax", "--duration", "99y"], 2, "not a duration"),
    (["run", "softmax", "--duration", "1e9"], 2, "longer than thirty days"),
    (["run", "softmax", "--precision", "0"], 2, "out of range"),
    (["run", "softmax", "--repeat", "0"], 2, "--repeat"),
    (["run", "softmax", "--isolation", "ful"], 2, "Did you mean full"),
    (["run", "softmax", "--device", "cpu", "--cpu-groups", "1000"], 3, "1000 groups of cores need 1000 physical cores"),
    (["run", "softmax", "--param", "rows"], 2, "NAME=VALUE"),
    (["run", "softmax", "--param", "row=3"], 2, "Did you mean rows"),
    (["run", "softmax", "--param", "rows=0"], 2, "rows is a size of at least 1"),
    (["run", "softmax", "--param", "rows=99999999999999999999"], 2, "cannot be meant"),
    (["run", "softmax", "--param", "dtype=int8"], 2, "has no dtype 'int8'"),
    (["run", "softmax", "--param", "distribution=zeroes"], 2, "Did you mean zeros"),
    (["run", "flash_attention@torch", "--param", "backend=flush"], 2, "Did you mean flash"),
    (["run", "softmax", "--param", "rows=many"], 2, "must be a whole number"),
    (["run", "softmax", "--budget", "0.5"], 2, "too short"),
    (["run", "softmax", "--", "true"], 2, "either workloads or a command"),
    (["run", "--", "no-such-command-anywhere"], 2, "Command 'no-such-command-anywhere' not found"),
    (["run", "--metric", "x", "--", "true"], 2, "NAME=REGEX"),
    (["run", "--metric", "x=(", "--", "true"], 2, "not a regular expression"),
    (["run", "--metric", "x=y", "--", "true"], 2, "needs a group"),
    (["run", "gone.py:work"], 2, "gone.py cannot be read"),
    (["run", "bad.py:segfalt"], 2, "Did you mean segfault"),
    (["run", "no_such_module:work"], 2, "no module 'no_such_module'"),
    (["run", "softmax", "--options", "gone.yaml"], 2, "gone.yaml"),
    (["run", "softmax", "--no-such-flag"], 2, "No such option"),
    (["threshold", "run", "--device", "cpu", "--sizes", "abc"], 2, "--sizes takes positive integers"),
    (["threshold", "run", "--device", "cpu", "--sizes", "٣"], 2, "--sizes takes positive integers"),
    (["threshold", "run", "--device", "cpu", "--sizes", "0"], 2, "--sizes takes positive integers"),
    (["run", "softmax", "--output-dir", "n" * 300], 2, "its name is too long"),
    (["run", f"{'n' * 300}.py:work"], 2, "name too long"),
    (["compare", "n" * 300, "n" * 300], 2, "name is too long"),
    (["run", "softmax", "--options", "n" * 300], 2, "its name is too long"),
    (["run", "\udcff.py:work"], 2, "Argument 2 ('\\udcff.py:work') is not UTF-8 text"),
    (["history", "list", "--since", "99999999999d"], 2, "out of range for a date"),
    (["history", "list", "--since", "0000-00-00"], 2, "--since: 0000-00-00 is not a time"),
    (["run", "softmax", "--on", "slurm:a\nb"], 2, "control character '\\n'"),
    (["run", "softmax", "--on", "slurm", "--account", "a\nb"], 2, "control character '\\n'"),
    (["run", "softmax", "--on", "slurm", "--sbatch-arg=--qos=a\rb"], 2, "control character '\\r'"),
    (["run", "softmax", "--on", "slurm", "--remote-python", "a\x1bb"], 2, "control character '\\x1b'"),
    (["report", "nowhere"], 2, "nowhere is not there; no run yet?"),
    (["resume", "nowhere"], 2, "nowhere is not there; no run yet?"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "words"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input_gets_one_line_and_its_exit_code(
    arguments: list[str],
    code: int,
    words: str,
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["assay"])
        assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.startswith("assay: ")
    assert len(printed.err.strip().splitlines()) == 1
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [1, 2", "mine.yaml"),
        ("\tworkloads: x", "mine.yaml"),
        ("workloads: softmax\nworkloads: gemm\n", "mine.yaml"),
        ("durration: 5", "Did you mean duration"),
        ("- 1\n- 2\n", "must map option names"),
        ("duration: [1, 2]", "takes one value"),
        ("duration: soon", "'soon' is not a duration"),
        ("repeat: -1", "repeat"),
        ("options: other.yaml", "an options file cannot name another one"),
        ("workloads: null", "workloads takes a value"),
        ("param: {rows: 64}", "param takes a value"),
        ('workloads: ["a\\0b"]', "a NUL character"),
        ('output-dir: "\\ud800"', "half of a surrogate pair"),
        (f"output-dir: {'n' * 300}", "its name is too long"),
    ],
)
def test_a_file_of_options_that_makes_no_sense_is_bad_input(
    content: str, words: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "mine.yaml").write_text(content)
    assert main(["run", "softmax", "--device", "cpu", "--dry-run", "--options", "mine.yaml"]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert len(printed.strip().splitlines()) == 1


@pytest.mark.parametrize("place", ["/proc/nothing/here", "bad.py", "bad.py/below"])
def test_an_output_folder_that_cannot_be_made_is_said_in_one_line(assay: Assay, place: str) -> None:
    ran = assay("run", "bad.py:fine", "--device", "cpu:0", "--duration", "0.2", "--output-dir", place)
    assert ran.code in {2, 3}
    assert place.rsplit("/", maxsplit=1)[-1] in ran.err or "bad.py" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.full
def test_a_full_disk_ends_the_run_with_what_was_measured_kept(assay: Assay, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs privileges")
    try:
        ran = assay(
            "run", "bad.py:fine", "--device", "cpu:0", "--duration", "0.3", "--restarts", 1, "--repeat", 60,
            "--output-dir", disk / "runs",
        )  # fmt: skip
        assert ran.code == 3, ran.err
        last = ran.err.strip().splitlines()[-1]
        assert last.startswith("assay: ")
        assert "full" in last
        assert "goes on" in last
        folder = (disk / "runs" / "latest").resolve()
        for line in (folder / "records.jsonl").read_bytes().split(b"\n")[:-1]:
            assert line.startswith(b"{")
            assert line.endswith(b"}")
        assert [p.name for p in folder.rglob("*") if "tmp" in p.name] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("count", ["2147483648", "9223372036854775808", "9" * 30])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "softmax@numpy", "--repeat"],
        ["run", "softmax@numpy", "--ranks"],
        ["run", "softmax@numpy", "--restarts"],
        ["run", "softmax@numpy", "--benchmark-runs"],
        ["run", "softmax@numpy", "--cpu-groups"],
        ["contention", "run", "--workers-per-device"],
        ["contention", "run", "--repeat"],
        ["contention", "matrix", "--repeat"],
        ["power", "characterize", "--repeat"],
        ["power", "sweep", "gemm", "--restarts"],
        ["scaling", "run", "--nproc"],
        ["scaling", "run", "--quick"],
        ["scaling", "predict", "--embed-dim"],
        ["scaling", "test", "--nproc"],
        ["threshold", "run", "--processes"],
        ["history", "list", "--limit"],
        ["trace", "softmax@numpy", "--calls"],
    ],
    ids=" ".join,
)
def test_a_count_that_cannot_be_meant_is_refused_before_anything_is_planned(
    words: list[str], count: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, count]) == 2
    printed = capsys.readouterr()
    assert "must be between" in printed.err or "is not in the range" in printed.err
    assert words[-1] in printed.err
    assert list(workplace.iterdir()) == [workplace / "bad.py"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "pipe.py:work"], "pipe.py is no file of Python code"),
        (["time", "pipe.py:work"], "pipe.py is no file of Python code"),
        (["report", "pipe.jsonl"], "pipe.jsonl is not a run folder"),
        (["monitor", "pipe.jsonl", "--duration", "0.1", "--host-only"], "pipe.jsonl is no plain file"),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_refused_instead_of_waited_for(
    arguments: list[str], words: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(workplace / "pipe.py")
    os.mkfifo(workplace / "pipe.jsonl")
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("size", ["4k", "8k,nr_inodes=4"])
def test_a_disk_that_is_full_before_the_plan_is_kept_has_nothing_of_the_run(
    assay: Assay, tmp_path: Path, size: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs privileges")
    try:
        ran = assay("run", "bad.py:fine", "--device", "cpu:0", "--duration", "0.3", "--output-dir", disk / "runs")
        assert (ran.code, list(disk.iterdir())) == (3, []), ran.err
        assert ran.err.startswith("assay: The disk is full")
        assert len(ran.err.strip().splitlines()) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_defect_whose_traceback_cannot_be_kept_is_still_called_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by our own hand")

    monkeypatch.setattr("assay.machine.detect.detect", broken)
    monkeypatch.setattr("assay.cli.main.crash_folder", lambda: tmp_path / "gone")
    assert main(["run", "softmax"]) == 70
    assert "could not be kept" in capsys.readouterr().err
    monkeypatch.setattr("assay.cli.main.crash_folder", lambda: tmp_path)
    assert "Please report it with" in save_crash_report(ValueError("half a character: \udcff"))
    (kept,) = tmp_path.iterdir()
    assert "half a character: \\udcff" in kept.read_text()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 3, "not enough memory"),
        (OSError(errno.EROFS, "read-only", "/some/where"), 3, "/some/where is not writable"),
        (OSError(errno.ENAMETOOLONG, "long", "/some/where"), 2, "/some/where could not be used: its name is too long"),
    ],
)
def test_what_the_machine_has_not_is_no_defect(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("assay.machine.detect.detect", fails)
    assert main(["run", "softmax"]) == code
    assert words in capsys.readouterr().err


def test_a_defect_of_ours_is_kept_and_called_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], assay_home: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by our own hand")

    monkeypatch.setattr("assay.machine.detect.detect", broken)
    assert main(["run", "softmax"]) == 70
    said = capsys.readouterr().err
    assert "This is a defect of Assay" in said
    (kept,) = (assay_home / "defects").iterdir()
    assert str(kept) in said
    assert "by our own hand" in kept.read_text()


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom assay.cli.main import main\nmain(['--help'])\n"
        "heavy = {'numpy', 'torch', 'matplotlib', 'pydantic', 'pynvml', 'scipy', 'rich', 'sqlalchemy'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "GPU benchmarks you can trust." in done.stdout


def test_a_closed_pipe_is_no_defect(workplace: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m assay list workloads --json | head -c 1",
        shell=True, capture_output=True, text=True, check=False, env=dict(os.environ), cwd=workplace,
    )  # fmt: skip
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr


def test_output_that_nobody_reads_ends_it_as_other_programs_and_as_no_gate(workplace: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", "assay", "list", "workloads", "--json"],
        stdout=writes, stderr=subprocess.PIPE, text=True, check=False, env=dict(os.environ), cwd=workplace,
    )  # fmt: skip
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")
