"""Write `src/assay/cli/flag_table.json`: every verb's help and flags, from the classes of flags.

    python tools/flag_table.py           write the table
    python tools/flag_table.py --check   exit 1 if it is not what the classes say

``assay VERB --help`` is answered from the table, without importing the verb or pydantic.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from collections import Counter

import assay.cli
from assay.cli import flags
from assay.cli.commands import FLAG_TABLE, FlagRow, VerbRow


def import_verbs() -> dict[str, VerbRow]:
    """Return every verb as the table has it."""
    for module in pkgutil.iter_modules(assay.cli.__path__, "assay.cli."):
        if module.name != "assay.cli.main":  # which reads the table
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
    """Return a flag without what is as usual."""
    usual = FlagRow("")._asdict()
    return json.dumps({key: value for key, value in row._asdict().items() if value != usual[key]})


def table_text(verbs: dict[str, VerbRow]) -> str:
    """Return the table, a line for each flag; a flag that several verbs share stands once, and they name it."""
    uses = Counter(row for verb in verbs.values() for row in verb.flags)
    names: dict[FlagRow, str] = {}
    for row in sorted((row for row, count in uses.items() if count > 1), key=lambda row: (row.name, row)):
        variants = sum(other.name == row.name for other in names)
        names[row] = row.name + (f"_{variants + 1}" if variants else "")
    shared = ",\n".join(f'    "{name}": {flag_text(row)}' for row, name in names.items())
    entries = []
    for path, verb in verbs.items():
        rows = ",\n".join(f"        {json.dumps(names[row]) if row in names else flag_text(row)}" for row in verb.flags)
        head = f'    "{path}": {{\n      "module": "{verb.module}",\n      "help": {json.dumps(verb.help)},\n'
        entries.append(f'{head}      "flags": [\n{rows}\n      ]\n    }}')
    verbs_text = ",\n".join(entries)
    return f'{{\n  "flags": {{\n{shared}\n  }},\n  "verbs": {{\n{verbs_text}\n  }}\n}}\n'


def main(words: list[str]) -> int:
    """Write the table, or check it."""
    text = table_text(import_verbs())
    if words == ["--check"]:
        stale = text != FLAG_TABLE.read_text(encoding="utf-8")
        if stale:
            sys.stderr.write(f"{FLAG_TABLE.name} is not what the flags say; run `make flag-table`.\n")
        return int(stale)
    FLAG_TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
