"""Parameter types and option decorators shared by all verbs: durations, percentages, lists, a command after ``--``."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.core.errors import AssayError, BadInput
from assay.core.files import lease_folder
from assay.core.units import MAX_CALLS, MAX_PROCESSES, MAX_REPEATS, MAX_SIZE, parse_duration_s, parse_fraction

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_NAMED_LEFTOVERS = 3
"""So many leases are named at most; `assay reap` names them all."""


def warn_about_leftovers() -> None:
    """Say on stderr what is left behind; quick where there is no lease at all."""
    try:
        if not any(lease_folder().glob("*.json")):
            return
        from assay.core.leases import find_orphaned_leases

        left = find_orphaned_leases()
    except AssayError:
        return  # a home that cannot be used is told by whoever needs it
    if left:
        more = f" and {len(left) - MAX_NAMED_LEFTOVERS} more" if len(left) > MAX_NAMED_LEFTOVERS else ""
        what = "; ".join(lease.what for lease in left[:MAX_NAMED_LEFTOVERS])
        click.echo(f"warning: a run that died has left behind: {what}{more}. `assay reap` undoes it.", err=True)


FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

if TYPE_CHECKING:
    _Float = click.ParamType[float]
else:
    _Float = click.ParamType

SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
"""Option names are read with underscores or dashes."""

AFTER_DASHES = "assay.behind_dashes"
ORIGINAL_WORDS = "assay.as_given"

COUNT = click.IntRange(1, MAX_REPEATS)
"""How often something is done, or on how many nodes."""
SEVERAL = click.IntRange(2, MAX_REPEATS)
PROCESSES = click.IntRange(1, MAX_PROCESSES)
"""How many processes there are at once."""
RANKS_OR_NONE = click.IntRange(0, MAX_PROCESSES)
CALLS = click.IntRange(1, MAX_CALLS)
CALLS_OR_NONE = click.IntRange(0, MAX_CALLS)
SIZE = click.IntRange(1, MAX_SIZE)

AGGRESSORS = "cpu, memory, pcie, sm, hbm"
"""The aggressors that have a name of their own; written here, as help must not wait for their workloads."""


class Duration(_Float):
    """Seconds from "5", "500ms", "2m"."""

    name = "duration"

    def __init__(self, *, zero_ok: bool = False) -> None:
        self._zero_ok = zero_ok

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        option = f"{param.opts[0]}: " if param is not None else ""
        try:
            return parse_duration_s(str(value), zero_ok=self._zero_ok)
        except BadInput as error:
            raise BadInput(f"{option}{error}") from None


class Interval(Duration):
    """Seconds from one look of a recorder to the next."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        from assay.monitor.options import check_interval

        seconds = super().convert(value, param, ctx)
        check_interval(seconds)
        return seconds


