"""``assay scaling run`` and ``assay scaling test``.

Measure one rank, then more, in rings: speedup, efficiency and communication cost. Check that ring dilated attention is
exact here, also across ranks. The flags of the attention's shape are shared with ``assay scaling predict``.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import click

from assay.cli import flags as cli
from assay.cli import show
from assay.cli.host_flags import HostFlags, RemoteHook, dispatch_remote
from assay.core.errors import BadInput, MachineCannot
from assay.core.format import MAX_CALLS, MAX_PROCESSES, MAX_REPEATS, MAX_SIZE
from assay.experiments.scaling.plan import ATTENTION_WORKLOAD, ScalingOptions

if TYPE_CHECKING:
    from assay.core.values import Subject
    from assay.experiments.scaling.plan import UnavailableWorld
    from assay.experiments.scaling.self_test import SelfTestResult
    from assay.machine.model import Machine
    from assay.worker.rendezvous import Torchrun

SEQUENCES = {"cuda": (16384, 32768, 65536), "cpu": (2048,)}
"""Default sequence lengths, by kind of device."""


def numbers_flag(metavar: str, shown: str, help_text: str, **rest: Any) -> Any:
    """Return a flag that takes several whole numbers."""
    return cli.what_flag(default=(), item=cli.NUMBER, metavar=metavar, shown=shown, help=help_text, **rest)


def size_flag(shown: str, help_text: str, **rest: Any) -> Any:
    """Return a flag that takes a size."""
    return cli.what_flag(ge=1, le=MAX_SIZE, shown=shown, help=help_text, **rest)


class ShapeFlags(cli.Flags):
    """The shape of dilated attention; what is not given is as the workload has it on the device."""

    batch_size: int | None = size_flag("2; 1 on a CPU", "Sequences per ring.", envvar="BATCH_SIZE")
    seq_lengths: tuple[str, ...] = numbers_flag("N...", "16384 32768 65536", "Sequence lengths.", envvar="SEQ_LENGTHS")
    embed_dim: int | None = size_flag("768", "Embedding dimension.", envvar="EMBED_DIM")
    num_heads: int | None = size_flag("12", "Query heads.", envvar="NUM_HEADS")
    num_kv_heads: int | None = size_flag("--num-heads", "Key-value heads.")
    segment_lengths: tuple[str, ...] = numbers_flag("W...", "2048 4096 8192", "Segment lengths.")
    dilation_rates: tuple[str, ...] = numbers_flag("R...", "1 2 4", "Dilation rates.")
    dtype: str | None = cli.what_flag(metavar="DTYPE", shown="float16", help="Data type.")
    causal: bool = cli.what_flag(default=False, help="Use a causal mask.")
    offset: str | None = cli.what_flag(metavar="RULE", help="Position rule: modulo or blocks.")
    backend: str | None = cli.what_flag(metavar="NAME", shown="auto", help="Attention backend.")
    no_flash: bool = cli.what_flag("--no-flash-attention", default=False, hidden=True)

    def sequences(self, kind: str) -> tuple[int, ...]:
        """Return the sequence lengths, each once, in order."""
        return whole_numbers("--seq-lengths", self.seq_lengths) or SEQUENCES[kind]

    def attention_subject(self, kind: str) -> Subject:
        """Return the attention on a kind of device, checked at its longest sequence."""
        from assay.workloads import registry

        defaults = registry.find_workload(ATTENTION_WORKLOAD, "torch").defaults(kind)
        default_heads, default_dim = int(str(defaults["heads"])), int(str(defaults["dim"]))
        heads = self.num_heads or default_heads
        embed_dim = self.embed_dim or default_heads * default_dim
        if embed_dim % heads:
            raise BadInput(f"--embed-dim {embed_dim} must be divisible by --num-heads {heads}.")
        if self.no_flash and self.backend not in {None, "math"}:
            raise BadInput(
                f"--no-flash-attention means --backend math, which excludes --backend {self.backend}; give one."
            )
        chosen = {
            "batch": self.batch_size,
            "sequence": max(self.sequences(kind)),
            "heads": self.num_heads,
            "key_heads": self.num_kv_heads or heads,
            "dim": embed_dim // heads,
            "segments": ",".join(self.segment_lengths) or None,
            "rates": ",".join(self.dilation_rates) or None,
            "dtype": self.dtype,
            "causal": "true" if self.causal else None,
            "offset": self.offset,
            "backend": "math" if self.no_flash else self.backend,
        }
        params = {name: str(value) for name, value in chosen.items() if value is not None}
        return registry.resolve_subject(f"{ATTENTION_WORKLOAD}@torch", device_kind=kind, explicit=params)


def whole_numbers(option: str, words: tuple[str, ...]) -> tuple[int, ...]:
    """Return whole numbers of at least 1, each once, in order."""
    wrong = next((word for word in words if not word.removeprefix("+").isdecimal() or int(word) < 1), None)
    if wrong is not None:
        raise BadInput(f"{option} takes whole numbers of at least 1, not {wrong!r}.")
    return tuple(sorted({int(word) for word in words}))


def ranks_flag(help_text: str) -> Any:
    """Return a flag that may stand alone or before a number of ranks."""
    return cli.what_flag(style="optional", item="0", ge=0, le=MAX_PROCESSES, metavar="[N]", help=help_text)


RANK_COUNTS = (1, 2, 4, 8)
RINGS = (1, 2, 4, 8)
QUICK_LENGTHS = {"cuda": ("8192", "16384"), "cpu": ("1024",)}
LARGE_LENGTHS = ("131072", "262144")
CPU_LENGTHS = ("1024", "2048")
REPEAT = 3
QUICK = {"repeat": 1, "warmup_runs": 1, "benchmark_runs": 3}


class ScalingRunFlags(ShapeFlags, cli.IsolationFlags, cli.MeasureFlags, HostFlags):
    """What `assay scaling run` can be asked for."""

    ring_sizes: tuple[str, ...] = numbers_flag("R...", "1 2 4 8", "Ranks per ring.")
    nproc: int | None = cli.what_flag(ge=1, le=MAX_PROCESSES, shown="one per device", help="Ranks.")
    every: bool = cli.what_flag("--all", default=False, help="Use 1, 2, 4 and 8 ranks, as devices allow.")
    quick: int | None = ranks_flag("Small problem, once; N sets the ranks.")
    large: int | None = ranks_flag("131072 and 262144 tokens; N sets the ranks.")
    weak: bool = cli.what_flag("--weak/--strong", default=False, help="Grow the problem with ranks, or fix it.")
    workload: str | None = cli.what_flag(metavar="NAME", help="Scale another workload instead.")
    params: tuple[str, ...] = cli.param_flag("Set a parameter of --workload.")
    ranks_param: str | None = cli.what_flag(metavar="NAME", help="Parameter that --strong divides by ranks.")
    cpu_groups: int | None = cli.cpu_groups_flag("one per rank")
    references: bool | None = cli.what_flag(help="Also measure a large matmul (on a GPU).")
    energy: bool | None = cli.what_flag(shown="on a GPU", help="Measure J/token.")
    profile: bool = cli.what_flag(default=False, help="Trace a call of the first configuration.")
    link: str | None = cli.how_flag(metavar="NAME", help="Predict first: nvlink4 or 5us:100GB/s.")
    unsure: Literal["pass", "fail"] = cli.how_flag(default="pass", help="Gate result if inconclusive.")
    min_efficiency: float | None = cli.how_option(
        ScalingOptions, "min_efficiency", help="Exit with code 1 below this efficiency."
    )
    warmup_runs: int | None = cli.how_option(
        ScalingOptions, "warmup_runs", optional=True, le=MAX_CALLS, envvar="WARMUP_RUNS", help="Warm-up calls."
    )
    benchmark_runs: int | None = cli.how_option(
        ScalingOptions, "benchmark_runs", optional=True, le=MAX_CALLS, envvar="BENCHMARK_RUNS", help="Timed calls."
    )
    repeat: int | None = cli.how_flag(ge=1, le=MAX_REPEATS, shown="3; --quick 1; gate 5", help="Fresh starts.")
    timeout_s: float = cli.timeout_flag(600.0)
    output_dir: Path = cli.output_dir_flag(envvar="OUTPUT_DIR")
    no_save: bool = cli.output_flag(default=False, hidden=True)

    def named_workloads(self) -> tuple[str, ...]:
        """Return the one, where it is named."""
        return () if self.workload is None else (self.workload,)

    def requested_ranks(self) -> int | None:
        """Return how many ranks are requested; null: no flag says."""
        named = {"nproc": self.nproc, "quick": self.quick, "large": self.large}
        ranks = {name: count for name, count in named.items() if count}
        if len(set(ranks.values())) > 1:
            pairs = " and ".join(f"--{name} {count}" for name, count in ranks.items())
            raise BadInput(f"{pairs} are different numbers of ranks.")
        return next(iter(ranks.values()), None)


@cli.verb("scaling run", ScalingRunFlags)
def measure_scaling(flags: ScalingRunFlags) -> int:
    """Measure how ring dilated attention, or any workload, scales over ranks.

    Launches the ranks, or joins those of torchrun. Smaller defaults on a CPU.

        assay scaling run --nproc 4 --seq-lengths 16384 32768 --ring-sizes 1 2 4
        torchrun --nproc_per_node=2 -m assay scaling run --causal
    """
    from assay.cli import measuring
    from assay.experiments.scaling import EXPERIMENT
    from assay.experiments.scaling.findings import refuse_blind_gate

    refuse_blind_gate(flags.min_efficiency, flags.repeat)
    if flags.unsure == "fail" and flags.min_efficiency is None and flags.options_file is None:
        raise BadInput("--unsure fail needs --min-efficiency.")
    if (code := dispatch_remote(flags, RemoteHook(lambda: copy_latest))) is not None:
        return code
    flags, options, machine = measuring.plan_run(flags, EXPERIMENT, build_options)
    refuse_blind_gate(options.min_efficiency, options.repeat)
    print_notices(flags, options)

    def afterwards(run: Path, code: int) -> int:
        if not flags.no_save:
            copy_latest(run, code)
        return apply_gate(run, code, fail_unsure=flags.unsure == "fail")

    if not flags.no_save:
        return measuring.start_run(EXPERIMENT, options, machine, flags, afterwards=afterwards)
    with TemporaryDirectory(prefix="assay-scaling-") as folder:
        unsaved = flags.model_copy(update={"output_dir": Path(folder)})
        return measuring.start_run(EXPERIMENT, options, machine, unsaved, keep_run=False, afterwards=afterwards)


def copy_latest(run: Path, code: int) -> int:
    """Copy the older tool's file of a run to ``latest.json`` beside the run folders, in one step; return the code."""
    from assay.compat.scaling import RESULTS_FILE
    from assay.core.files import replace_atomically, translate_os_errors

    file, latest = run / RESULTS_FILE, run.parent / "latest.json"
    if file.is_file():
        with translate_os_errors(latest):
            replace_atomically(latest, file.read_bytes())
    return code


