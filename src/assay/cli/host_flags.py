"""``--on`` and the other flags about remote machines.

Build a job from the command line, run it on a host, and show its output here.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from assay.cli import flags as cli
from assay.core.errors import EXIT_STOPPED, AssayError, BadInput, EndedEarly, MachineCannot, StopRequested
from assay.core.format import MAX_PROCESSES, MAX_REPEATS, format_duration, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.cli.commands import FlagRow
    from assay.cli.flags import Flags
    from assay.hosts.base import Host, Job, JobEnd, JobProgress, UploadedFile

LOCAL = "local"
DEFAULT_DURATION_S = 600.0
"""Assumed where nothing on the command line says how long the verb takes."""

remote_flag = partial(cli.flag, group=cli.REMOTE)
slurm_flag = partial(cli.flag, group=cli.SLURM)
rental_flag = partial(cli.flag, group=cli.RENTAL)


def parse_job_time(text: str) -> float:
    """Return seconds from "30m", "2h", or Slurm's "HH:MM:SS"; a number alone would be minutes or seconds."""
    from assay.hosts.slurm.commands import parse_time_limit

    if re.fullmatch(r"\s*[0-9.]+\s*", text):
        raise BadInput(f"--time {text} has no unit; write {text.strip()}m, {text.strip()}s or HH:MM:SS.")
    if ":" not in text and "-" not in text:
        return parse_duration_s(text)
    seconds = parse_time_limit(text)
    if not seconds:
        raise BadInput(f"--time {text} is not a duration; write 30m, 2h or HH:MM:SS.")
    return seconds


class DurationEstimate(NamedTuple):
    """How long a run takes once its machine is set up, and how that is known."""

    run_s: float
    source: str


class HostFlags(cli.JsonFlags, cli.HistoryFlags):
    """Where a verb runs: here, on a machine that can be reached, in a Slurm job or on a rented machine."""

    on: str = remote_flag(default=LOCAL, metavar="HOST", help="local, ssh:HOST, slurm, modal, runpod, lambda or auto.")
    time: float | None = remote_flag(parse=parse_job_time, metavar="30m", help="Time limit of the job.")
    nodes: int | None = remote_flag(ge=1, le=MAX_REPEATS, shown="1", help="Number of nodes.")
    nproc: int | None = remote_flag(ge=1, le=MAX_PROCESSES, shown="its GPUs, or 1", help="Processes per node.")
    ship: tuple[str, ...] = remote_flag(
        default=(),
        metavar="PATH",
        help="Extra file or folder to upload; paths on the command line are uploaded automatically.",
    )
    remote_python: str | None = remote_flag(
        metavar="PATH", shown="this one on Slurm, else python3", help="Interpreter on the host."
    )
    partition: str | None = slurm_flag(metavar="NAME", help="Partition, as in --on slurm:NAME.")
    account: str | None = slurm_flag(metavar="NAME", help="Account.")
    gres: str | None = slurm_flag(metavar="gpu:4", help="Generic resources per node.")
    gpus_per_node: str | None = slurm_flag(metavar="[TYPE:]N", help="GPUs per node.")
    sbatch_args: tuple[str, ...] = slurm_flag(
        "--sbatch-arg", default=(), metavar="--OPT=VALUE", help="Extra argument for sbatch."
    )
    gpu_type: str | None = rental_flag(metavar="L4", help="GPU model; T4,L4 rents one of each.")
    image: str | None = rental_flag(help="Image for the rented machine.")
    max_cost: float | None = rental_flag(
        parse=cli.parse_usd, metavar="USD", help="Rent nothing that may cost more than this."
    )

    dry_run: bool = False
    devices: tuple[str, ...] = ()
    budget_s: float | None = None
    output_dir: Path | None = None
    run: Path | None = None
    """Of `assay resume`: the run to resume. This and the four above are flags of the verbs that have them."""

    def measures_cpu_only(self) -> bool:
        """Return whether only CPUs are measured: a rented machine's, say."""
        return bool(self.devices) and all(name.startswith("cpu") for name in self.devices)

    def estimate_duration(self) -> DurationEstimate:
        """Return how long the verb takes with these flags."""
        if self.budget_s is not None:
            return DurationEstimate(self.budget_s, "--budget")
        return DurationEstimate(DEFAULT_DURATION_S, f"assumed: {format_duration(DEFAULT_DURATION_S)}; --budget says it")

    def named_workloads(self) -> tuple[str, ...]:
        """Return the workloads measured on a GPU, as far as the command line names them."""
        return ()


HostFlagsT = TypeVar("HostFlagsT", bound=HostFlags)


