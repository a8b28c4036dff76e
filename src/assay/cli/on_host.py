"""``--on``: send a measuring verb to a host, word for word, and show what it says there as if it ran here.

A verb takes part with the decorator `hosted` and, first of all in its function::

    if (code := on_host.sent(ctx, given)) is not None:
        return code
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from assay.cli.ordering import Dollars, TimeLimit, order_of
from assay.cli.params import COUNT, PROCESSES
from assay.core.errors import EXIT_STOPPED, AssayError, BadInput, EndedEarly, MachineCannot, StopRequested
from assay.core.text import control_character

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from assay.hosts.base import Ended, Host, Order, Progress

FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

LOCAL = "local"


class HostOption(click.Option):
    """An option about machines elsewhere; it is said on the command line and nowhere else.

    What it says stands in scripts and commands there, so it is one line of printable text.
    """

    def process_value(self, ctx: click.Context, value: object) -> object:
        """Return the value.

        Raises:
            BadInput: It holds a control character, such as a line break.
        """
        read: object = super().process_value(ctx, value)
        for text in read if isinstance(read, tuple) else (read,):
            if isinstance(text, str) and (character := control_character(text)) is not None:
                raise BadInput(f"{self.opts[0]} {text!r} holds the control character {character!r}.")
        return read


OPTIONS = {
    "on": click.option(
        "--on",
        default=LOCAL,
        show_default=True,
        metavar="HOST",
        cls=HostOption,
        help="local, ssh:HOST, slurm, modal, runpod, lambda, auto.",
    ),
    "gpu_type": click.option(
        "--gpu-type", cls=HostOption, metavar="L4", help="The kind of GPU there; several, T4,L4, where they are rented."
    ),
    "image": click.option("--image", cls=HostOption, help="What a rented machine starts from."),
    "max_cost": click.option(
        "--max-cost",
        type=Dollars(),
        cls=HostOption,
        metavar="USD",
        help="Nothing is rented that may cost more.",
    ),
    "ship": click.option(
        "--ship",
        multiple=True,
        cls=HostOption,
        metavar="PATH",
        help="A file or folder that goes along; what the words name does so by itself.",
    ),
    "nodes": click.option("--nodes", type=COUNT, cls=HostOption, help="Of the host.  [default: 1]"),
    "nproc": click.option(
        "--nproc", type=PROCESSES, cls=HostOption, help="Processes on each node.  [default: its GPUs, or 1]"
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
        "--remote-python",
        cls=HostOption,
        metavar="PATH",
        help="The interpreter there.  [default: on Slurm this one, else python3]",
    ),
}
"""The options about machines elsewhere, by their names."""

NOT_SENT = frozenset({*OPTIONS, "dry_run", "provider"})
"""What says where, or that nothing is to be done, ends here; all other options are sent."""

SHIPS = "ship"
"""A host with this among its options shares no files with us."""

HERE = frozenset({"output_dir", "history", "dry_run"})
"""What is done here, where no files are shared."""


def hosted(*, but: tuple[str, ...] = ()) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds the options about machines elsewhere, but those that the verb has itself."""

    def add(function: FunctionT) -> FunctionT:
        for name, option in reversed(OPTIONS.items()):
            function = function if name in but else option(function)
        return function

    return add


def sent(ctx: click.Context, given: Mapping[str, Any], after: After | None = None) -> int | None:
    """Return the exit code of the verb where it was sent to; null when it is to be run here.

    ``after`` is what is done here with a run that came back from a machine that shares no files.
    """
    from assay.hosts import registry

    name, partition = registry.parse(given["on"])
    host_flags = [p for p in ctx.command.params if isinstance(p, HostOption) and p.name != "on" and given[str(p.name)]]
    if name == LOCAL:
        if host_flags:
            raise BadInput(
                f"{host_flags[0].opts[0]} is about machines elsewhere; say where with --on, such as --on slurm."
            )
        return None
    from assay.cli import renting

    if renting.rents(name):

        def carry(host: Host, changes: Mapping[str, object]) -> int:
            return _sent_to(host, partition, ctx, given, after=after, changes=changes)

        return renting.sent(ctx, given, on=name, place=partition, carry=carry, said=host_flags)
    host = registry.find(name)
    strange = [p.opts[0] for p in host_flags if p.name not in {*host.options, "remote_python"}]
    if strange:
        raise BadInput(f"{strange[0]} means nothing to --on {name}.")
    kind = None if given["gpu_type"] is None else one_kind(given["gpu_type"])
    return _sent_to(host, partition, ctx, given, after=after, changes={"gpu": kind})