def apply_gate(run: Path, code: int, *, fail_unsure: bool) -> int:
    """Return the exit code once the gate was asked, and say what it answers: no is 1, whatever else happened."""
    from assay.core.files import read_json
    from assay.core.results import Findings

    findings = Findings.model_validate(read_json(run / "findings.json"))
    answer = next((f for f in findings.findings if f.gate is not None), None)
    if answer is None:
        return code
    click.echo(f"Gate: {answer.reason}", err=True)
    refused = answer.verdict == "no" or (answer.verdict == "unsure" and fail_unsure)
    return 1 if refused else code


def build_options(flags: ScalingRunFlags, machine: Machine) -> ScalingOptions:
    """Return the options that the flags mean on this machine."""
    from assay.experiments.scaling.analysis import build_matmul_subject
    from assay.experiments.scaling.findings import GATE_REPEATS
    from assay.experiments.scaling.plan import check_shapes, describe_skipped, list_shapes, list_skipped
    from assay.experiments.scaling.prediction import parse_link
    from assay.machine.devices import kind_of
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    devices, worlds, unavailable = place_ranks(flags, machine, torchrun)
    kind = kind_of(devices[0])
    on_gpu = kind == "cuda"
    subject, sequences = subject_and_lengths(flags, kind)
    references = on_gpu if flags.references is None else flags.references
    spread = torchrun is not None and torchrun.local_world_size < torchrun.world_size
    gated = {} if flags.min_efficiency is None else {"repeat": GATE_REPEATS}
    options = flags.fill(
        ScalingOptions,
        {"repeat": REPEAT} | (QUICK if flags.quick is not None else {}) | gated,
        subject=subject,
        sequences=sequences,
        worlds=worlds,
        rings=whole_numbers("--ring-sizes", flags.ring_sizes) or RINGS if sequences else (1,),
        unavailable=unavailable,
        mode="weak" if flags.weak else "strong",
        devices=devices,
        local_ranks=torchrun.local_world_size if torchrun is not None and spread else None,
        matmul=build_matmul_subject(subject, kind) if subject.impl == "torch" and references else None,
        energy=on_gpu if flags.energy is None else flags.energy,
        link=None if flags.link is None else parse_link(flags.link),
        cpu_groups=cpu_groups(flags, machine, devices, worlds, torchrun),
    )
    check_shapes(options)
    if options.min_efficiency is not None and not list_shapes(options):
        why = " ".join(describe_skipped(list_skipped(options))) or "One rank is all there is; --nproc 2 asks for more."
        raise BadInput(f"--min-efficiency has nothing to judge: nothing is measured with more than one rank. {why}")
    return options


