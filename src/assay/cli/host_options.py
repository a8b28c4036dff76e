"""``--on`` and the other options about remote machines.

Build a job from the command line, run it on a host, and show its output here.
"""

from __future__ import annotations

import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from assay.cli.params import COUNT, PROCESSES, REMOTE, Duration, original_words
from assay.core.errors import EXIT_STOPPED, AssayError, BadInput, EndedEarly, MachineCannot, StopRequested
from assay.core.files import find_control_character

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from assay.hosts.base import Host, Job, JobEnd, JobProgress, UploadedFile


if TYPE_CHECKING:
    _Float = click.ParamType[float]
else:
    _Float = click.ParamType


class TimeLimit(Duration):
    """Seconds from "30m", "2h", or Slurm's "HH:MM:SS"; a bare number would be minutes to some and seconds to others."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        from assay.hosts.slurm.commands import parse_time_limit

        text = str(value)
        if re.fullmatch(r"\s*[0-9.]+\s*", text):
            raise BadInput(f"--time {text} has no unit; write {text.strip()}m, {text.strip()}s or HH:MM:SS.")
        if ":" in text or "-" in text:
            parsed_s = parse_time_limit(text)
            if not parsed_s:
                raise BadInput(f"--time {text} is not a duration; write 30m, 2h or HH:MM:SS.")
            return parsed_s
        return super().convert(value, param, ctx)


class Dollars(_Float):
    """An amount of money above nothing: "1.50", or "$1.50"."""

    name = "usd"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return dollars."""
        try:
            usd = float(str(value).strip().removeprefix("$"))
        except ValueError:
            usd = math.nan
        if not (0 < usd < math.inf):
            raise BadInput(f"--max-cost {value} must be a positive amount in USD, e.g. 1.50.")
        return usd


def build_job(
    ctx: click.Context,
    flags: Mapping[str, Any],
    host: str,
    partition: str | None,
    *,
    but: frozenset[str],
    ships: bool = False,
) -> Job:
    """Return what is to be run elsewhere, and on what; options ``but`` these are sent, and files where it ``ships``."""
    import secrets
    from datetime import datetime
    from pathlib import Path
    from shutil import get_terminal_size

    from assay.hosts.base import Job

    if partition is not None and flags["partition"] not in {None, partition}:
        raise BadInput(
            f"--on {host}:{partition} and --partition {flags['partition']} name different partitions; give one."
        )
    cwd = Path.cwd()
    number = secrets.token_hex(8)
    output_dir = Path(flags.get("output_dir") or flags["run"].parent).absolute()
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    remote = flags["remote_python"]
    python = sys.executable
    files: tuple[UploadedFile, ...] = ()
    words = forwarded_words(ctx, but)
    if ships:
        from assay.cli.shipping import prepare_upload
        from assay.hosts.remote.transfer import PYTHON

        python = PYTHON
        cwd, words, files = prepare_upload(ctx, flags, words, number)
    return Job(
        id=number,
        words=words,
        cwd=str(cwd),
        folder=str(output_dir / f"{host}-{stamp}-{number[:4]}"),
        output_dir=str(output_dir),
        host_place=partition or flags["partition"],
        nodes=flags["nodes"] or 1,
        processes=flags["nproc"] or _gpus(flags) or 1,
        limit_s=flags["time"],
        arguments=(
            *(f"--{key.replace('_', '-')}={flags[key]}" for key in ("account", "gres", "gpus_per_node") if flags[key]),
            *flags["sbatch_args"],
        ),
        python=remote or python,
        python_path=None if remote or ships else _absolute(os.environ.get("PYTHONPATH", "")),
        columns=max(20, get_terminal_size().columns),
        files=files,
        image=flags["image"],
        max_cost_usd=flags["max_cost"],
    )


def _gpus(flags: Mapping[str, Any]) -> int | None:
    """Return how many GPUs a node is asked to have, where that is said."""
    for text in (flags["gpus_per_node"], flags["gres"]):
        if match := re.fullmatch(r"(?:gpu:)?(?:[^:,=]+[:=])?(\d+)", text or ""):
            return int(match[1])
    return None


def _absolute(python_path: str) -> str | None:
    from pathlib import Path

    return os.pathsep.join(str(Path(entry).absolute()) for entry in python_path.split(os.pathsep) if entry) or None


def forwarded_words(ctx: click.Context, but: frozenset[str]) -> tuple[str, ...]:
    """Return the verb and its words, without those that say where."""
    mine = {name: p for p in ctx.command.params if p.name in but for name in (*p.opts, *p.secondary_opts)}
    words = list(original_words(ctx))
    cut = words.index("--") if "--" in words else len(words)
    return (*ctx.command_path.split()[1:], *_without(words[:cut], mine), *words[cut:])


