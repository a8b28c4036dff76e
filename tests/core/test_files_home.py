"""Where Assay keeps what outlives a run."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.core.files import home_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder nobody may write, root included where root can mount."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
        return
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounting.returncode != 0:
        pytest.skip(f"root may write everywhere and cannot mount: {mounting.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_home_is_what_the_environment_names(assay_home: Path) -> None:
    assert home_folder() == assay_home


def test_a_home_that_is_missing_is_made_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "a" / "b"))
    assert home_folder() == tmp_path / "a" / "b"
    assert home_folder().stat().st_mode & 0o777 == 0o700


def test_without_a_name_the_home_is_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home_folder() == tmp_path / "data" / "assay"
    monkeypatch.delenv("ASSAY_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative/data"):
        monkeypatch.setenv("XDG_DATA_HOME", unusable)
        assert home_folder() == tmp_path / ".local" / "share" / "assay"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert home_folder() == tmp_path / ".local" / "share" / "assay"


def test_a_relative_home_and_a_tilde_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ASSAY_HOME", "here")
    assert home_folder() == tmp_path / "here"
    monkeypatch.setenv("ASSAY_HOME", "~/there")
    assert home_folder() == tmp_path / "there"


def test_a_home_that_is_not_writable_is_said_in_one_sentence(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (read_only, read_only / "new"):
        monkeypatch.setenv("ASSAY_HOME", str(folder))
        with pytest.raises(MachineCannot, match=rf"{folder} is not writable") as caught:
            home_folder()
        assert "\n" not in str(caught.value)


def test_a_file_in_the_place_of_the_home_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    for named in (file, file / "below"):
        monkeypatch.setenv("ASSAY_HOME", str(named))
        with pytest.raises(BadInput, match=rf"^{file} is a file, but a folder is needed there\.$"):
            home_folder()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_home_that_everybody_may_write_into_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("ASSAY_HOME", str(folder))
    with pytest.raises(MachineCannot, match=rf"^Everybody may write into {folder}.*set ASSAY_HOME") as caught:
        home_folder()
    assert "\n" not in str(caught.value)
    folder.chmod(0o770)
    assert home_folder() == folder


def test_a_home_in_a_folder_of_everybodys_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in (0o1777, 0o777):
        tmp_path.chmod(mode)
        monkeypatch.setenv("ASSAY_HOME", str(tmp_path / f"home-{mode:o}"))
        assert home_folder().stat().st_mode & 0o777 == 0o700
    tmp_path.chmod(0o700)


def test_the_home_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("ASSAY_HOME", str(folder))
    somebody = os.geteuid() + 1
    if os.geteuid() == 0:
        os.chown(folder, somebody, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(MachineCannot, match=rf"^{folder} belongs to another user.*set ASSAY_HOME"):
        home_folder()


def test_an_ordinary_user_does_not_use_a_home_of_roots(tmp_path: Path) -> None:
    """The same as an ordinary user, in a process that root has given up being root in."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = tmp_path / "home"
    folder.mkdir()
    for parent in (folder, *folder.parents):
        if parent.stat().st_mode & 0o005 != 0o005:
            parent.chmod(0o755)
    folder.chmod(0o777)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setresuid(65534, 65534, 65534)
            os.environ["ASSAY_HOME"] = str(folder)
            home_folder()
        except MachineCannot as error:
            code = 0 if "belongs to another user" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", "~nobody-of-this-name/assay")
    with pytest.raises(MachineCannot, match="set ASSAY_HOME"):
        home_folder()