def subject_and_lengths(flags: ScalingRunFlags, kind: str) -> tuple[Subject, tuple[int, ...]]:
    """Return what is scaled: dilated attention at some lengths, or another workload, which has none."""
    from importlib.util import find_spec

    from assay.workloads import registry

    name = flags.workload
    if name is not None and name.partition("@")[0].replace("-", "_") != ATTENTION_WORKLOAD:
        attention_only = {*ShapeFlags.model_fields, "ring_sizes", "large", "link"} & flags.line.named
        titles = [row.title for row in cli.flag_rows(type(flags)) if row.name in attention_only]
        if titles:
            raise BadInput(f"{titles[0]} applies to dilated attention only; set parameters of {name} with --param.")
        return registry.resolve_subject(name, device_kind=kind, explicit=cli.parse_assignments(flags.params)), ()
    if flags.params or flags.ranks_param:
        title = "--param" if flags.params else "--ranks-param"
        raise BadInput(f"{title} needs --workload; dilated attention has flags of its own (--help).")
    if find_spec("torch") is None:
        raise MachineCannot("Dilated attention needs PyTorch: pip install 'gpu-assay[torch]'.")
    sized = with_default_sizes(flags, kind)
    return sized.attention_subject(kind), sized.sequences(kind)


def with_default_sizes(flags: ScalingRunFlags, kind: str) -> ScalingRunFlags:
    """Return the flags with the lengths and the batch that --quick and --large stand for, where none are given."""
    if flags.quick is not None and flags.large is not None:
        raise BadInput("--quick and --large exclude each other; give one.")
    lengths: tuple[str, ...] = CPU_LENGTHS if kind == "cpu" else ()
    lengths = QUICK_LENGTHS[kind] if flags.quick is not None else LARGE_LENGTHS if flags.large is not None else lengths
    batch = flags.batch_size or (1 if flags.large is not None else None)
    return flags.model_copy(update={"seq_lengths": flags.seq_lengths or lengths, "batch_size": batch})