def _without(words: Iterable[str], mine: Mapping[str, click.Parameter]) -> list[str]:
    remaining: list[str] = []
    skipping = False
    for word in words:
        name, equals, _ = word.partition("=")
        attached = word[:2] in mine and not word.startswith("--") and len(word) > 2  # -oFILE
        parameter = mine.get(word[:2] if attached else name.replace("_", "-")) if word.startswith("-") else None
        if skipping:
            skipping = False
        elif parameter is None:
            remaining.append(word)
        else:
            skipping = not equals and not attached and not getattr(parameter, "is_flag", False)
    return remaining


FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

LOCAL = "local"


class HostOption(click.Option):
    """An option about machines elsewhere; it is said on the command line and nowhere else.

    What it says stands in scripts and commands there, so it is one line of printable text.
    """

    help_group = REMOTE

    def process_value(self, ctx: click.Context, value: object) -> object:
        """Return the value.

        Raises:
            BadInput: It holds a control character, such as a line break.
        """
        read: object = super().process_value(ctx, value)
        for text in read if isinstance(read, tuple) else (read,):
            if isinstance(text, str) and (character := find_control_character(text)) is not None:
                raise BadInput(f"{self.opts[0]} {text!r} contains the control character {character!r}; remove it.")
        return read


HOST_OPTIONS = {
    "on": click.option(
        "--on",
        default=LOCAL,
        show_default=True,
        metavar="HOST",
        cls=HostOption,
        help="local, ssh:HOST, slurm, modal, runpod, lambda or auto.",
    ),
    "gpu_type": click.option("--gpu-type", cls=HostOption, metavar="L4", help="GPU model; T4,L4 rents one of each."),
    "image": click.option("--image", cls=HostOption, help="Image for the rented machine."),
    "max_cost": click.option(
        "--max-cost", type=Dollars(), cls=HostOption, metavar="USD", help="Rent nothing that may cost more than this."
    ),
    "ship": click.option(
        "--ship",
        multiple=True,
        cls=HostOption,
        metavar="PATH",
        help="Extra file or folder to upload; paths on the command line are uploaded automatically.",
    ),
    "nodes": click.option("--nodes", type=COUNT, cls=HostOption, help="Number of nodes.  [default: 1]"),
    "nproc": click.option(
        "--nproc", type=PROCESSES, cls=HostOption, help="Processes per node.  [default: its GPUs, or 1]"
    ),
    "partition": click.option(
        "--partition", cls=HostOption, metavar="NAME", help="Slurm partition, as in --on slurm:NAME."
    ),
    "account": click.option("--account", cls=HostOption, metavar="NAME", help="Slurm account."),
    "time": click.option("--time", type=TimeLimit(), cls=HostOption, metavar="30m", help="Time limit of the job."),
    "gres": click.option("--gres", cls=HostOption, metavar="gpu:4", help="Slurm generic resources per node."),
    "gpus_per_node": click.option("--gpus-per-node", cls=HostOption, metavar="[TYPE:]N", help="GPUs per Slurm node."),
    "sbatch_args": click.option(
        "--sbatch-arg",
        "sbatch_args",
        multiple=True,
        cls=HostOption,
        metavar="--OPT=VALUE",
        help="Extra argument for sbatch.",
    ),
    "remote_python": click.option(
        "--remote-python",
        cls=HostOption,
        metavar="PATH",
        help="Interpreter on the host.  [default: this one on Slurm, else python3]",
    ),
}
"""The options about machines elsewhere, by their names."""

NOT_FORWARDED = frozenset({*HOST_OPTIONS, "dry_run", "provider"})
"""What says where, or that nothing is to be done, ends here; all other options are sent."""

UPLOAD_OPTION = "ship"
"""A host with this among its options shares no files with us."""

LOCAL_ONLY = frozenset({"output_dir", "history", "dry_run"})
"""What is done here, where no files are shared."""


