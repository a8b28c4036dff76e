"""Write `src/assay/cli/flag_table.py`: every verb's help and flags, from the classes of flags.

    python tools/flag_table.py           write the table
    python tools/flag_table.py --check   exit 1 if it is not what the classes say

``assay VERB --help`` is answered from the table, without importing the verb or pydantic.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import textwrap
from collections import Counter
from itertools import groupby
from pathlib import Path

import assay.cli
from assay.cli import flags
from assay.cli.commands import FlagRow, VerbRow

TABLE = Path(assay.cli.__file__).with_name("flag_table.py")
HEAD = '''"""What `--help` shows and click needs, written by `make flag-table` from the classes of flags."""

from __future__ import annotations

from assay.cli.commands import FlagRow, VerbRow

# fmt: off
'''


def import_verbs() -> dict[str, VerbRow]:
    """Return every verb as the table has it."""
    for module in pkgutil.iter_modules(assay.cli.__path__, "assay.cli."):
        if module.name != "assay.cli.flag_table":
            importlib.import_module(module.name)
    return {
        path: VerbRow(
            verb.function.__module__, help_text(inspect.getdoc(verb.function) or ""), flags.flag_rows(verb.flags)
        )
        for path, verb in sorted(flags.VERBS.items())
    }


def help_text(docstring: str) -> str:
    """Return a docstring as click wraps it: examples, which are indented or command lines, stay as they are."""
    paragraphs = docstring.split("\n\n")
    examples = [all(line.startswith(("    ", "assay ")) for line in text.splitlines()) for text in paragraphs]
    return "\n\n".join(
        f"\b\n{inspect.cleandoc(text)}" if example else text for text, example in zip(paragraphs, examples, strict=True)
    )


def flag_text(row: FlagRow) -> str:
    """Return the call that makes a flag, without what is as usual."""
    usual = FlagRow("")
    parts = [
        repr(row.name),
        *(f"{k}={v!r}" for k, v in row._asdict().items() if k != "name" and v != getattr(usual, k)),
    ]
    return f"FlagRow({', '.join(parts)})"


def table_text(verbs: dict[str, VerbRow]) -> str:
    """Return the module; a flag that several verbs share stands once."""
    uses = Counter(row for verb in verbs.values() for row in verb.flags)
    names: dict[FlagRow, str] = {}
    for row in sorted((row for row, count in uses.items() if count > 1), key=lambda row: (row.name, row)):
        variants = sum(other.name == row.name for other in names)
        names[row] = row.name.upper() + (f"_{variants + 1}" if variants else "")
    lines = [HEAD, *(f"{name} = {flag_text(row)}\n" for row, name in names.items()), "\nVERBS = {\n"]
    for path, verb in verbs.items():
        lines.append(f"    {path!r}: VerbRow({verb.module!r}, {verb.help!r}, (\n")
        for shared, rows in groupby(verb.flags, key=names.__contains__):
            if shared:
                text = f"{', '.join(names[row] for row in rows)},"
                indent = " " * 8
                lines.append(f"{textwrap.fill(text, 120, initial_indent=indent, subsequent_indent=indent)}\n")
            else:
                lines += [f"        {flag_text(row)},\n" for row in rows]
        lines.append("    )),\n")
    return "".join([*lines, "}\n"])


def main(words: list[str]) -> int:
    """Write the table, or check it."""
    text = table_text(import_verbs())
    if words == ["--check"]:
        stale = text != TABLE.read_text(encoding="utf-8")
        if stale:
            sys.stderr.write(f"{TABLE.name} is not what the flags say; run `make flag-table`.\n")
        return int(stale)
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
