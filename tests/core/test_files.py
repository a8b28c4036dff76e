"""Files that survive kills, full disks and each other."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core import files, yaml_input
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import StartPython

LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20), max_size=5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounting.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounting.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_line_appended_is_a_line_read(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    files.append_line(path, '{"a": 1}')
    files.append_line(path, "")
    files.append_line(path, "größer ± \r\x85\u2028")
    assert files.read_lines(path) == ['{"a": 1}', "", "größer ± \r\x85\u2028"]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert files.read_lines(tmp_path / "none.jsonl") == []


def test_a_line_with_a_newline_inside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="newline"):
        files.append_line(tmp_path / "a", "one\ntwo")
    assert not (tmp_path / "a").exists()


@settings(max_examples=60, deadline=None)
@given(lines=LINES, new=st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=9))
def test_a_file_cut_at_any_byte_keeps_its_complete_lines_and_takes_new_ones(lines: list[str], new: str) -> None:
    whole = "".join(f"{line}\n" for line in lines).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.jsonl"
        for size in range(len(whole) + 1):
            path.write_bytes(whole[:size])
            complete = lines[: whole[:size].count(b"\n")]
            assert files.read_lines(path) == complete
            if size % 7 == len(whole) % 7:
                files.append_line(path, new)
                assert files.read_lines(path) == [*complete, new]
                assert path.read_bytes() == "".join(f"{line}\n" for line in [*complete, new]).encode()


@pytest.mark.parametrize("torn", [1, 4095, 4096, 4097, 20_000])
def test_a_truncated_line_of_any_length_is_cut_off(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"whole\n" + b"x" * torn)
    files.append_line(path, "new")
    assert path.read_bytes() == b"whole\nnew\n"
    path.write_bytes(b"x" * torn)
    files.append_line(path, "new")
    assert path.read_bytes() == b"new\n"


WRITER = """
import sys
from pathlib import Path
from assay.core.files import append_line
path, writer, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(int(sys.argv[4])):
    append_line(path, f"{writer} {number} " + "x" * (size * (1 + number % 3)) + " end")
    print(number, flush=True)