def place_ranks(
    flags: ScalingRunFlags, machine: Machine, torchrun: Torchrun | None
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[UnavailableWorld, ...]]:
    """Return the devices, the numbers of ranks, and those that are requested but not measured here."""
    from assay.experiments.scaling.plan import UnavailableWorld

    rank_counts, devices = flags.requested_ranks(), flags.choose_devices(machine)
    on_cpu = devices[0].startswith("cpu")
    if torchrun is not None and rank_counts is not None and rank_counts > torchrun.world_size:
        raise BadInput(f"{rank_counts} ranks are more than the {torchrun.world_size} processes that torchrun started.")
    available = len(machine.cores) if on_cpu and not flags.devices else len(devices)
    available = available if torchrun is None else torchrun.world_size
    worlds: tuple[int, ...] = (rank_counts or (torchrun.world_size if torchrun is not None else len(devices)),)
    unavailable: tuple[UnavailableWorld, ...] = ()
    if flags.every:
        if rank_counts is not None:
            raise BadInput("--all means 1, 2, 4 and 8 ranks; do not give another number of ranks.")
        only = "torchrun started" if torchrun is not None else "there are only"
        what = "processes" if torchrun is not None else "cores" if on_cpu else "GPUs"
        reason = f"{only} {available} {what}"
        worlds = tuple(world for world in RANK_COUNTS if world <= available)
        unavailable = tuple(UnavailableWorld(world=w, reason=reason) for w in RANK_COUNTS if w > available)
    groups = cpu_groups(flags, machine, devices, worlds, torchrun)
    if groups is not None and not any(":" in word for word in flags.devices):
        devices = flags.model_copy(update={"gpus": (), "cpu_groups": groups}).choose_devices(machine)
    return devices[: max(1, local_ranks(max(worlds), torchrun))], worlds, unavailable


