"""Commands and their help, built from `flag_table.json`: a verb's module is imported only when the verb runs.

Nothing here imports pydantic, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
from click.core import ParameterSource

from assay.core.errors import BadInput, suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FlagStyle = Literal["value", "switch", "many", "list", "rest", "optional", "argument", "arguments"]
"""How a flag stands on the command line: with a value; alone; again for each value; before several values, split at
commas; before several values, each as it is; alone or before a value; by position, one or several."""


class FlagRow(NamedTuple):
    """One flag, as click and the help need it."""

    name: str
    opts: str = ""
    style: FlagStyle = "value"
    metavar: str = ""
    group: str = ""
    help: str = ""
    hidden: bool = False
    required: bool = False
    item: str = ""
    """Of a list: the pattern of an item. Of an optional value: what the flag means when it stands alone."""
    aliases: str = ""
    """Spellings of the older tools: accepted, but not shown."""
    envvar: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return how messages name the flag: ``--output``, or ``WORKLOAD``."""
        return self.opts.partition(" ")[0].partition("/")[0] if self.opts else self.metavar or self.name.upper()

    @property
    def spellings(self) -> list[str]:
        """Return every spelling: ``--history``, ``--no-history``; none of an argument."""
        return f"{self.opts.replace('/', ' ')} {self.aliases}".split()


class VerbRow(NamedTuple):
    """One verb: where its function is, what its help says, and its flags."""

    module: str
    help: str
    flags: tuple[FlagRow, ...]


FLAG_TABLE = Path(__file__).with_name("flag_table.json")
"""What `--help` shows and click needs, written by `make flag-table` from the classes of flags."""


def load_verbs() -> dict[str, VerbRow]:
    """Return every verb from the table; a flag given by its name there is shared by several verbs."""
    table = json.loads(FLAG_TABLE.read_text(encoding="utf-8"))

    def flag_row(entry: str | dict[str, Any]) -> FlagRow:
        values = table["flags"][entry] if isinstance(entry, str) else entry
        return FlagRow(**{**values, "choices": tuple(values.get("choices", ()))})

    return {
        path: VerbRow(verb["module"], verb["help"], tuple(map(flag_row, verb["flags"])))
        for path, verb in table["verbs"].items()
    }


@dataclass(frozen=True)
class CommandLine:
    """What was typed: the verb, its words, those behind ``--``, and which flags were given, by name."""

    verb: str = ""
    words: tuple[str, ...] = ()
    after_dashes: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    from_environment: frozenset[str] = frozenset()


HYPHEN = "\ue000"
"""Stands for a hyphen while help is wrapped, so that no name is broken across lines."""
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
OTHER = "Options"
OUTPUT = "Output"


