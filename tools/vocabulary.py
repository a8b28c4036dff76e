"""Check that the source speaks the field's language: identifiers, class names and help texts.

    python tools/vocabulary.py           exit 1 and a line for each violation

- No identifier in `SOURCE` and `ALSO_CHECKED` is one of `BANNED_IDENTIFIERS`: they do not say what a value is.
- No class name occurs in two modules, so that a name can be searched for.
- No help text uses one of `BANNED_IN_HELP`; each comes with what to write instead.

A line of `EXCEPTIONS` names a file, what is allowed there, and why.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "assay"
ALSO_CHECKED = ("benchmarks", "examples", "tools")

BANNED_IDENTIFIERS = frozenset(
    {
        "told", "said", "seen", "found", "known", "each", "place", "places", "beside", "meanwhile", "strangers",
        "company", "drawn", "written", "kept", "taken", "given", "wanted", "asked", "judged", "gathered", "senseless",
        "told_of", "way", "ways", "errand", "purse", "sights", "vigil", "tallies", "abroad", "foresight", "fanned",
        "rigged", "yardsticks", "staging", "as_told", "go_on",
    }
)  # fmt: skip

BANNED_IN_HELP = {
    "strangers": "other processes",
    "told": "reported",
    "mend": "fix",
    "mends": "fixes",
    "beside": "next to, during, concurrently with",
    "meanwhile": "during the run",
    "errand": "job",
    "side by side": "concurrently",
    "somebody": "name who: another user, another process",
    "goes on": "continues, resumes",
    "counts not": "is ignored",
}

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("hosts/ssh.py", "place"): "a keyword of the undo stored in leases; see `undo_job`",
    ("workloads/kernels/dilated_attention.py", "each"): "a Triton kernel's loop variable",
}


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every name that a module gives: variables, parameters, functions, classes, fields, import aliases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.alias) and node.asname is not None:
            yield node.lineno, node.asname


def help_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts that ``--help`` shows: help of options, and docstrings of commands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in {"help", "short_help", "epilog"}:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value
        elif isinstance(node, ast.FunctionDef) and any("verb(" in ast.unparse(d) for d in node.decorator_list):
            yield node.lineno, ast.get_docstring(node) or ""


def violations(source: Path = SOURCE) -> list[str]:
    """Return every violation below a folder, as `file:line: what is wrong`."""
    lines: list[str] = []
    classes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        name = str(path.relative_to(source))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lines += _identifier_violations(name, tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
        if name.startswith("cli/"):
            lines += _help_violations(name, tree)
    lines += [f"{', '.join(paths)}: class {name} is in several modules" for name, paths in classes.items() if paths[1:]]
    return lines


def other_violations() -> list[str]:
    """Return the violations of identifiers outside the package."""
    return [
        line
        for folder in ALSO_CHECKED
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in _identifier_violations(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8")))
    ]


def _identifier_violations(name: str, tree: ast.Module) -> list[str]:
    return [
        f"{name}:{line}: `{identifier}` does not say what it is"
        for line, identifier in identifiers(tree)
        if identifier in BANNED_IDENTIFIERS and (name, identifier) not in EXCEPTIONS
    ]


def _help_violations(name: str, tree: ast.Module) -> list[str]:
    return [
        f"{name}:{line}: help says {banned!r}: {instead}"
        for line, text in help_texts(tree)
        for banned, instead in BANNED_IN_HELP.items()
        if re.search(rf"\b{banned}\b", text, re.IGNORECASE)
    ]


if __name__ == "__main__":
    wrong = [*violations(), *other_violations()]
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    sys.exit(1 if wrong else 0)
