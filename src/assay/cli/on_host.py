"""``--on``: send a measuring verb to a host, word for word, and show what it says there as if it ran here.

A verb takes part with the decorator `hosted` and, first of all in its function::

    if (code := on_host.sent(ctx, given)) is not None:
        return code
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.cli.params import Duration, as_given
from assay.core.errors import AssayError, BadInput, MachineCannot, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from assay.hosts.base import Ended, Host, Order, Progress

FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

LOCAL = "local"


class HostOption(click.Option):
    """An option about machines elsewhere; it is said on the command line and nowhere else."""


class TimeLimit(Duration):
    """Seconds from "30m", "2h", or Slurm's "HH:MM:SS"; a bare number would be minutes to some and seconds to others."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        from assay.hosts.slurm.queue import seconds

        text = str(value)
        if re.fullmatch(r"\s*[0-9.]+\s*", text):
            raise BadInput(f"--time {text} could be seconds or minutes; write {text.strip()}m or HH:MM:SS.")
        if ":" in text or "-" in text:
            found = seconds(text)
            if not found:
                raise BadInput(f"--time {text} is not a time; write 30m, 2h or HH:MM:SS.")
            return found
        return super().convert(value, param, ctx)


OPTIONS = {
    "on": click.option(
        "--on", default=LOCAL, show_default=True, metavar="HOST", cls=HostOption, help="local, slurm, slurm:PARTITION."
    ),
    "nodes": click.option("--nodes", type=click.IntRange(1), cls=HostOption, help="Of the host.  [default: 1]"),
    "nproc": click.option(
        "--nproc", type=click.IntRange(1), cls=HostOption, help="Processes on each node.  [default: its GPUs, or 1]"
    ),
    "partition": click.option("--partition", cls=HostOption, help="Slurm's partition, as --on slurm:PARTITION."),
    "account": click.option("--account", cls=HostOption, help="Slurm's account."),
    "time": click.option(
        "--time", type=TimeLimit(), cls=HostOption, metavar="30m", help="The host ends it after so long."
    ),
    "gres": click.option("--gres", cls=HostOption, metavar="gpu:4", help="Slurm's generic resources on each node."),
    "gpus_per_node": click.option("--gpus-per-node", cls=HostOption, metavar="[TYPE:]N", help="GPUs on each node."),
    "sbatch_args": click.option(
        "--sbatch-arg", "sbatch_args", multiple=True, cls=HostOption, metavar="--OPT=VALUE", help="Handed to sbatch."
    ),
    "remote_python": click.option(
        "--remote-python", cls=HostOption, metavar="PATH", help="The interpreter there.  [default: this one]"
    ),
}
"""The options about machines elsewhere, by their names."""

NOT_SENT = frozenset({*OPTIONS, "dry_run"})
"""What says where, or that nothing is to be done, ends here; all other options are sent."""