def local_ranks(world: int, torchrun: Torchrun | None) -> int:
    """Return how many ranks of a world are on this machine."""
    return world if torchrun is None else min(world, torchrun.local_world_size)


def cpu_groups(
    flags: ScalingRunFlags,
    machine: Machine,
    devices: tuple[str, ...],
    worlds: tuple[int, ...],
    torchrun: Torchrun | None,
) -> int | None:
    """Return into how many groups the cores are split: one per rank, as far as there are cores; null on GPUs."""
    if not devices[0].startswith("cpu"):
        return None
    if flags.cpu_groups is not None or any(":" in word for word in flags.devices):
        return flags.cpu_groups
    return min(len(machine.cores), max(2, local_ranks(max(worlds), torchrun)))


def print_notices(flags: ScalingRunFlags, options: ScalingOptions) -> None:
    """Say on stderr what a user may not expect: small sizes on a CPU, what the environment set, what is skipped."""
    from assay.experiments.scaling.plan import describe_skipped, list_skipped
    from assay.experiments.scaling.report import describe_sharing
    from assay.worker.rendezvous import Torchrun

    torchrun = Torchrun.from_environment()
    if torchrun is not None and torchrun.rank > 0:
        return
    params = options.subject.params
    if options.is_attention and options.kind == "cpu":
        lengths = " and ".join(map(str, options.sequences))
        click.echo(
            f"On a CPU sizes are small unless they are given. Here: batch {params['batch']}, {lengths} tokens, "
            f"segments {params['segments']}, rates {params['rates']}, {params['heads']} heads of {params['dim']}, "
            f"{params['dtype']}.",
            err=True,
        )
    rows = [row for row in cli.flag_rows(type(flags)) if row.envvar and row.name in flags.line.from_environment]
    notices = [f"{row.envvar}={os.environ[row.envvar]}" for row in rows if row.envvar]
    if notices:
        click.echo(f"From the environment: {', '.join(notices)}.", err=True)
    for sentence in describe_skipped(list_skipped(options)):
        click.echo(f"Skipped: {sentence}", err=True)
    if options.local_rank_count > len(options.devices):
        click.echo(f"{describe_sharing(options)}: they wait for each other.", err=True)