def given_host_flags(flags: HostFlags) -> list[FlagRow]:
    """Return the flags about remote machines that were given, besides ``--on``."""
    rows = cli.flag_rows(type(flags))
    return [row for row in rows if row.group in cli.HOST_GROUPS and row.name != "on" and getattr(flags, row.name)]


NOT_FORWARDED = frozenset(
    {"dry_run", "provider"}.union(r.name for r in cli.flag_rows(HostFlags) if r.group in cli.HOST_GROUPS)
)
"""What says where, or that nothing is to be done, ends here; all other flags are sent."""

UPLOAD_OPTION = "ship"
"""A host with this among its options shares no files with us."""

LOCAL_ONLY = frozenset({"output_dir", "history", "dry_run"})
"""What is done here, where no files are shared."""


@dataclass(frozen=True)
class RemoteHook:
    """What a verb does here with results that come back from a machine that shares no files.

    Attributes:
        prepare: Check before the run that it can be done; return what is given the run folder and the exit code.
        local_options: The flags that ask for it, which are not sent.
        extra_words: Sent in addition, so that it is not done there.
    """

    prepare: Callable[[], Callable[[Path, int], int]]
    local_options: frozenset[str] = frozenset()
    extra_words: tuple[str, ...] = ()


def dispatch_remote(flags: HostFlags, hook: RemoteHook | None = None) -> int | None:
    """Return the exit code of the verb where it was sent to; null when it is to be run here."""
    host_rows = given_host_flags(flags)
    if flags.on == LOCAL:
        if host_rows:
            raise BadInput(f"{host_rows[0].title} needs a remote host: add --on, such as --on slurm.")
        return None
    from assay.cli import rental
    from assay.hosts import registry

    name, partition = registry.parse_host(flags.on)
    if rental.host_rents(name):

        def carry(host: Host, changes: Mapping[str, object]) -> int:
            return _dispatch_to_host(host, partition, flags, hook, changes)

        return rental.rent_and_dispatch(flags, on=name, partition=partition, carry=carry)
    host = registry.find_host(name)
    unsupported = [row.title for row in host_rows if row.name not in {*host.options, "remote_python"}]
    if unsupported:
        raise BadInput(f"{unsupported[0]} is not supported with --on {name}; remove it.")
    kind = None if flags.gpu_type is None else single_gpu_type(flags.gpu_type)
    return _dispatch_to_host(host, partition, flags, hook, {"gpu": kind})


def single_gpu_type(text: str) -> str:
    """Return the GPU model that the machine must have, as Assay writes it."""
    from assay.hosts.gpu_types import parse_gpu_type

    if "," in text:
        raise BadInput(f"--gpu-type {text} names several GPU models; --on a single machine takes one.")
    return parse_gpu_type(text, {})


def _dispatch_to_host(
    host: Host, partition: str | None, flags: HostFlags, hook: RemoteHook | None, changes: Mapping[str, object]
) -> int:
    """Run the verb on a host and return its exit code; ``changes`` are fields of its job."""
    ships = UPLOAD_OPTION in host.options
    not_sent = NOT_FORWARDED
    if ships:  # a flag that the verb has itself, as the ranks of a scaling, is the verb's there as well
        elsewhere = {row.name for row in cli.flag_rows(type(flags)) if row.group in cli.HOST_GROUPS}
        not_sent = LOCAL_ONLY | elsewhere | (hook.local_options if hook is not None else frozenset())
    job = build_job(flags, host.name, partition, but=not_sent, ships=ships).model_copy(update=changes)
    if ships and hook is not None:
        job = job.model_copy(update={"words": (*job.words, *hook.extra_words)})
    if flags.dry_run:
        click.echo(host.script(job), nl=False)
        return 0
    afterwards = hook.prepare() if ships and hook is not None else None
    return _run_remotely(host, job, remembered=ships and flags.history, afterwards=afterwards)