def _sent_to(
    host: Host,
    place: str | None,
    ctx: click.Context,
    given: Mapping[str, Any],
    *,
    after: After | None,
    changes: Mapping[str, object],
) -> int:
    """Return the exit code of the verb on a host; ``changes`` is what its order says of the machine."""
    ships = SHIPS in host.options
    but = NOT_SENT
    if ships:  # an option that a verb has itself, as the ranks of a scaling, is the verb's there as well
        elsewhere = {str(p.name) for p in ctx.command.params if isinstance(p, HostOption)}
        but = HERE | elsewhere | (after.kept if after is not None else frozenset())
    job = order_of(ctx, given, host.name, place, but=but, ships=ships).model_copy(update=changes)
    if ships and after is not None:
        job = job.model_copy(update={"words": (*job.words, *after.words)})
    if given.get("dry_run"):
        click.echo(host.script(job), nl=False)
        return 0
    afterwards = after.prepared(job) if after is not None and ships else None
    return _carried_out(host, job, remembered=ships and given.get("history", True), afterwards=afterwards)


def one_kind(text: str) -> str:
    """Return the kind of GPU that is to answer, as Assay writes it."""
    from assay.hosts.gpu_types import asked_for

    if "," in text:
        raise BadInput(f"--gpu-type {text} names several kinds of GPU, and here one machine is to answer.")
    return asked_for(text, {})


class After(Protocol):
    """What a verb does with its results here, which is not sent to a machine that shares no files."""

    kept: frozenset[str]
    """The options that say so."""

    words: tuple[str, ...]
    """What is said there besides, so that it is not done there."""

    def prepared(self, order: Order) -> Callable[[Path, int], int]:
        """Make sure that it can be done; return who is given the run folder and exit code, and has the last word."""
        ...


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


def _carried_out(
    host: Host, order: Order, *, remembered: bool, afterwards: Callable[[Path, int], int] | None = None
) -> int:
    from assay.cli.remember import remember
    from assay.hosts.errand import carry_out

    try:
        ended, folders = carry_out(host, order, Screen())
    except (StopRequested, EndedEarly) as stopped:
        raise type(stopped)(f"{stopped}{_way_on(order, host)}.") from None
    for folder in folders if remembered else ():
        if (folder / "findings.json").is_file():  # else it is not finished
            remember(folder)
    _raise_for(ended, order, folders, host)
    if ended.exit_code == EXIT_STOPPED and (way_on := _way_on(order, host)):
        click.echo(f"From here{way_on.removeprefix(';')}.", err=True)
    if afterwards is not None and folders and (folders[0] / "findings.json").is_file():
        return afterwards(folders[0], ended.exit_code)
    return ended.exit_code


def _raise_for(ended: Ended, order: Order, folders: tuple[Path, ...], host: Host) -> None:
    """Say what the Assay over there could not say itself."""
    if ended.reason is None:
        return
    kinds: dict[int, type[AssayError]] = {kind.exit_code: kind for kind in (BadInput, MachineCannot, EndedEarly)}
    way_on = _way_on(order, host) if folders else ""
    left = "" if SHIPS in host.options else f". Its files are in {order.folder}"
    raise kinds.get(ended.exit_code, EndedEarly)(f"{ended.reason.rstrip('.')}{left}{way_on}.")


def _way_on(order: Order, host: Host) -> str:
    """Say how to go on with what was measured, if anything was."""
    from pathlib import Path

    from assay.cli.show import short
    from assay.hosts.traces import run_of

    run = run_of(Path(order.folder))
    where = f"{host.name}:{order.place}" if SHIPS in host.options and order.place else host.name
    return "" if run is None else f"; `assay resume {short(run)} --on {where}` goes on, with the same options"
