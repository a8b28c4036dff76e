"""``assay gate``: measure two revisions of a repository in turn on one device, and decide whether the later is slower.

Resolve both revisions with git, and check before measuring that both contain what is measured.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from assay.cli import flags as cli
from assay.cli.run import subject_from_command
from assay.core.errors import BadInput
from assay.core.format import format_duration
from assay.core.guardian import Guardian
from assay.core.leases import new_lease_id
from assay.core.processes import stop_on_signals
from assay.core.values import Subject
from assay.experiments.gate import QUICK_BUDGET_S, QUICK_DURATION_S, QUICK_RESTARTS, DecideOn, GateOptions
from assay.launch.checkouts import (
    Checkouts,
    Revision,
    check_out,
    checkout_environment,
    checkout_path,
    import_roots,
    relocate_path,
    set_up_checkouts,
    working_folder,
)
from assay.launch.worktrees import GitError, run_git
from assay.machine.devices import kind_of
from assay.workloads import registry
from assay.workloads.function import FunctionWorkload, is_function_spec

if TYPE_CHECKING:
    from assay.core.values import SourceCheckout
    from assay.machine.model import Machine

QUICK = {"restarts": QUICK_RESTARTS, "duration_s": QUICK_DURATION_S, "budget_s": QUICK_BUDGET_S}


class GateFlags(cli.CacheFlags, cli.IsolationFlags, cli.UnsureFlags, cli.MeasureFlags):
    """What `assay gate` can be asked for."""

    workloads: tuple[str, ...] = cli.argument("[WORKLOAD] [-- COMMAND|WORKLOAD]", default=())
    base: str | None = cli.what_flag(metavar="REF", help="Baseline revision: a branch, tag or commit.")
    head: str = cli.what_flag(default="HEAD", metavar="REF", help="Revision to test.")
    setup: str | None = cli.what_flag(metavar="COMMAND", help="Run in each checkout first, such as an install.")
    python: str | None = cli.what_flag(metavar="PATH", shown=".venv/bin/python", help="Interpreter made by --setup.")
    params: tuple[str, ...] = cli.param_flag()
    metrics: tuple[str, ...] = cli.metric_flag()
    gpus: tuple[str, ...] = cli.gpus_flag("the first", several=False)
    cpu_groups: int | None = cli.cpu_groups_flag("1")
    minimum_effect: float = cli.min_effect_flag(GateOptions)
    lower_is_better: tuple[str, ...] = cli.decide_flag(
        default=(), metavar="NAME", help="Gate on this metric; lower is better."
    )
    higher_is_better: tuple[str, ...] = cli.decide_flag(
        default=(), metavar="NAME", help="Gate on this metric; higher is better."
    )
    gate_time: bool = cli.decide_flag(default=True, help="Gate on time, or on metrics only.")
    decide_on: DecideOn = cli.option_of(GateOptions, "decide_on", group=cli.DECISION, help="GPU time to gate on.")
    restarts: int | None = cli.how_option(
        GateOptions, "restarts", optional=True, help="Restarts before the first look."
    )
    duration_s: float | None = cli.how_option(
        GateOptions, "duration_s", optional=True, help="Time per restart, without startup."
    )
    budget_s: float | None = cli.how_option(GateOptions, "budget_s", optional=True, help="Total time, without --setup.")
    quick: bool = cli.how_flag(default=False, help="Quick first look: 3 restarts of 1s, 30s in total.")


@cli.verb("gate", GateFlags)
def gate_revision(flags: GateFlags) -> int:
    """Fail if HEAD is slower than BASE by more than a limit.

    Both are checked out in temporary git worktrees and measured alternately in processes that are restarted several
    times. Exit code 0: pass, or inconclusive. 1: fail. 3: a revision does not install.

        assay gate --base main -- bench/speed.py:work
        assay gate --base main -- package.module:function
        assay gate --base v1.2 --head HEAD -- python bench/speed.py
        assay gate --base main --setup ./install.sh -- python bench.py
        assay gate --base main --metric 'tok=(.+)/s' --higher-is-better tok -- ./run
    """
    from assay.cli import measuring
    from assay.experiments.gate import EXPERIMENT
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    if torchrun is not None and torchrun.world_size > 1:
        raise BadInput("`assay gate` starts its own processes; run it without torchrun.")
    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_options)
    if options.restarts * options.duration_s > options.budget_s:
        restarts = f"{options.restarts} restarts of {format_duration(options.duration_s)}"
        raise BadInput(
            f"The gate could never fail: {restarts} before the first look do not fit in a --budget of "
            f"{format_duration(options.budget_s)}; raise --budget or lower --duration."
        )
    for note in options.notes:
        click.echo(f"Note: {note}.", err=True)
    with stop_on_signals(), Guardian(), check_out(options.checkouts) as leases:
        check_code(options)
        if not flags.dry_run:
            ready = set_up_checkouts(options.checkouts, leases, lambda line: click.echo(line, err=True))
            options = options.model_copy(update={"checkouts": ready})
            check_command(options)
        return measuring.start_run(EXPERIMENT, options, machine, flags)


def build_options(flags: GateFlags, machine: Machine) -> GateOptions:
    """Return the options that the flags mean in this folder and on this machine."""
    device, groups = flags.choose_one_device(machine)
    flags.refuse_cold_cache(device)
    checkouts, notes = resolve_checkouts(flags)
    subject = gate_subject(flags, kind_of(device), Path(checkouts.repository))
    lower, higher = flags.lower_is_better, tuple(dict.fromkeys(flags.higher_is_better))
    both = sorted({*lower} & {*higher})
    if both:
        raise BadInput(f"{both[0]} is in both --lower-is-better and --higher-is-better; choose one.")
    lower = (*(metric.name for metric in (subject.command.metrics if subject.command else ())), *lower)
    return flags.fill(
        GateOptions,
        QUICK if flags.quick else None,
        checkouts=checkouts,
        subject=subject,
        device=device,
        cpu_groups=groups,
        lower_is_better=tuple(name for name in dict.fromkeys(lower) if name not in higher),
        higher_is_better=higher,
        notes=notes,
    )


def gate_subject(flags: GateFlags, device_kind: str, repository: Path) -> Subject:
    """Return what is measured: one workload, before or behind ``--``, or the command behind it."""
    words = (*flags.workloads, *flags.line.after_dashes)
    if not words:
        raise BadInput("Nothing to measure: name file.py:function, package.module:function, or -- COMMAND.")
    if flags.workloads and len(words) > 1:
        raise BadInput("A gate measures one thing: name one workload, or one command after --.")
    params = cli.parse_assignments(flags.params)
    if is_function_spec(words[0]) and len(words) == 1:
        _refuse_metrics(flags)
        function = FunctionWorkload(path_from_checkout(words[0], repository))
        return Subject(
            workload=function.name,
            impl="python",
            params={k: registry.parse_scalar(v) for k, v in params.items()},
            digest=function.digest() if Path(function.name).is_absolute() else None,
        )
    if len(words) == 1 and (flags.workloads or _is_registered(words[0])):
        _refuse_metrics(flags)
        chosen = registry.resolve_subject(words[0], device_kind=device_kind, explicit=params)
        if flags.setup is None:
            raise BadInput(
                f"{chosen.label} is Assay's own, and the same for both revisions; name a function of yours, or give "
                "each revision an environment of its own with --setup."
            )
        return chosen
    if params:
        raise BadInput("--param applies to workloads only; put arguments of the command after --.")
    return subject_from_command(words, flags.metrics)


def _refuse_metrics(flags: GateFlags) -> None:
    metric_flags = {
        "--metric": flags.metrics,
        "--lower-is-better": flags.lower_is_better,
        "--higher-is-better": flags.higher_is_better,
    }
    for title, names in metric_flags.items():
        if names:
            raise BadInput(f"{title} needs a command: add -- COMMAND.")


def _is_registered(word: str) -> bool:
    name, _, impl = word.partition("@")
    plainly = registry.ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
    return any(entry.name == plainly and impl in {"", entry.impl} for entry in registry.registered_workloads().values())


def path_from_checkout(spec: str, repository: Path) -> str:
    """Return a function's name as a worker in a checkout reads it: files of the repository relative, others whole.

    Raises:
        BadInput: It is a file elsewhere, which cannot be read.
    """
    module_path, _, function = spec.rpartition(":")
    if not module_path.endswith(".py"):
        return spec
    path = Path(module_path).absolute()
    real = path.parent.resolve() / path.name
    if real.is_relative_to(repository):
        return f"{os.path.relpath(real, Path.cwd().resolve())}:{function}"
    if not os.access(real, os.R_OK):
        raise BadInput(f"{real} cannot be read.")
    return f"{real}:{function}"


def resolve_checkouts(flags: GateFlags) -> tuple[Checkouts, tuple[str, ...]]:
    """Return where the two revisions will be checked out, and notes on them."""
    if flags.base is None:
        raise BadInput("--base is missing: name the baseline revision, such as --base main.")
    if flags.python is not None and flags.setup is None:
        raise BadInput("--python needs --setup: it names the interpreter that --setup makes in each checkout.")
    repository, folder = current_repository()
    token = new_lease_id()[:8]

    def revision(name: Literal["base", "head"], ref: str) -> Revision:
        commit, checkout = commit_of(repository, ref), str(checkout_path(token, name))
        return Revision(name=name, ref=ref, commit=commit, checkout=checkout, interpreter=sys.executable)

    planned = Checkouts(
        repository=str(repository),
        folder=folder,
        revisions=(revision("base", flags.base), revision("head", flags.head)),
        setup=flags.setup,
        python=flags.python,
    )
    return planned, tuple(notes(repository, planned))


def current_repository() -> tuple[Path, str]:
    """Return the repository of the working directory, and the folder within it."""
    try:
        top = run_git(Path.cwd(), "rev-parse", "--show-toplevel")
        prefix = run_git(Path.cwd(), "rev-parse", "--show-prefix")
    except GitError as error:
        raise BadInput(f"{Path.cwd()} is not in a git repository: {error}.") from None
    return Path(top).resolve(), prefix.rstrip("/")


def commit_of(repository: Path, ref: str) -> str:
    """Return the commit of a ref."""
    try:
        return run_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except GitError:
        raise BadInput(f"Revision {ref!r} not found: {_why_not(repository, ref)}.") from None


def _why_not(repository: Path, ref: str) -> str:
    """Return git's reason why a ref is no commit."""
    try:
        run_git(repository, "rev-list", "--max-count=1", "--end-of-options", ref, "--")
        why = "it is not one commit"
    except GitError as error:
        why = str(error)
    if run_git(repository, "rev-parse", "--is-shallow-repository") == "true":
        why += "; this clone is shallow, and `git fetch --unshallow` gets the rest"
    return why


