"""Which files to upload to a machine that shares no folder with this one.

The command line with their paths there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from assay.cli.flags import flag_rows
from assay.core.errors import AssayError, BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import JsonValue

    from assay.cli.host_flags import HostFlags
    from assay.hosts.base import UploadedFile

READ_LIMIT_BYTES = 1 << 20
UPLOAD_LIMIT_BYTES = 1 << 30
DATA_SUFFIXES = (".yaml", ".yml", ".json")


class UploadList:
    """Files to upload, each once, by their paths relative to the working folder."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._files: dict[str, Path] = {}

    def shipped(self) -> tuple[UploadedFile, ...]:
        """Return all of it.

        Raises:
            BadInput: It is more than 1 GB.
        """
        from assay.hosts.base import UploadedFile

        total = sum(path.stat().st_size for path in self._files.values())
        if total > UPLOAD_LIMIT_BYTES:
            raise BadInput(f"The files that would go along have {total / 1e9:.1f} GB, and more than 1 GB is not sent.")
        return tuple(
            UploadedFile(local_path=str(path.resolve()), remote_path=there)
            for there, path in sorted(self._files.items())
        )

    def word(self, word: str, *, absolute: bool = True) -> str:
        """Add the file that a word names; return the word with the path on the other machine.

        With ``absolute`` off, a path from the root means a file there.
        """
        option, equals, value = word.partition("=")
        if equals and option.startswith("-"):
            return f"{option}={self._named(value, absolute=absolute)}"
        if equals and not Path(self._cwd, word).exists():
            return f"{option}={self._named(value, absolute=absolute)}"
        return word if word.startswith("-") else self._named(word, absolute=absolute)

    def add(self, text: str) -> None:
        """Add a file, or a folder with its contents.

        Raises:
            BadInput: There is none.
        """
        path = self._cwd / text
        if path.is_dir():
            for file in _within(path):
                self._take(file)
        elif path.is_file():
            self._take(path)
        else:
            raise BadInput(f"--ship {text}: there is no such file or folder.")

    def translate(self, path: Path, *, around: bool = True) -> None:
        """Add what a YAML or JSON file names, by paths from the start or, ``around``, from its own folder.

        Who wrote the file may be somebody else: what it names outside the folder the command was started in, by ``..``
        or through a link, is not taken unless the command line names it too.

        Raises:
            BadInput: It names a file by its path from the root, which would mean another one there, or one outside.
        """
        for text in _texts_in_file(path):
            path_text, _ = _split(text)
            if Path(path_text).is_absolute() and _is_file(Path(path_text)):
                raise BadInput(
                    f"{path} names {path_text}; a file that goes along is named relative to where you start."
                )
            for base in (self._cwd, path.parent) if around else (self._cwd,):
                if path_text and _is_file(base / path_text):
                    named = base / path_text
                    inside = named.resolve().is_relative_to(self._cwd.resolve())
                    if not inside and self._there(named) not in self._files:
                        raise BadInput(
                            f"{path} names {named}, which is outside the folder you start in; --ship {named} sends it "
                            "along."
                        )
                    self._take_with_its_kind(base / path_text, function=path_text != text)

    def _named(self, word: str, *, absolute: bool) -> str:
        path_text, function = _split(word)
        path = self._cwd / path_text
        if not path_text or not _is_file(path) or (Path(path_text).is_absolute() and not absolute):
            return word
        self._take_with_its_kind(path, function=bool(function))
        return f"{self._there(path)}{function}" if Path(path_text).is_absolute() else word

    def _take_with_its_kind(self, path: Path, *, function: bool) -> None:
        if not self._take(path):
            return
        if function:
            for sibling in path.parent.glob("*.py"):
                self._take(sibling)
        if path.suffix in DATA_SUFFIXES and path.stat().st_size <= READ_LIMIT_BYTES:
            self.translate(path)

    def _take(self, path: Path) -> bool:
        there = self._there(path)
        new = there not in self._files
        self._files[there] = path
        return new

    def _there(self, path: Path) -> str:
        return os.path.relpath(path.absolute(), self._cwd)