class NamePreservingFormatter(click.HelpFormatter):
    """Wraps help at spaces only: `--min-effect` stays whole."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and their descriptions in two columns."""
        super().write_dl([(name, text.replace("-", HYPHEN)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        """Return everything written."""
        return super().getvalue().replace(HYPHEN, "-")


class HelpContext(click.Context):
    """The context of every group and verb."""

    formatter_class = NamePreservingFormatter


class VerbGroup(click.Group):
    """The verbs whose names begin with a prefix, such as ``contention run`` and ``contention matrix``."""

    context_class = HelpContext

    def __init__(self, prefix: str, verbs: Mapping[str, VerbRow], groups: Mapping[str, str], sentence: str) -> None:
        super().__init__(prefix or "assay", help=sentence, context_settings=HELP_NAMES)
        self.prefix = f"{prefix} " if prefix else ""
        self.verbs, self.groups = verbs, groups

    def sentences(self) -> dict[str, str]:
        """Return the names of the group, each with its sentence."""
        verbs = {p.removeprefix(self.prefix): row for p, row in self.verbs.items() if p.startswith(self.prefix)}
        sentences = {name: row.help.partition("\n")[0] for name, row in verbs.items() if " " not in name}
        return dict(sorted({**sentences, **({} if self.prefix else self.groups)}.items()))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every name."""
        return list(self.sentences())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, or a group of verbs."""
        if not self.prefix and cmd_name in self.groups:
            return VerbGroup(cmd_name, self.verbs, self.groups, self.groups[cmd_name])
        path = f"{self.prefix}{cmd_name}"
        path = ALIASES.get(path, path)
        return Verb(path, self.verbs[path]) if path in self.verbs else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb, or say which names are near."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = suggest_nearest(args[0], self.sentences())
            raise BadInput(f"There is no command {args[0]!r}.{near} `{ctx.command_path} --help` lists them.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the names with their sentences."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.sentences().items()))


ALIASES = {"scaling analyze": "scaling analyse"}
"""Other spellings of verbs; not listed."""


class Verb(click.Command):
    """A verb: splits its words into flags, and hands them to its function as a typed value."""

    context_class = HelpContext

    def __init__(self, path: str, row: VerbRow) -> None:
        settings: dict[str, Any] = {**HELP_NAMES, "token_normalize_func": lambda token: token.replace("_", "-")}
        super().__init__(
            path.rpartition(" ")[2], help=row.help, params=[*map(_parameter, row.flags)], context_settings=settings
        )
        self.path, self.row = path, row
        self.row_of = dict(zip(self.params, row.flags, strict=True))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split off the part behind ``--``, and give each value of a list a flag of its own."""
        cut = args.index("--") if "--" in args else len(args)
        words = args[:cut]
        ctx.obj = (tuple(args), tuple(args[cut + 1 :]))
        self._refuse_flags_as_values(words)
        return super().parse_args(ctx, self._expand_lists(words))

    def invoke(self, ctx: click.Context) -> int:
        """Run the verb with what was given; everything else has the defaults of its class of flags."""
        from assay.cli.flags import run_verb

        sources = {row.name: ctx.get_parameter_source(row.name) for row in self.row.flags}
        typed = {name for name, source in sources.items() if source == ParameterSource.COMMANDLINE}
        environment = {name for name, source in sources.items() if source == ParameterSource.ENVIRONMENT}
        words, after_dashes = ctx.obj
        line = CommandLine(self.path, words, after_dashes, frozenset(typed), frozenset(environment))
        return run_verb(line, self.row, {name: ctx.params[name] for name in typed | environment})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the flags in their groups; ``--help`` itself stands with the output."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for row in self.row.flags:
            if row.opts and not row.hidden:
                text = f"{row.help}{'  [required]' if row.required else ''}"
                groups.setdefault(row.group, []).append((_spelling(row), text))
        help_group = groups.setdefault(OUTPUT if OUTPUT in groups or not groups else next(iter(groups)), [])
        help_group.append(("-h, --help", "Show this message and exit."))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def _refuse_flags_as_values(self, words: list[str]) -> None:
        """Refuse a flag that needs a value and is followed by another flag, which would be taken for it."""
        options = [(param, row) for param, row in self.row_of.items() if row.opts]
        names = {name for param, _ in options for name in (*param.opts, *param.secondary_opts)}
        needy = {name for param, row in options if row.style not in {"switch", "optional"} for name in param.opts}
        for word, following in pairwise(words):
            name = following.partition("=")[0]
            if word.replace("_", "-") in needy and name.replace("_", "-") in names:
                raise BadInput(f"{word} needs a value, but is followed by the option {name}.")

    def _expand_lists(self, words: list[str]) -> list[str]:
        """Return the words with a flag before each value: ``--gpus 0 1`` is ``--gpus 0 --gpus 1``."""
        lists = {
            name: row for param, row in self.row_of.items() if row.style in {"list", "rest"} for name in param.opts
        }
        expanded: list[str] = []
        row: FlagRow | None = None
        first = ""
        for word in words:
            name, equals, _ = word.partition("=")
            if (listed := lists.get(name.replace("_", "-"))) is not None:
                row, first = listed, "" if equals else word
                expanded += [word] if equals else []
            elif row is not None and (first or re.fullmatch(row.item, word)):
                expanded += [row.title, word]
                first = ""
            else:
                row = None
                expanded.append(word)
        return [*expanded, first] if first else expanded


def _parameter(row: FlagRow) -> click.Parameter:
    """Return click's part of a flag: every value stays text."""
    if not row.opts:
        several = row.style == "arguments"
        return click.Argument(
            [row.name], nargs=-1 if several else 1, required=row.required, metavar=row.metavar or None, type=str
        )
    names = [*row.opts.split(), *row.aliases.split(), row.name]
    if row.style == "switch":
        return click.Option(names, is_flag=True, default=None, help=row.help, hidden=row.hidden)
    alone: dict[str, Any] = {"is_flag": False, "flag_value": row.item} if row.style == "optional" else {}
    return click.Option(
        names,
        type=str,
        multiple=row.style in {"many", "list", "rest"},
        required=row.required,
        metavar=row.metavar,
        help=row.help,
        hidden=row.hidden,
        envvar=row.envvar,
        **alone,
    )


def _spelling(row: FlagRow) -> str:
    """Return how a flag is written in help: ``-o, --output FILE``, ``--[no-]monitor``."""
    on, slash, off = row.opts.partition("/")
    names = ", ".join(sorted(on.split(), key=len))
    if slash:
        names = names.replace("--", "--[no-]", 1) if off == names.replace("--", "--no-", 1) else f"{names} / {off}"
    return names if row.style == "switch" else f"{names} {row.metavar}"