def build_job(flags: HostFlags, host: str, partition: str | None, *, but: frozenset[str], ships: bool = False) -> Job:
    """Return what to run on a host: the verb's words without the flags ``but`` these, and its files where it ships."""
    from assay.hosts.base import Job

    if partition is not None and flags.partition not in {None, partition}:
        raise BadInput(
            f"--on {host}:{partition} and --partition {flags.partition} name different partitions; give one."
        )
    cwd, job_id = Path.cwd(), secrets.token_hex(8)
    run_parent = flags.run.parent if flags.run is not None else Path("runs")
    output_dir = (flags.output_dir or run_parent).absolute()
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    words, python, python_path = forwarded_words(flags, but), sys.executable, _absolute_python_path()
    files: tuple[UploadedFile, ...] = ()
    if ships:
        from assay.cli.shipping import prepare_upload
        from assay.hosts.remote.transfer import PYTHON

        python, python_path = PYTHON, None
        cwd, words, files = prepare_upload(flags, words, job_id)
    if flags.remote_python:
        python, python_path = flags.remote_python, None
    slurm = (("--account", flags.account), ("--gres", flags.gres), ("--gpus-per-node", flags.gpus_per_node))
    return Job(
        id=job_id,
        words=words,
        cwd=str(cwd),
        folder=str(output_dir / f"{host}-{stamp}-{job_id[:4]}"),
        output_dir=str(output_dir),
        host_place=partition or flags.partition,
        nodes=flags.nodes or 1,
        processes=flags.nproc or _gpus_per_node(flags) or 1,
        limit_s=flags.time,
        arguments=(*(f"{name}={value}" for name, value in slurm if value), *flags.sbatch_args),
        python=python,
        python_path=python_path,
        columns=max(20, get_terminal_size().columns),
        files=files,
        image=flags.image,
        max_cost_usd=flags.max_cost,
    )


def _gpus_per_node(flags: HostFlags) -> int | None:
    """Return how many GPUs a node is asked to have; null: the flags do not say."""
    for text in (flags.gpus_per_node, flags.gres):
        if match := re.fullmatch(r"(?:gpu:)?(?:[^:,=]+[:=])?(\d+)", text or ""):
            return int(match[1])
    return None


def _absolute_python_path() -> str | None:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(str(Path(entry).absolute()) for entry in entries if entry) or None


def forwarded_words(flags: Flags, but: frozenset[str]) -> tuple[str, ...]:
    """Return the verb and its words, without the flags ``but`` these."""
    dropped = {name: row for row in cli.flag_rows(type(flags)) if row.name in but for name in row.spellings}
    words = list(flags.line.words)
    cut = words.index("--") if "--" in words else len(words)
    forwarded: list[str] = []
    skip_value = False
    for word in words[:cut]:
        name, equals, _ = word.partition("=")
        attached = word[:2] in dropped and not word.startswith("--") and len(word) > 2  # -oFILE
        row = dropped.get(word[:2] if attached else name.replace("_", "-")) if word.startswith("-") else None
        if skip_value:
            skip_value = False
        elif row is None:
            forwarded.append(word)
        else:
            skip_value = not equals and not attached and row.style != "switch"
    return (*flags.line.verb.split(), *forwarded, *words[cut:])


class TerminalWatcher:
    """Shows a job's progress on stderr, and its output where it would be printed here."""

    def progress(self, progress: JobProgress) -> None:
        """Print one line."""
        click.echo(progress.what, err=True)

    def out(self, data: bytes) -> None:
        """Print to stdout."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def err(self, data: bytes) -> None:
        """Print to stderr."""
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()


def _run_remotely(
    host: Host, job: Job, *, remembered: bool, afterwards: Callable[[Path, int], int] | None = None
) -> int:
    from assay.cli.history import import_into_history
    from assay.hosts.run_job import run_job

    try:
        ended, folders = run_job(host, job, TerminalWatcher())
    except (StopRequested, EndedEarly) as stopped:
        raise type(stopped)(f"{stopped}{_resume_hint(job, host)}.") from None
    finished = [folder for folder in folders if (folder / "findings.json").is_file()]
    for folder in finished if remembered else ():
        import_into_history(folder)
    if ended.reason is not None:
        _raise_remote_error(ended, job, _resume_hint(job, host) if folders else "", host)
    if ended.exit_code == EXIT_STOPPED and (hint := _resume_hint(job, host)):
        click.echo(f"From here{hint.removeprefix(';')}.", err=True)
    if afterwards is not None and folders and folders[0] in finished:
        return afterwards(folders[0], ended.exit_code)
    return ended.exit_code


def _raise_remote_error(ended: JobEnd, job: Job, resume_hint: str, host: Host) -> None:
    """Raise what the remote Assay could not report itself."""
    kinds: dict[int, type[AssayError]] = {kind.exit_code: kind for kind in (BadInput, MachineCannot, EndedEarly)}
    left = "" if UPLOAD_OPTION in host.options else f". Its files are in {job.folder}"
    raise kinds.get(ended.exit_code, EndedEarly)(f"{(ended.reason or '').rstrip('.')}{left}{resume_hint}.")


def _resume_hint(job: Job, host: Host) -> str:
    """Say how to resume what was measured, if anything was."""
    from assay.cli.show import short_path
    from assay.hosts.run_job import recorded_run

    run = recorded_run(Path(job.folder))
    where = f"{host.name}:{job.host_place}" if UPLOAD_OPTION in host.options and job.host_place else host.name
    return "" if run is None else f"; `assay resume {short_path(run)} --on {where}` goes on, with the same options"