"""


def _check_whole(line: str, size: int) -> tuple[str, int]:
    writer, number, body, end = line.split(" ")
    assert end == "end"
    assert body == "x" * (size * (1 + int(number) % 3))
    return writer, int(number)


def test_a_writer_killed_at_any_moment_loses_no_line_it_was_promised(tmp_path: Path, start_python: StartPython) -> None:
    path = tmp_path / "records.jsonl"
    chance = random.Random(20261115)
    size = 400_000
    promised: set[tuple[str, int]] = set()
    for writer in map(str, range(8)):
        process = start_python(WRITER, path, writer, size, 10_000)
        assert process.stdout is not None
        promised.add((writer, int(process.stdout.readline())))
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        promised.update((writer, int(number)) for number in process.stdout.read().split())
        process.wait()
        found = {_check_whole(line, size) for line in files.read_lines(path)}
        assert promised <= found
    files.append_line(path, "last 0 " + "x" * size + " end")
    assert path.read_bytes().endswith(b" end\n")
    assert promised < {_check_whole(line, size) for line in files.read_lines(path)}


def test_two_appenders_at_once_never_mix_their_lines(tmp_path: Path, start_python: StartPython) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"torn")
    writers = [start_python(WRITER, path, name, 3000, 60) for name in ("a", "b")]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    found = [_check_whole(line, 3000) for line in files.read_lines(path)]
    assert sorted(found) == sorted((name, number) for name in ("a", "b") for number in range(60))
    assert [number for name, number in found if name == "a"] == list(range(60))


def test_an_appender_waits_for_another_that_is_not_done(tmp_path: Path) -> None:
    path = tmp_path / "a"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    appending = threading.Thread(target=files.append_line, args=(path, "second"))
    with files.file_lock(descriptor):
        os.write(descriptor, b"fir")
        appending.start()
        appending.join(0.05)
        assert appending.is_alive()
        os.write(descriptor, b"st\n")
    appending.join(20)
    os.close(descriptor)
    assert files.read_lines(path) == ["first", "second"]


def test_a_file_system_without_locks_is_used_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr("fcntl.flock", no_locks)
    files.append_line(tmp_path / "a", "line")
    assert files.read_lines(tmp_path / "a") == ["line"]


def test_a_full_disk_is_said_in_one_sentence_and_keeps_what_was_written(small_disk: Path) -> None:
    path = small_disk / "records.jsonl"
    line = "x" * 5000
    for _ in range(12):
        files.append_line(path, line)
    with pytest.raises(MachineCannot, match=r"^The disk is full: .*records\.jsonl could not be written"):
        files.append_line(path, line * 2)
    assert path.read_bytes() == f"{line}\n".encode() * 12


def test_content_in_parts_is_put_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    files.replace_from_chunks(path, (b"%d\n" % number for number in range(3)))
    assert path.read_bytes() == b"0\n1\n2\n"
    broken = (b"%d" % (1 // number) for number in (1, 0))
    with pytest.raises(ZeroDivisionError):
        files.replace_from_chunks(path, broken)
    assert path.read_bytes() == b"0\n1\n2\n"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_plain_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.replace_atomically(pipe, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    file.write_bytes(b"old")
    link.symlink_to(file)
    files.replace_atomically(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"


def test_a_full_disk_keeps_the_old_content_of_a_file_to_be_replaced(small_disk: Path) -> None:
    path = small_disk / "plan.json"
    files.replace_atomically(path, b"old")
    with pytest.raises(MachineCannot, match="The disk is full"):
        files.replace_atomically(path, b"x" * 100_000)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in small_disk.iterdir()] == ["plan.json"]


def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    files.append_line(path, "first")
    write = os.write
    room = [3]

    def little_room(descriptor: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "full")
        taken = write(descriptor, data[: room[0]])
        room[0] = 0
        return taken

    monkeypatch.setattr(os, "write", little_room)
    with pytest.raises(MachineCannot, match="The disk is full"):
        files.append_line(path, "second")
    monkeypatch.undo()
    assert path.read_bytes() == b"first\n"


@pytest.mark.parametrize("step", ["os.write", "os.fsync", "pathlib.Path.replace"])
def test_a_replacement_that_fails_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "plan.json"
    files.replace_atomically(path, b"old")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(step, fails)
    with pytest.raises(MachineCannot, match="The disk is full"):
        files.replace_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_replacement_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.replace_atomically(tmp_path / "plan.json", b"new")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_replacing_gives_the_new_content_and_the_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    umask = os.umask(0o027)
    try:
        files.replace_atomically(path, b"old")
        files.replace_atomically(path, b"new")
    finally:
        os.umask(umask)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


REPLACER = """
import sys
from pathlib import Path
from assay.core.files import replace_atomically
for number in range(10_000):
    replace_atomically(Path(sys.argv[1]), f"{number} ".encode() * 100_000)
    print(number, flush=True)
