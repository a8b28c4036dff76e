"""A configuration is edited as a file: whole or not at all, one writer at a time."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.files import file_lock
from assay.store import yaml_edit
from assay.store.yaml_edit import edit_file, edit_text, preview_edit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import StartPython

TEXT = "runtime:\n  win: 64  # windows\n  cmp: 16\n"
ENDLESS = """
import sys
from pathlib import Path
from assay.store.yaml_edit import edit_file
print("ready", flush=True)
value = 0
while True:
    value += 1
    edit_file(Path(sys.argv[1]), {sys.argv[2]: value % 7 + 1})
"""


EIGHT_TIMES = """
import sys
from pathlib import Path
from assay.store.yaml_edit import edit_file
for value in range(1, 9):
    edit_file(Path(sys.argv[1]), {sys.argv[2]: value})
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(TEXT)
    return path


def test_a_file_is_changed_and_the_difference_returned(config: Path) -> None:
    shown = preview_edit(config, {"runtime.win": 128})
    assert config.read_text() == TEXT
    assert edit_file(config, {"runtime.win": 128}) == shown
    assert shown.splitlines()[-2:] == ["+  win: 128  # Updated by benchmark; windows", "   cmp: 16"]
    assert config.read_text() == "runtime:\n  win: 128  # Updated by benchmark; windows\n  cmp: 16\n"
    assert [path.name for path in config.parent.iterdir()] == ["base.yaml"]


def test_a_file_that_says_so_already_is_not_written(config: Path) -> None:
    before = config.stat()
    assert edit_file(config, {"runtime.win": 64}) == ""
    after = config.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)


def test_permissions_stay_and_links_go_on_pointing(config: Path, tmp_path: Path) -> None:
    config.chmod(0o604)
    link = tmp_path / "link.yaml"
    link.symlink_to("base.yaml")
    edit_file(link, {"runtime.cmp": 32})
    assert link.is_symlink()
    assert "cmp: 32" in config.read_text()
    assert stat.S_IMODE(config.stat().st_mode) == 0o604


def test_bytes_that_are_not_utf_8_are_refused_with_their_line(config: Path) -> None:
    config.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(BadInput, match=r"base.yaml, line 2, column 4: not UTF-8 text"):
        edit_file(config, {"a": 2})
    assert config.read_bytes() == b"a: 1\nb: \xff\n"


@pytest.mark.parametrize("made", ["nothing", "folder", "circle"])
def test_what_is_no_file_is_named(tmp_path: Path, made: str) -> None:
    path = tmp_path / "c.yaml"
    if made == "folder":
        path.mkdir()
    elif made == "circle":
        path.symlink_to(path)
    with pytest.raises(BadInput, match=r"c\.yaml (does not exist|is a folder|cannot be read)"):
        edit_file(path, {"a": 1})


def test_a_writer_that_does_not_let_go_is_told_of(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_edit, "LOCK_TIMEOUT_S", 0.0)
    said = r"base.yaml was locked by another process"
    with config.open("rb") as file, file_lock(file.fileno()), pytest.raises(MachineCannot, match=said):
        edit_file(config, {"runtime.win": 1})
    edit_file(config, {"runtime.win": 1})


def test_writers_at_once_all_land(config: Path) -> None:
    names = [f"k{n}" for n in range(4)]
    config.write_text("".join(f"{name}: 0\n" for name in names))
    running = [subprocess.Popen([sys.executable, "-c", EIGHT_TIMES, config, name]) for name in names]
    assert [process.wait(60) for process in running] == [0] * 4
    assert config.read_text() == "".join(f"{name}: 8  # Updated by benchmark\n" for name in names)


@pytest.fixture
def versions() -> set[str]:
    return {TEXT, *(edit_text(TEXT, {"runtime.win": n}) for n in range(1, 8))}


def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new(
    config: Path, start_python: StartPython, versions: set[str]
) -> None:
    for moment in moments():
        writer = start_python(ENDLESS, config, "runtime.win")
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(moment)
        os.kill(writer.pid, signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        assert config.read_text() in versions
    edit_file(config, {"runtime.win": 640})
    assert "win: 640" in config.read_text()


def moments() -> Iterator[float]:
    yield from (0.01 + 0.0037 * n for n in range(6))


def test_json_gets_no_mark_as_it_has_no_comments(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"a": {"b": 5}, "c": 1}\n')
    edit_file(path, {"a.b": 64})
    assert path.read_text() == '{"a": {"b": 64}, "c": 1}\n'


def test_a_device_is_not_read_without_end() -> None:
    with pytest.raises(BadInput, match="a file is needed"):
        preview_edit(Path("/dev/zero"), {"a": 1})