def hosted(*, but: tuple[str, ...] = ()) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds the options about machines elsewhere, but those that the verb has itself."""

    def add(function: FunctionT) -> FunctionT:
        for name, option in reversed(OPTIONS.items()):
            function = function if name in but else option(function)
        return function

    return add


def sent(ctx: click.Context, given: Mapping[str, Any]) -> int | None:
    """Return the exit code of the verb where it was sent to; null when it is to be run here."""
    from assay.hosts import registry

    name, place = registry.parse(given["on"])
    said = [p for p in ctx.command.params if isinstance(p, HostOption) and p.name != "on" and given[str(p.name)]]
    if name == LOCAL:
        if said:
            raise BadInput(f"{said[0].opts[0]} is about machines elsewhere; say where with --on, such as --on slurm.")
        return None
    host = registry.find(name)
    strange = [p.opts[0] for p in said if p.name not in {*host.options, "remote_python"}]
    if strange:
        raise BadInput(f"{strange[0]} means nothing to --on {name}.")
    order = order_of(ctx, given, name, place)
    if given.get("dry_run"):
        click.echo(host.script(order), nl=False)
        return 0
    return _carried_out(host, order)


def order_of(ctx: click.Context, given: Mapping[str, Any], host: str, place: str | None) -> Order:
    """Return what is to be run elsewhere, and on what."""
    import secrets
    from datetime import datetime
    from pathlib import Path
    from shutil import get_terminal_size

    from assay.hosts.base import Order

    if place is not None and given["partition"] not in {None, place}:
        raise BadInput(f"--on {host}:{place} and --partition {given['partition']} are two partitions.")
    number = secrets.token_hex(8)
    output_dir = Path(given.get("output_dir") or given["run"].parent).absolute()
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    remote = given["remote_python"]
    return Order(
        id=number,
        words=inner_words(ctx),
        cwd=str(Path.cwd()),
        folder=str(output_dir / f"{host}-{stamp}-{number[:4]}"),
        output_dir=str(output_dir),
        place=place or given["partition"],
        nodes=given["nodes"] or 1,
        processes=given["nproc"] or _gpus(given) or 1,
        limit_s=given["time"],
        arguments=(
            *(f"--{key.replace('_', '-')}={given[key]}" for key in ("account", "gres", "gpus_per_node") if given[key]),
            *given["sbatch_args"],
        ),
        python=remote or sys.executable,
        python_path=None if remote else _absolute(os.environ.get("PYTHONPATH", "")),
        columns=max(20, get_terminal_size().columns),
    )


def _gpus(given: Mapping[str, Any]) -> int | None:
    """Return how many GPUs a node is asked to have, where that is said."""
    for text in (given["gpus_per_node"], given["gres"]):
        if found := re.fullmatch(r"(?:gpu:)?(?:[^:,=]+[:=])?(\d+)", text or ""):
            return int(found[1])
    return None


def _absolute(python_path: str) -> str | None:
    from pathlib import Path

    return os.pathsep.join(str(Path(entry).absolute()) for entry in python_path.split(os.pathsep) if entry) or None


def inner_words(ctx: click.Context) -> tuple[str, ...]:
    """Return the verb and its words, without those that say where."""
    mine = {name: p for p in ctx.command.params if p.name in NOT_SENT for name in (*p.opts, *p.secondary_opts)}
    words = list(as_given(ctx))
    cut = words.index("--") if "--" in words else len(words)
    return (*ctx.command_path.split()[1:], *_without(words[:cut], mine), *words[cut:])


def _without(words: Iterable[str], mine: Mapping[str, click.Parameter]) -> list[str]:
    kept: list[str] = []
    skipping = False
    for word in words:
        name, equals, _ = word.partition("=")
        parameter = mine.get(name.replace("_", "-")) if name.startswith("--") else None
        if skipping:
            skipping = False
        elif parameter is None:
            kept.append(word)
        else:
            skipping = not equals and not getattr(parameter, "is_flag", False)
    return kept


class Screen:
    """Shows an order's progress on stderr, and what is printed there where it would be printed here."""

    def progress(self, progress: Progress) -> None:
        """Print one line."""
        click.echo(progress.what, err=True)

    def out(self, data: bytes) -> None:
        """Print the result."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def err(self, data: bytes) -> None:
        """Print the rest."""
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


def _carried_out(host: Host, order: Order) -> int:
    from assay.hosts.errand import carry_out

    try:
        ended, folders = carry_out(host, order, Screen())
    except Stopped as stopped:
        raise Stopped(f"{stopped}{_way_on(order, host)}.") from None
    _raise_for(ended, order, folders, host)
    return ended.exit_code


def _raise_for(ended: Ended, order: Order, folders: tuple[Path, ...], host: Host) -> None:
    """Say what the Assay over there could not say itself."""
    if ended.reason is None:
        return
    kinds: dict[int, type[AssayError]] = {kind.exit_code: kind for kind in (BadInput, MachineCannot, Stopped)}
    way_on = _way_on(order, host) if folders else ""
    raise kinds.get(ended.exit_code, Stopped)(f"{ended.reason}. Its files are in {order.folder}{way_on}.")


def _way_on(order: Order, host: Host) -> str:
    """Say how to go on with what was measured, if anything was."""
    from pathlib import Path

    from assay.cli.show import short
    from assay.hosts.traces import run_of

    run = run_of(Path(order.folder))
    return "" if run is None else f"; `assay resume {short(run)} --on {host.name}` goes on, with the same options"