def notes(repository: Path, planned: Checkouts) -> list[str]:
    """Return notes on the revisions for the reader of the result."""
    base, head = planned.revisions
    messages = []
    if base.commit == head.commit:
        messages.append("base and head are the same commit, so that this shows what the machine itself does (A/A)")
    is_dirty = bool(run_git(repository, "status", "--porcelain", "--untracked-files=no"))
    if is_dirty and commit_of(repository, "HEAD") in {base.commit, head.commit}:
        messages.append("the working tree has changes that are not committed, and they are not measured")
    if "submodule" not in (planned.setup or "") and any(_has_submodules(repository, r) for r in (base, head)):
        messages.append("submodules are not checked out; --setup 'git submodule update --init' does it")
    return messages


def _has_submodules(repository: Path, revision: Revision) -> bool:
    try:
        run_git(repository, "cat-file", "-e", f"{revision.commit}:.gitmodules")
    except GitError:
        return False
    return True


def check_code(options: GateOptions) -> None:
    """Make sure that both checkouts have the folder we are in and the function that is measured.

    What a set-up may still make is not missed here.

    Raises:
        BadInput: A revision has it not; the sentence names the revision.
    """
    for revision in options.checkouts.revisions:
        source = options.checkouts.source(revision)
        if not working_folder(source).is_dir():
            raise BadInput(f"Folder {options.checkouts.folder} does not exist in the {revision.title}.")
        if is_function_spec(options.subject.workload):
            _refuse_assay(source)
            _check_function(options, revision, source)