class Fraction(_Float):
    """A share between 0 and 1 from "1%" or "0.01"."""

    name = "percent"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share."""
        return parse_fraction(str(value))


class ListOption(click.Option):
    """An option that takes several items: ``1,2,4``, ``1 2 4``, or given again."""

    def __init__(self, *args: Any, item: str, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "multiple": True})
        self.item = re.compile(item)

    def items(self, raw_items: tuple[str, ...]) -> tuple[str, ...]:
        """Return the items of all that was given."""
        return tuple(part for text in raw_items for part in re.split(r"[,\s]+", text) if part)

    def process_value(self, ctx: click.Context, value: object) -> tuple[str, ...]:
        """Return the items, in order."""
        raw_items = tuple(super().process_value(ctx, value) or ())
        items = self.items(raw_items)
        if raw_items and not items:
            raise BadInput(f"{self.opts[0]} names nothing.")
        return items


class OptionalValueOption(click.Option):
    """An option that may stand alone, or before a value; alone it has the value ``alone``."""

    def __init__(self, *args: Any, alone: str, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "is_flag": False, "flag_value": alone})


class Verb(click.Command):
    """A command whose lists may be written with spaces, and that keeps what stands behind ``--`` apart.

    It says first what runs that died have left behind, unless ``warns_of_leftovers`` is off.
    """

    warns_of_leftovers = True

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        if self.warns_of_leftovers:
            warn_about_leftovers()
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split off the part behind ``--``, and join the items of lists; the words as given are kept."""
        ctx.meta[ORIGINAL_WORDS] = tuple(args)
        if "--" in args:
            cut = args.index("--")
            ctx.meta[AFTER_DASHES] = tuple(args[cut + 1 :])
            args = args[:cut]
        self._refuse_options_as_values(ctx, args)
        rest = super().parse_args(ctx, self._joined(args))
        for param in self.params:
            if isinstance(param.type, click.Path):
                _check_paths(ctx.params.get(str(param.name)))
        return rest

    def _refuse_options_as_values(self, ctx: click.Context, args: list[str]) -> None:
        """Say so where an option that needs a value is followed by another option, which would be taken for it."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
        content = [
            option for option in options if option.is_flag or option.count or isinstance(option, OptionalValueOption)
        ]
        needy = {name for option in options if option not in content for name in option.opts}
        for word, following in pairwise(args):
            name = following.partition("=")[0]
            if word.replace("_", "-") in needy and name.replace("_", "-") in names:
                raise BadInput(f"{word} needs a value, and {name} behind it is an option of its own.")

    def _joined(self, args: list[str]) -> list[str]:
        lists = {name: p for p in self.params if isinstance(p, ListOption) for name in p.opts}
        joined: list[str] = []
        taking: ListOption | None = None
        fresh = False
        for word in args:
            option = lists.get(word.replace("_", "-"))
            if option is not None:
                taking, fresh = option, True
                joined.append(word)
            elif taking is not None and not fresh and taking.item.fullmatch(word):
                joined[-1] += f",{word}"
            else:
                joined.append(word)
                taking, fresh = (taking, False) if fresh else (None, False)
        return joined


def _check_paths(value: object) -> None:
    """Refuse paths that no file can have, such as a name that is too long."""
    from pathlib import Path

    from assay.core.files import check_path

    for path in value if isinstance(value, tuple) else (value,):
        if isinstance(path, str | Path):
            check_path(Path(path))


def original_words(ctx: click.Context) -> tuple[str, ...]:
    """Return the words behind the verb, as they were given."""
    words: tuple[str, ...] = ctx.meta.get(ORIGINAL_WORDS, ())
    return words


def words_after_dashes(ctx: click.Context) -> tuple[str, ...]:
    """Return what stood behind ``--`` on the command line."""
    words: tuple[str, ...] = ctx.meta.get(AFTER_DASHES, ())
    return words


def verb(name: str) -> Callable[[Callable[..., object]], Verb]:
    """Make a command of a function, with the habits that all of Assay's commands share."""

    def make(function: Callable[..., object]) -> Verb:
        return click.command(name, cls=Verb, context_settings=SETTINGS)(function)

    return make


def monitor_options(function: FunctionT) -> FunctionT:
    """Add the options of the recorder that watches a run, and of the history that remembers it."""
    function = click.option(
        "--monitor/--no-monitor", default=True, help="Record sensors meanwhile; energy and evidence come from it."
    )(function)
    function = click.option("--monitor-interval", type=Interval(), help="Between two looks.  [default: 50 ms on GPUs]")(
        function
    )
    return history_option(function)


def history_option(function: FunctionT) -> FunctionT:
    """Add the option to leave a run out of the history."""
    return click.option("--history/--no-history", default=True, help="Keep the results in the history.")(function)


def interference_option(function: FunctionT) -> FunctionT:
    """Add the option that says what is done where others are busy."""
    return click.option(
        "--on-interference",
        type=click.Choice(["warn", "refuse", "wait"]),
        default="warn",
        show_default=True,
        help="When others are busy before a trial.",
    )(function)


def retake_option(function: FunctionT) -> FunctionT:
    """Add the option to measure disturbed trials again."""
    return click.option(
        "--retake-disturbed",
        "retakes",
        type=click.IntRange(0, MAX_REPEATS),
        default=0,
        show_default=True,
        help="Measure a trial that others disturbed again, at most so often.",
    )(function)