class ScalingTestFlags(cli.JsonFlags):
    """What `assay scaling test` can be asked for."""

    nproc: int | None = cli.flag(ge=1, le=MAX_PROCESSES, shown="1, or those of torchrun", help="Ranks.")
    gpus: tuple[str, ...] = cli.flag(
        default=(), item=cli.GPU, metavar="0,1", shown="one per rank", help="GPUs, by index or UUID."
    )
    devices: tuple[str, ...] = cli.flag(
        "--device", default=(), item=cli.DEVICE, metavar="cpu", help="Devices: cpu, cpu:0, cuda:1."
    )
    timeout_s: float = cli.flag(default=120.0, gt=0, help="Worker response timeout.")
    seed: int = cli.flag(default=0, help="Random seed.")


@cli.verb("scaling test", ScalingTestFlags)
def test_ring_attention(flags: ScalingTestFlags) -> int:
    """Check outputs, gradients and bytes sent between ranks in float64 on a small problem.

    Exit code 0: all checks passed. 1: a check failed. 3: PyTorch is not installed.

        assay scaling test
        assay scaling test --nproc 2
        torchrun --nproc_per_node=2 -m assay scaling test
    """
    from importlib.util import find_spec

    from assay.launch.torchrun import serve_hub
    from assay.machine.detect import detect
    from assay.worker.rendezvous import Torchrun

    if find_spec("torch") is None:
        raise MachineCannot("Dilated attention needs PyTorch: pip install 'gpu-assay[torch]'.")
    torchrun, machine = Torchrun.from_environment(), detect()
    if torchrun is not None and torchrun.rank > 0:
        return serve_hub(torchrun, machine)
    ranks = flags.nproc or (torchrun.world_size if torchrun is not None else 1)
    if torchrun is not None and ranks > torchrun.world_size:
        raise BadInput(f"--nproc {ranks} is more than the {torchrun.world_size} processes that torchrun started.")
    findings = run_checks(machine, torchrun, ranks, flags)
    if flags.as_json:
        show.print_json(findings.as_json())
    else:
        print_checks(findings, machine)
    if not findings.passed:
        click.echo("assay: Not every check passed.", err=True)
    return 0 if findings.passed else 1


def run_checks(machine: Machine, torchrun: Torchrun | None, ranks: int, flags: ScalingTestFlags) -> SelfTestResult:
    """Run the checks in workers of their own, and return what came of them."""
    from assay.cli.measuring import worker_starter
    from assay.core.files import home_folder
    from assay.core.guardian import Guardian
    from assay.core.processes import stop_on_signals
    from assay.experiments.scaling.self_test import build_self_test, judge_self_test
    from assay.launch.torchrun import Hub
    from assay.launch.trial import Launcher
    from assay.machine.devices import choose_devices

    home_folder()
    chosen = choose_devices(machine, gpus=flags.gpus, devices=flags.devices)
    trial = build_self_test(chosen, ranks, timeout_s=flags.timeout_s, seed=flags.seed)
    with TemporaryDirectory(prefix="assay-test-") as folder:
        for name in ("logs", "samples"):
            (Path(folder) / name).mkdir()
        with stop_on_signals(), Guardian(), worker_starter(torchrun, Path(folder), Path.cwd()) as starter:
            elsewhere = starter.machines if isinstance(starter, Hub) else {}
            outcome = Launcher(machine, starter, elsewhere).measure(trial)
            findings = judge_self_test(trial, outcome.evidence, outcome.reason)
            if isinstance(starter, Hub):
                starter.exit_code = 0 if findings.passed else 1
    if outcome.status == "refused":
        raise MachineCannot(f"The check could not run: {outcome.reason}.")
    return findings


def print_checks(findings: SelfTestResult, machine: Machine) -> None:
    """Print what was checked, on what, and what came of it."""
    ranks = f"{findings.ranks} rank{'' if findings.ranks == 1 else 's'} on {findings.devices}"
    click.echo(
        f"Dilated attention in float64, {ranks}, PyTorch {machine.versions.get('torch') or 'of unknown version'}"
    )
    for case in findings.cases:
        click.echo(f"  {'✓' if case.passed else '✗'} {case.name}: {case.outcome}")
    click.echo("All of it is right." if findings.passed else f"Wrong: {findings.reason}.", err=not findings.passed)