"""


def test_a_replacer_killed_at_any_moment_leaves_one_whole_content(tmp_path: Path, start_python: StartPython) -> None:
    path = tmp_path / "machine.json"
    chance = random.Random(4)
    for _ in range(4):
        process = start_python(REPLACER, path)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.wait()
        words = path.read_text().split()
        assert len(words) == 100_000
        assert len(set(words)) == 1


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.ENOSPC, MachineCannot, "The disk is full"),
        (errno.EDQUOT, MachineCannot, "disk quota"),
        (errno.EACCES, MachineCannot, "not writable"),
        (errno.EPERM, MachineCannot, "not writable"),
        (errno.EROFS, MachineCannot, "not writable"),
        (errno.EIO, MachineCannot, "input/output error"),
        (errno.EISDIR, BadInput, "is a folder"),
        (errno.ENOENT, BadInput, "does not exist"),
        (errno.ENAMETOOLONG, BadInput, "too long"),
    ],
)
def test_what_the_system_says_becomes_one_sentence_naming_the_path(
    number: int, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught, files.translate_os_errors(Path("/runs/a")):
        raise OSError(number, os.strerror(number))
    sentence = str(caught.value)
    assert "/runs/a" in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_an_error_that_is_not_about_files_is_left_alone() -> None:
    with pytest.raises(BrokenPipeError), files.translate_os_errors(Path("/runs/a")):
        raise BrokenPipeError(errno.EPIPE, "gone")


def test_a_file_where_a_folder_is_needed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.touch()
    for path in (file / "a.json", file / "b" / "a.json"):
        with pytest.raises(BadInput, match=rf"^{file} is a file, but a folder is needed there\.$"):
            files.replace_atomically(path, b"")
        with pytest.raises(BadInput, match=rf"^{file} is a file, but a folder is needed there\.$"):
            files.append_line(path, "")


def test_a_folder_where_a_file_is_needed_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a folder, but a file is needed there"):
        files.append_line(tmp_path, "line")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="folder is a folder, but a file is needed there"):
        files.replace_atomically(tmp_path / "folder", b"")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_folder_that_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        files.append_line(tmp_path / "none" / "a", "line")


def test_removing_twice_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    files.remove_file(tmp_path / "a")
    files.remove_file(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, null, "\xc3\xa4"]}')
    assert files.read_json(path) == {"a": [1, None, "ä"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1,\n "b": }', r"a\.json, line 2, column 7: not valid JSON"),
        (b"", r"a\.json, line 1, column 1: not valid JSON"),
        (b'{"a":\n"\xff"}', r"a\.json, line 2, column 2: not UTF-8 text"),
        (b"[" * 100_000, r"a\.json is not usable JSON"),
        (b"1" * 5000, r"a\.json is not usable JSON"),
    ],
)
def test_broken_json_is_bad_input_with_its_place(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        files.read_json(path)


def test_yaml_is_read_as_plain_data(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text('max_memory:\n  0: "20GB"\n  1: 20\nwhen: 2026-11-15\nnone: ~\non: yes\nlist: [1.5, true]\n')
    assert yaml_input.read_yaml(path) == {
        "max_memory": {"0": "20GB", "1": 20},
        "when": "2026-11-15",
        "none": None,
        "on": "yes",
        "list": [1.5, True],
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: 1\nb: 2\na: 3\n", r'line 3, column 1: not valid YAML: found duplicate key "a"'),
        (b"a:\n\t- 1\n", r"line 2, column 1: not valid YAML: found character '\\t'"),
        (b"a: [1\n", r"line 2, column 1: not valid YAML: expected ',' or '\]'"),
        (b"a: 1\n---\nb: 2\n", r"line 2, column 1: not valid YAML: expected a single document"),
        (b"a: 1\nb: c\x01\n", r"line 2, column 5: not valid YAML: special characters"),
        (b"a: \xff\n", r"line 1, column 4: not UTF-8 text"),
        (b"!!python/object:os.system {}", r"line 1, column 1: not valid YAML: could not determine a constructor"),
        (b'0: a\n"0": b\n', r"is not usable YAML: a key comes twice"),
        (b"&a [*a]", r"is not usable YAML"),
        (b"a: 2026-99-01", r"is not usable YAML: month"),
        (b"a: !!bool 7", r"is not usable YAML"),
    ],
)
def test_broken_yaml_is_bad_input_in_one_sentence_with_its_place(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words) as caught:
        yaml_input.read_yaml(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def _levels(line: str, levels: int) -> str:
    return "".join(line.replace("N", str(n)).replace("M", str(n - 1)) for n in range(1, levels + 1))


@pytest.mark.parametrize(
    ("first", "line"),
    [
        ("a0: &a0 [x, x]\n", "aN: &aN [*aM, *aM, *aM, *aM, *aM, *aM, *aM, *aM, *aM]\n"),
        ("a0: &a0 {x: 1}\n", "aN: &aN {<<: [*aM, *aM, *aM, *aM, *aM, *aM, *aM, *aM, *aM], kN: 1}\n"),
    ],
)
def test_yaml_whose_aliases_stand_for_too_much_is_refused_unread(first: str, line: str) -> None:
    with pytest.raises(BadInput, match=r"^bomb, line \d+, column \d+: not valid YAML: its aliases stand for more"):
        yaml_input.parse_yaml(first + _levels(line, 12), "bomb")
    small = yaml_input.parse_yaml(first + _levels(line, 2), "small")
    assert isinstance(small, dict)
    assert set(small) == {"a0", "a1", "a2"}


def test_what_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    for read in (files.read_json, yaml_input.read_yaml):
        with pytest.raises(BadInput, match=r"none\.json does not exist\."):
            read(tmp_path / "none.json")
        with pytest.raises(BadInput, match="is a folder, but a file is needed"):
            read(tmp_path)
        with pytest.raises(BadInput, match="cannot be read: Not a directory"):
            read(Path("/dev/null/a"))
        with pytest.raises(BadInput, match="cannot be read"):
            read(Path("a\0b"))
    with pytest.raises(BadInput, match="is a folder"):
        files.read_lines(tmp_path)


def test_lines_that_are_not_text_are_bad_input_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntw\xff\n")
    with pytest.raises(BadInput, match="a, line 2, column 3: not UTF-8 text"):
        files.read_lines(path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the other end of a pipe."""
    monkeypatch.setattr(files, "PIPE_TIMEOUT_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_a_pipe_that_nobody_writes_to_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (files.read_json, yaml_input.read_yaml, files.read_text, files.read_bytes):
        with pytest.raises(BadInput, match=r"pipe is a pipe that nobody writes to\.$"):
            read(tmp_path / "pipe")


@pytest.mark.usefixtures("impatient")
def test_a_pipe_is_read_to_its_end_however_slowly_it_is_written(tmp_path: Path, start_python: StartPython) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    program = (
        "import sys, time\nfile = open(sys.argv[1], 'w')\nprint('open', flush=True)\n"
        "for part in ('a: ', '1\\n'):\n    time.sleep(0.3)\n    file.write(part)\n    file.flush()\n"
    )
    writer = start_python(program, tmp_path / "pipe")
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    assert yaml_input.read_yaml(tmp_path / "pipe") == {"a": 1}
    os.close(reader)


@pytest.mark.usefixtures("impatient")
def test_a_pipe_that_nobody_reads_is_refused_and_one_that_is_read_is_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match=r"pipe is a pipe or socket that nobody reads"):
        files.replace_atomically(tmp_path / "pipe", b"content")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.replace_atomically(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)