def remote_words(words: Iterable[str], luggage: UploadList) -> tuple[str, ...]:
    """Return words with the paths on the other machine, and add the files that they name.

    Behind ``--`` stands a command: what it names from the root is there already, or means nothing.
    """
    translated: list[str] = []
    behind = False
    for word in words:
        translated.append(word if word == "--" else luggage.word(word, absolute=not behind))
        behind = behind or word == "--"
    return tuple(translated)


def prepare_upload(
    flags: HostFlags, words: tuple[str, ...], number: str
) -> tuple[Path, tuple[str, ...], tuple[UploadedFile, ...]]:
    """Return where an order starts from, its words as they make sense elsewhere, and the files that go along.

    Runs there go into a folder that is named after the order; a run that goes on is sent there first, with what the
    order before it had along.
    """
    from assay.hosts.base import UploadedFile
    from assay.hosts.remote.transfer import remote_runs_folder

    runs_folder = remote_runs_folder(number)
    if flags.run is not None:
        from assay.store.run_folder import RunFolder

        run = RunFolder.open(flags.run)
        luggage = UploadList(Path(run.plan.cwd))
        for path in _files_of_first_run(run.path):
            luggage.add(path)
        luggage.translate(run.path / "plan.json", around=False)
        there = f"{runs_folder}/{run.path.name}"
        words = tuple(there if Path(word) == flags.run else word for word in words)
        words = words if there in words else (*words, there)  # it was not named, but is the latest
        folder = UploadedFile(local_path=str(run.path), remote_path=there)
        return Path(run.plan.cwd), words, (*luggage.shipped(), folder)
    luggage = UploadList(Path.cwd())
    for path in flags.ship:
        luggage.add(path)
    words = remote_words(words, luggage)
    if any(row.name == "output_dir" for row in flag_rows(type(flags))):
        cut = words.index("--") if "--" in words else len(words)
        words = (*words[:cut], "--output-dir", runs_folder, *words[cut:])
    return Path.cwd(), words, luggage.shipped()


def _files_of_first_run(run: Path) -> list[str]:
    """Return the files that were uploaded when a run was started, as far as they still exist."""
    from assay.core.files import read_json
    from assay.hosts.base import Job
    from assay.hosts.run_job import JOB, recorded_run

    for path in run.parent.glob(f"*/{JOB}"):
        try:
            if recorded_run(path.parent) == run:
                files = Job.model_validate(read_json(path)).files
                return [file.local_path for file in files if Path(file.local_path).is_file()]
        except (AssayError, ValueError):
            continue
    return []


def _split(word: str) -> tuple[str, str]:
    """Return the path in ``file.py:function`` and what follows it; of other words all of it."""
    path_text, colon, name = word.rpartition(":")
    return (path_text, f":{name}") if colon and path_text.endswith(".py") else (word, "")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _within(folder: Path) -> Iterator[Path]:
    from assay.hosts.remote.transfer import NEVER_UPLOADED

    for path in sorted(folder.rglob("*")):
        if path.is_file() and not set(path.relative_to(folder).parts) & set(NEVER_UPLOADED):
            yield path


def _texts_in_file(path: Path) -> Iterator[str]:
    """Yield every text in a file of data; a file that cannot be read is the verb's own business, there."""
    from assay.core.yaml_input import read_settings

    try:
        content = read_settings(path)
    except BadInput:
        return
    stack: list[JsonValue] = [content]
    while stack:
        match stack.pop():
            case str() as text if text and len(text) < 1000 and "\0" not in text:
                yield text
            case dict() as mapping:
                stack.extend(mapping.values())
            case list() as items:
                stack.extend(items)
            case _:
                continue
