"""What a command line means: which words are the baseline and which are held against it.

variance A... --against B...        files, folders, lists with commas, globs; quoted or expanded by the shell
variance A,B C,D                    two lists
variance 'base/*.json' 'conc/*.json'
variance baseline/*.json concurrent/*.json    expanded, from the two folders that the older tool named so
variance RUN                        a run of `assay contention run`: its own phases
variance FOLDER FOLDER              two run folders, or two folders of files
"""

from __future__ import annotations

import glob
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOW = "say `assay contention variance BASELINE... --against CONCURRENT...`"
OLDER_FOLDERS = {"concurrent", "isolated"}


class Sides(NamedTuple):
    """The words of the baseline and those of what is held against it."""

    baseline: tuple[str, ...]
    concurrent: tuple[str, ...]


def sides(words: Sequence[str], against: Sequence[str], *, is_phased: Callable[[Path], bool]) -> Sides:
    """Return which words are which, or say how to say it.

    Raises:
        BadInput: It is not clear which files are the baseline.
    """
    if against:
        if not words:
            raise BadInput(f"There is no baseline: {HOW}.")
        return Sides(tuple(words), tuple(against))
    if not words:
        raise BadInput(f"Nothing to compare: {HOW}.")
    if len(words) == 1 and is_phased(Path(words[0])):
        return Sides((words[0],), (words[0],))
    if len(words) == 2 and (any(_is_list(word) for word in words) or _two_folders(*words)):
        return Sides((words[0],), (words[1],))
    folders = list(dict.fromkeys(Path(word).parent.name for word in words))
    if len(folders) == 2 and folders[0] == "baseline" and folders[1] in OLDER_FOLDERS:
        first = tuple(word for word in words if Path(word).parent.name == "baseline")
        return Sides(first, tuple(word for word in words if word not in first))
    if len(words) == 1:
        raise BadInput(f"Nothing is held against {words[0]}; {HOW}.")
    if len(words) == 2:
        meant = shlex.join(("assay", "contention", "variance", words[0], "--against", words[1]))
        raise BadInput(f"It is not clear that {words[0]} is the baseline and {words[1]} is not; if so, say `{meant}`.")
    raise BadInput(f"It is not clear which of these {len(words)} are the baseline; {HOW}.")


def absent(words: Sequence[str]) -> list[str]:
    """Return the words that name a single file or folder which does not exist."""
    return [word for word in words if not Path(word).exists() and not _is_list(word)]


def _two_folders(one: str, other: str) -> bool:
    """Return whether these are two different folders: a shell expands no list of files to them."""
    first, second = Path(one), Path(other)
    return first.is_dir() and second.is_dir() and first.resolve() != second.resolve()


def _is_list(word: str) -> bool:
    """Return whether a word names several files by itself, and is no file."""
    return not Path(word).exists() and ("," in word or glob.has_magic(word))


def paths_of(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the paths that words name, each once, and in words which name nothing."""
    paths: dict[Path, None] = {}
    missing: list[str] = []
    for word in words:
        for path in _named(word, missing):
            paths[path] = None
    return list(paths), missing


def _named(word: str, missing: list[str]) -> list[Path]:
    """Return the paths of one word: a file that is there, a list with commas or spaces, or a glob."""
    if Path(word).exists():
        return [Path(word)]
    parts = [part for part in word.replace(",", " ").split() if part]
    if len(parts) > 1:
        return [path for part in parts for path in _named(part, missing)]
    if glob.has_magic(word):
        matches = [Path(match) for match in sorted(glob.glob(word))]  # noqa: PTH207 - the word may be absolute
        if not matches:
            missing.append(f"{word} fits no file")
        return matches
    missing.append(f"{word} does not exist")
    return []