def test_a_device_that_never_ends_is_refused_and_an_empty_one_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_STREAM_BYTES", 1 << 20)
    with pytest.raises(BadInput, match=r"/dev/zero gives more than 1 MiB"):
        files.read_bytes(Path("/dev/zero"))
    assert files.read_bytes(Path(os.devnull)) == b""


@pytest.mark.parametrize("suffix", ["json", "yaml"])
@pytest.mark.parametrize(
    ("escaped", "words"), [("\\u0000", "a NUL character"), ("\\ud800", "half of a surrogate pair")]
)
def test_text_that_no_name_can_have_is_refused(tmp_path: Path, suffix: str, escaped: str, words: str) -> None:
    file = tmp_path / f"settings.{suffix}"
    file.write_text(f'{{"a": ["{escaped}"]}}')
    with pytest.raises(BadInput, match=f"^{file} .*{words}"):
        yaml_input.read_settings(file)
    file.write_text('{"a": ["\\\\u0000 \\\\ud800 \\ud83d\\ude00"]}')
    if suffix == "json":
        assert yaml_input.read_settings(file) == {"a": ["\\u0000 \\ud800 \U0001f600"]}


def test_a_path_that_no_file_can_have_is_refused_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path, words in (
        (tmp_path / ("n" * 300), "its name is too long"),
        (tmp_path / "loop" / "x", "lead in a circle"),
        (tmp_path / "a\0b", "not a usable file name"),
    ):
        with pytest.raises(BadInput, match=words):
            files.check_path(path)
    files.check_path(tmp_path / "missing" / "file")
    files.check_path(tmp_path)


def test_what_the_machine_says_of_a_path_is_no_defect_wherever_it_appears() -> None:
    assert isinstance(files.explain_os_error(OSError(errno.ENAMETOOLONG, "x", "name")), BadInput)
    assert isinstance(files.explain_os_error(OSError(errno.EROFS, "x", "name")), MachineCannot)
    assert files.explain_os_error(OSError(errno.ENOENT, "x", "name")) is None
    assert files.explain_os_error(OSError(errno.EROFS, "x")) is None
