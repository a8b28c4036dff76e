"""Parameter types and option decorators shared by all verbs: durations, percentages, lists, a command after ``--``."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.cli.groups import OlderHelpContext
from assay.core.errors import AssayError, BadInput
from assay.core.files import lease_folder
from assay.core.format import MAX_CALLS, MAX_PROCESSES, MAX_REPEATS, MAX_SIZE, parse_duration_s, parse_fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


MAX_NAMED_LEFTOVERS = 3
"""How many leases are listed at most; `assay reap` lists all of them."""


def warn_about_leftovers() -> None:
    """Warn on stderr about leftovers of crashed runs; quick where there is no lease at all."""
    try:
        if not any(lease_folder().glob("*.json")):
            return
        from assay.core.leases import find_orphaned_leases

        left = find_orphaned_leases()
    except AssayError:
        return  # whoever needs the home reports that it cannot be used
    if left:
        more = f" and {len(left) - MAX_NAMED_LEFTOVERS} more" if len(left) > MAX_NAMED_LEFTOVERS else ""
        what = "; ".join(lease.what for lease in left[:MAX_NAMED_LEFTOVERS])
        click.echo(f"warning: a crashed run left behind: {what}{more}. `assay reap` cleans up.", err=True)


FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

if TYPE_CHECKING:
    _Float = click.ParamType[float]
    _Int = click.ParamType[int]
else:
    _Float = _Int = click.ParamType

SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
"""Option names are read with underscores or dashes."""

AFTER_DASHES = "assay.behind_dashes"
ORIGINAL_WORDS = "assay.as_given"


class WholeNumber(_Int):
    """A whole number within bounds; help does not show them, an error does."""

    name = "integer"

    def __init__(self, least: int, most: int | None = None) -> None:
        self._range = click.IntRange(least, most)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what stands for the number in help."""
        return "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        return self._range.convert(click.INT.convert(value, param, ctx), param, ctx)


COUNT = WholeNumber(1, MAX_REPEATS)
"""How often something is done, or on how many nodes."""
SEVERAL = WholeNumber(2, MAX_REPEATS)
PROCESSES = WholeNumber(1, MAX_PROCESSES)
"""How many processes there are at once."""
RANKS_OR_NONE = WholeNumber(0, MAX_PROCESSES)
CALLS = WholeNumber(1, MAX_CALLS)
CALLS_OR_NONE = WholeNumber(0, MAX_CALLS)
SIZE = WholeNumber(1, MAX_SIZE)
GPU = r"\d+(/\d+)?|(GPU|MIG)-\S+"
DEVICE = r"(cpu|cuda)(:\d+(/\d+)?)?"

WHAT = "What to measure"
HOW = "How to measure"
DECISION = "How to decide"
OUTPUT = "Output"
MONITORING = "Monitoring and history"
REMOTE = "Remote, Slurm and rental options"
GROUP = "help_group"
"""The attribute of an option that holds the title of its group in the help."""

OLDER_NAMES = frozenset({"--kernel", "--gpu"})
"""Spellings of the older tools: accepted, but not shown in help."""

AGGRESSORS = "cpu, memory, pcie, sm, hbm"
"""The aggressors that have a name of their own; written here, as help must not wait for their workloads."""


class Duration(_Float):
    """Seconds from "5", "500ms", "2m"."""

    name = "time"

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
            raise BadInput(f"{self.opts[0]} needs at least one value.")
        return items


class OptionalValueOption(click.Option):
    """An option that may stand alone, or before a value; alone it has the value ``alone``."""

    def __init__(self, *args: Any, alone: str, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "is_flag": False, "flag_value": alone})


class OlderVerb(click.Command):
    """A command whose lists may be written with spaces, and that keeps what stands behind ``--`` apart.

    It says first what runs that died have left behind, unless ``warns_of_leftovers`` is off.
    """

    context_class = OlderHelpContext
    warns_of_leftovers = True

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options in groups: the verb's own, then monitoring, then those of other machines."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (row := _help_row(param, ctx)) is not None:
                groups.setdefault(_help_group(param, groups), []).append(row)
        for title in sorted(groups, key=[MONITORING, REMOTE].count):  # stable: in order, these two last
            with formatter.section(title):
                formatter.write_dl(groups[title])

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
                raise BadInput(f"{word} needs a value, but is followed by the option {name}.")

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


def _help_group(option: click.Option, groups: Collection[str]) -> str:
    """Return the title of an option's group; `--help` itself goes where the output is described."""
    return str(getattr(option, GROUP, OUTPUT if OUTPUT in groups else "Options"))


def _help_row(option: click.Option, ctx: click.Context) -> tuple[str, str] | None:
    """Return how an option is written, and what it does; null for a hidden one."""
    record = option.get_help_record(ctx)
    if record is None:
        return None
    shown = [name for name in option.opts if name not in OLDER_NAMES] or option.opts
    names = ", ".join(sorted(shown, key=len))
    if option.secondary_opts == [names.replace("--", "--no-", 1)]:
        names = names.replace("--", "--[no-]", 1)
    elif option.secondary_opts:
        names = f"{names} / {option.secondary_opts[0]}"
    takes_value = not (option.is_flag or option.count)
    return (f"{names} {option.make_metavar(ctx)}" if takes_value else names), record[1]