def host_options(*, but: tuple[str, ...] = ()) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds the options about machines elsewhere, but those that the verb has itself."""

    def add(function: FunctionT) -> FunctionT:
        for name, option in reversed(HOST_OPTIONS.items()):
            function = function if name in but else option(function)
        return function

    return add


def dispatch_remote(ctx: click.Context, flags: Mapping[str, Any], after: RemoteRunHook | None = None) -> int | None:
    """Return the exit code of the verb where it was sent to; null when it is to be run here.

    ``after`` is what is done here with a run that came back from a machine that shares no files.
    """
    from assay.hosts import registry

    name, partition = registry.parse_host(flags["on"])
    host_flags = [p for p in ctx.command.params if isinstance(p, HostOption) and p.name != "on" and flags[str(p.name)]]
    if name == LOCAL:
        if host_flags:
            raise BadInput(f"{host_flags[0].opts[0]} needs a remote host: add --on, such as --on slurm.")
        return None
    from assay.cli import rental

    if rental.host_rents(name):

        def carry(host: Host, changes: Mapping[str, object]) -> int:
            return _dispatch_to_host(host, partition, ctx, flags, after=after, changes=changes)

        return rental.rent_and_dispatch(ctx, flags, on=name, partition=partition, carry=carry, host_flags=host_flags)
    host = registry.find_host(name)
    strange = [p.opts[0] for p in host_flags if p.name not in {*host.options, "remote_python"}]
    if strange:
        raise BadInput(f"{strange[0]} is not supported with --on {name}; remove it.")
    kind = None if flags["gpu_type"] is None else single_gpu_type(flags["gpu_type"])
    return _dispatch_to_host(host, partition, ctx, flags, after=after, changes={"gpu": kind})


def _dispatch_to_host(
    host: Host,
    partition: str | None,
    ctx: click.Context,
    flags: Mapping[str, Any],
    *,
    after: RemoteRunHook | None,
    changes: Mapping[str, object],
) -> int:
    """Return the exit code of the verb on a host; ``changes`` is what its order says of the machine."""
    ships = UPLOAD_OPTION in host.options
    but = NOT_FORWARDED
    if ships:  # an option that a verb has itself, as the ranks of a scaling, is the verb's there as well
        elsewhere = {str(p.name) for p in ctx.command.params if isinstance(p, HostOption)}
        but = LOCAL_ONLY | elsewhere | (after.local_options if after is not None else frozenset())
    job = build_job(ctx, flags, host.name, partition, but=but, ships=ships).model_copy(update=changes)
    if ships and after is not None:
        job = job.model_copy(update={"words": (*job.words, *after.extra_words)})
    if flags.get("dry_run"):
        click.echo(host.script(job), nl=False)
        return 0
    afterwards = after.prepared(job) if after is not None and ships else None
    return _run_remotely(host, job, remembered=ships and flags.get("history", True), afterwards=afterwards)


def single_gpu_type(text: str) -> str:
    """Return the kind of GPU that is to answer, as Assay writes it."""
    from assay.hosts.gpu_types import parse_gpu_type

    if "," in text:
        raise BadInput(f"--gpu-type {text} names several GPU models; --on a single machine takes one.")
    return parse_gpu_type(text, {})


class RemoteRunHook(Protocol):
    """What a verb does with its results here, which is not sent to a machine that shares no files."""

    local_options: frozenset[str]
    """The options that say so."""

    extra_words: tuple[str, ...]
    """What is said there besides, so that it is not done there."""

    def prepared(self, job: Job) -> Callable[[Path, int], int]:
        """Make sure that it can be done; return who is given the run folder and exit code, and has the last word."""
        ...


class TerminalWatcher:
    """Shows an order's progress on stderr, and what is printed there where it would be printed here."""

    def progress(self, progress: JobProgress) -> None:
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


def _run_remotely(
    host: Host, job: Job, *, remembered: bool, afterwards: Callable[[Path, int], int] | None = None
) -> int:
    from assay.cli.history_hook import import_into_history
    from assay.hosts.run_job import run_job

    try:
        ended, folders = run_job(host, job, TerminalWatcher())
    except (StopRequested, EndedEarly) as stopped:
        raise type(stopped)(f"{stopped}{_resume_hint(job, host)}.") from None
    for folder in folders if remembered else ():
        if (folder / "findings.json").is_file():  # else it is not finished
            import_into_history(folder)
    _raise_remote_error(ended, job, folders, host)
    if ended.exit_code == EXIT_STOPPED and (way_on := _resume_hint(job, host)):
        click.echo(f"From here{way_on.removeprefix(';')}.", err=True)
    if afterwards is not None and folders and (folders[0] / "findings.json").is_file():
        return afterwards(folders[0], ended.exit_code)
    return ended.exit_code


def _raise_remote_error(ended: JobEnd, job: Job, folders: tuple[Path, ...], host: Host) -> None:
    """Say what the Assay over there could not say itself."""
    if ended.reason is None:
        return
    kinds: dict[int, type[AssayError]] = {kind.exit_code: kind for kind in (BadInput, MachineCannot, EndedEarly)}
    way_on = _resume_hint(job, host) if folders else ""
    left = "" if UPLOAD_OPTION in host.options else f". Its files are in {job.folder}"
    raise kinds.get(ended.exit_code, EndedEarly)(f"{ended.reason.rstrip('.')}{left}{way_on}.")


def _resume_hint(job: Job, host: Host) -> str:
    """Say how to go on with what was measured, if anything was."""
    from pathlib import Path

    from assay.cli.show import short_path
    from assay.hosts.run_job import recorded_run

    run = recorded_run(Path(job.folder))
    where = f"{host.name}:{job.host_place}" if UPLOAD_OPTION in host.options and job.host_place else host.name
    return "" if run is None else f"; `assay resume {short_path(run)} --on {where}` goes on, with the same options"