def check_command(options: GateOptions) -> None:
    """Make sure that the command can be started in both checkouts, once they are set up."""
    if options.subject.command is None:
        return
    word = options.subject.command.argv[0]
    for revision in options.checkouts.revisions:
        source = options.checkouts.source(revision)
        path = checkout_environment(source, os.environ).get("PATH")
        executable = working_folder(source) / word if os.sep in word else shutil.which(word, path=path)
        if executable is None or not os.access(executable, os.X_OK):
            raise BadInput(f"Command {word!r} not found in the {revision.title}.")


def _refuse_assay(source: SourceCheckout) -> None:
    """Say so where the repository is Assay's own, whose code the worker has imported already."""
    if any(Path(root, "assay", "worker", "main.py").is_file() for root in import_roots(source)):
        raise BadInput(
            "This is Assay's own repository, and its functions would be timed by a worker that has imported another "
            "Assay; name a command that imports it: -- python -c '…'."
        )


def _check_function(options: GateOptions, revision: Revision, source: SourceCheckout) -> None:
    module_path, _, name = options.subject.workload.rpartition(":")
    file = working_folder(source) / module_path if module_path.endswith(".py") else _module_file(module_path, source)
    if file is None or not file.is_file():
        if options.checkouts.setup is None:
            raise BadInput(
                f"There is no {module_path} in the {revision.title}{_missing_file_hint(options, module_path)}."
            )
        return
    try:
        FunctionWorkload(f"{file}:{name}").check_source(options.subject.params)
    except BadInput as error:
        message = str(error).replace(f"{source.checkout}{os.sep}", "")
        raise BadInput(f"In the {revision.title}: {message}") from None


def _module_file(module: str, source: SourceCheckout) -> Path | None:
    """Return the file that a module of the checkout is in; null where it has none."""
    python_path = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    roots = [working_folder(source), *map(Path, import_roots(source))]
    roots += [m for entry in python_path if (m := relocate_path(entry, source)).is_relative_to(source.checkout)]
    inside = module.replace(".", os.sep)
    candidates = (root / name for root in roots for name in (f"{inside}.py", f"{inside}{os.sep}__init__.py"))
    return next((path for path in candidates if path.is_file()), None)


def _missing_file_hint(options: GateOptions, module_path: str) -> str:
    """Say what to do about a file that the working tree has and a revision has not."""
    if (
        module_path.endswith(".py")
        and Path(options.checkouts.repository, options.checkouts.folder, module_path).is_file()
    ):
        return "; commit it, or copy it out of the repository and name it from there: then both take the same file"
    return "" if module_path.endswith(".py") else "; where it is installed first, --setup does it"