def _check_paths(value: object) -> None:
    """Refuse paths that no file can have, such as a name that is too long."""
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


def verb(name: str) -> Callable[[Callable[..., object]], OlderVerb]:
    """Make a command of a function, with the habits that all of Assay's commands share."""

    def make(function: Callable[..., object]) -> OlderVerb:
        return click.command(name, cls=OlderVerb, context_settings=SETTINGS)(function)

    return make


def grouped(title: str, *options: Callable[[Any], Any]) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds options, listed under a title in the help."""

    def add(function: FunctionT) -> FunctionT:
        params = function.__dict__.setdefault("__click_params__", [])  # where click collects them, the last one first
        before = len(params)
        for option in reversed(options):
            function = option(function)
        for param in params[before:]:
            setattr(param, GROUP, title)
        return function

    return add


def heading(title: str) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that lists the options below it, down to the next such decorator, under a title."""

    def add(function: FunctionT) -> FunctionT:
        for param in function.__dict__.get("__click_params__", ()):
            if not hasattr(param, GROUP):
                setattr(param, GROUP, title)
        return function

    return add


what_to_measure = heading(WHAT)
how_to_decide = heading(DECISION)
how_to_measure = heading(HOW)
output_group = heading(OUTPUT)


def device_options(
    gpus: str = "all", *, cpu_groups: str = "2", several: bool = True
) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds the options that choose devices; the words are the defaults that help shows."""
    what = "GPUs, by index or UUID." if several else "GPU, by index or UUID."
    return grouped(
        WHAT,
        click.option(
            "--gpus", cls=ListOption, item=GPU, metavar="0,1" if several else "0", help=f"{what}  [default: {gpus}]"
        ),
        click.option(
            "--device", "devices", cls=ListOption, item=DEVICE, metavar="cpu", help="Devices: cpu, cpu:0, cuda:1."
        ),
        click.option(
            "--cpu-groups",
            type=PROCESSES,
            help=f"Split the cores into this many groups (one device each).  [default: {cpu_groups}]",
        ),
    )


isolation_option = click.option(
    "--isolation",
    default="full",
    show_default=True,
    metavar="LEVEL",
    help="none, gpu, cpu, numa or full.",
)
interference_option = click.option(
    "--on-interference",
    type=click.Choice(["warn", "refuse", "wait"]),
    default="warn",
    show_default=True,
    metavar="ACTION",
    help="What to do when other processes use the machine: warn, refuse or wait.",
)
retake_option = click.option(
    "--retake-disturbed",
    "retakes",
    type=WholeNumber(0, MAX_REPEATS),
    default=0,
    show_default=True,
    help="Retakes of a disturbed trial.",
)
cache_option = click.option(
    "--cache", type=click.Choice(["cold", "warm"]), help="GPU L2 before each call.  [default: cold]"
)
cooldown_option = click.option("--cooldown", type=Duration(zero_ok=True), default="0", help="Pause between trials.")
seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be measured, then exit.")
name_host_option = click.option("--name-host", is_flag=True, help="Record the hostname in machine.json.")
output_dir_option = click.option(
    "--output-dir", type=click.Path(path_type=Path), default="runs", show_default=True, help="Folder for run folders."
)
options_file_option = click.option(
    "--options", "file", type=click.Path(path_type=Path), help="Read options from a YAML or JSON file."
)
history_option = grouped(
    MONITORING, click.option("--history/--no-history", default=True, help="Save the results in the history.")
)
fail_on_regression_option = click.option(
    "--fail-on-regression", "gate", is_flag=True, help="Exit with code 1 on a regression."
)
unsure_option = click.option(
    "--unsure",
    type=click.Choice(["pass", "fail"]),
    default="pass",
    show_default=True,
    help="Gate result if inconclusive.",
)


def timeout_option(default: str = "2m") -> Callable[[FunctionT], FunctionT]:
    """Return the option that limits how long a worker may be silent."""
    return click.option(
        "--timeout", type=Duration(), default=default, show_default=True, help="Worker response timeout."
    )


def min_effect_option(default: str) -> Callable[[FunctionT], FunctionT]:
    """Return the option that sets the smallest effect worth reporting."""
    return click.option(
        "--min-effect", type=Fraction(), default=default, show_default=True, help="Ignore effects smaller than this."
    )


def monitor_options(function: FunctionT) -> FunctionT:
    """Add the options of the recorder that watches a run, and of the history that remembers it."""
    return grouped(
        MONITORING,
        click.option("--monitor/--no-monitor", default=True, help="Record GPU and host sensors during the run."),
        click.option("--monitor-interval", type=Interval(), help="Sampling interval.  [default: 50ms on GPUs]"),
        history_option,
    )(function)


def worker_options(timeout: str = "2m", *, isolated: bool = True) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds how workers are isolated, repeated and waited for, and where options come from."""
    return grouped(
        HOW,
        *((isolation_option,) if isolated else ()),
        interference_option,
        retake_option,
        timeout_option(timeout),
        seed_option,
        options_file_option,
    )


def run_options(function: FunctionT) -> FunctionT:
    """Add where run folders go, how the result is shown, and what is recorded: the same for most measuring verbs."""
    add_output = grouped(OUTPUT, output_dir_option, name_host_option, json_option, dry_run_option)
    return add_output(monitor_options(function))
