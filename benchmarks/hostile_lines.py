"""Hostile command lines: lines of every verb that work, with values that somebody might get wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from assay.cli.commands import Verb
from benchmarks.hostile_documents import documents, dump_document, mutated
from benchmarks.hostile_files import ARRAYS, BYTES, JSON, LONG, SOURCES, TABLES, YAML

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.cli.commands import FlagRow

TEXT = (
    "", " ", "x", "-", "-1", "=", ":", "@", ",", "a=b", "a\nb", "a\tb", "\x1b[31m", "\udcff", "é", "💥", "٣", LONG,
    "../..", "%s%n",
    "{0}", "[bold]", "*", "$(touch hacked)", "`true`", "; true", "'", '"', "\\", "null", "true", "0", "nan",
)  # fmt: skip
NUMBERS = (
    "0", "-0", "1", "2", "3", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "1e9", "9" * 30, "9" * 5000, "1_000",
    "٣", "１２", "", " ",
    "0x10", "1.5", "+5", "abc", "1e", ".", "1,5", "2147483648", "9223372036854775808",
)  # fmt: skip
DURATIONS = ("0.2", "1s", "500ms", "1m", "0", "-1s", "1e-9ns", "1y", "99999h", "1e400", "nan", "1:00", "01:00:00",
    "1-0", "", "٣s", "1_0s", "5 m")  # fmt: skip
SHARES = (
    "1%",
    "0.05",
    "50 %",
    "0",
    "1",
    "100%",
    "150%",
    "-5%",
    "nan%",
    "inf",
    "%",
    "1e-400",
    "0.0000001%",
    "",
    "٥%",
    "1_0%",
)
LISTS = ("", ",", "0", "0,1", "1,", ",1", "1,,2", "1 2", "0,0", "a,b", "-1", "1.5", "9" * 30, "0-1", "3-1", "1;2",
    "٣", "nan", "1e3", "64,128", "all")  # fmt: skip
RANGES = ("200:700:50", "700:200:50", "200:700:0", "200:700:-5", "1:2", ":", "::", "nan:1:1", "0:1e9:1e-9", "100",
    "10%:100%:10%", "abc", "1e400", "1:inf:1")  # fmt: skip
DEVICES = ("cpu", "cpu:0", "cpu:0,cpu:1", "cpu:99", "cpu:-1", "cpu:", "cuda", "cuda:0", "cuda:x", "tpu", "", ",",
    "cpu:٣", "cpu:" + "9" * 30, "auto")  # fmt: skip
NOT_FILES = (
    "missing.yaml", "missing.json", "folder", "folder/x", ".", "..", "", "/", "/dev/null", "/dev/full", "/dev/zero",
    "pipe", LONG,
    f"{LONG}/x", "broken_link", "broken_link/x", "loop", "loop/x", "ok.py/x", "a\nb", "\udcff", "~", "~nobody_here/x",
    "/proc/self/mem",
    "/proc/nope/x", "unreadable", "x/" * 2500, "out.json", "out/deep/er.json", "out.csv", "out.html", "out.png",
    "out.md", "out.xyz",
)  # fmt: skip
FILES = (
    *NOT_FILES, *YAML, *JSON, *TABLES, *BYTES, *ARRAYS, "objects.npy", "thresholds.yaml", "config.yaml",
    "power_cases.yaml",
    "pytorch_single.yaml", "openai_server.yaml", "run.yaml", "runs/latest", "runs", "runs/latest/records.jsonl",
    "host.jsonl",
    "runs/latest/plan.json", "runs/latest/findings.json",
)  # fmt: skip
TARGETS = (
    "softmax", "softmax@numpy", "softmax@", "@numpy", "softmx", "gemm@numpy", "ok.py:work", "ok.py:", "ok.py:nope",
    "ok.py:number",
    "ok.py:Thing", "ok.py:work:work", ":work", ":", "ok.py", "missing.py:work", "folder:work", "json:dumps",
    "no_module:f", "os:_exit",
    "ok:work", "/dev/null:f", "pipe:work", f"{LONG}.py:f", "binary.bin:f", "nul.py:work", "latin1.py:work",
    "broken_link:f", "idle",
    *(f"{name}:work" for name in SOURCES), *TEXT,
)  # fmt: skip
HOSTS = (
    "local", "ssh:gpu1", "ssh:", "ssh:user@", "ssh:@host", "ssh:-oProxyCommand=touch hacked", "ssh:a b", "ssh:a\nb",
    "ssh:127.0.0.1:1",
    "ssh:host:99999", "ssh:[::1", "ssh:host:x", f"ssh:{LONG}", "ssh:\udcff", "slurm", "slurm:", "slurm:main",
    "slurm:a\nb", "slurm:a b",
    "modal", "runpod", "lambda", "auto", "auto:x", "nope", "", "local:x", "SSH:x", "ssh:héllo",
)  # fmt: skip
PARAMS = ("n=10", "rows=64", "rows=0", "rows=-1", "rows=nan", "rows=1e400", "rows=" + "9" * 30, "rows=", "=1", "rows",
    "n=٣", "dtype=int8", "n=1_000",
          "n=\udcff", "rows=a\nb", "row=1", "n=true", "n=[1,2]", "rows=64,128", "x==1")  # fmt: skip
METRICS = ("rate=([0-9.]+)", "x=(", "x=y", "x=(a+)+$", "x", "=", "x=", "1x=(.)", "x=(?P<a", "x=(.)\\", "a b=(.)",
    "x=[", "x=(" + "a?" * 50 + "a" * 50 + ")", "x=(\udcff)")  # fmt: skip
DATES = ("2026-11-01", "30d", "2026-13-01", "yesterday", "99999999999d", "1e9d", "0000-00-00", "0001-01-01",
    "9999-12-31", "10000y", "-1d", "٣d",
         "2026-11-01T25:00", "2026-11-01T00:00:00+99:00", "9999-12-31T23:59:59-12:00", "", "1.5.5d",
         "20261101")  # fmt: skip
REVISIONS = ("HEAD", "main", "nope", "HEAD~99", "--upload-pack=x", "-h", "", "a..b", "HEAD^{tree}", "@{u}", "a\nb",
    LONG, "\udcff", ":/x", "refs/heads/main")  # fmt: skip
MONEY = ("1.50", "$2", "0", "-1", "nan", "inf", "1e400", "", "free", "1,50", "٣", "$", "1_0")
SETTINGS = (
    "scenario.batch_sizes=[1,8]", "scenario.batch_sizes=[]", "scenario.batch_sizes=[0]", "scenario.batch_sizes=[-1]",
    "backend.type=nope",
    "scenario.batch_sizes={}", "backend.endpoint=http://[", "backend.endpoint=file:///etc/passwd",
    "backend.endpoint=", "backend=3", "=", "x", "a.b.c=1",
    "scenario.prompts=missing.txt", "scenario.prompts=pipe", "scenario.prompts=binary.bin",
    "scenario.prompts=/dev/zero", "scenario.prompts=folder",
    "scenario.prompts=quotes.csv", "scenario.prompts=rows.jsonl", "scenario.prompts=nan.csv", "backend.model=\udcff",
    "scenario.precision=nan",
    "scenario.precision=-1", "scenario.repeats=1e400", "scenario.output_tokens=[99999999999999999999]",
    "metrics.gpus=[x]", "reporter=3",
    "reporter.0.output_file=/dev/full", "backend.model={a: b", "backend.model=&a [*a]",
    "metrics.carbon_g_per_kwh=nan", "scenario.modes=[eager, x]",
    "backend.type=openai", "scenario.concurrency=[0]", "scenario.generate_kwargs={temperature: .nan}", "name=a/b",
    f"name={LONG}", "name=",
)  # fmt: skip
SLURM = (
    "--qos=high",
    "--qos=a\nb",
    "--qos=a\rb",
    "x",
    "--output=x",
    "-Jx",
    "--comment=\x1b[0m",
    "--qos=\udcff",
    "",
    "--",
    "--wrap=true",
    "--a=$(true)",
)
WORDS = (
    "main",
    "a\nb",
    "a\rb",
    "a b",
    "a\x1bb",
    "\udcff",
    "",
    "$(true)",
    "gpu:4",
    "gpu:x",
    "gpu:a\nb",
    "4",
    "0",
    "a100:2",
    "-x",
    "--x",
    LONG,
)
COMMANDS = (("true",), ("no-such-program-anywhere",), ("",), ("/",), ("folder",), ("ok.py:work",), ("ok.py",), ("sh",
    "-c", "exit 3"),
            ("a\nb",), ("\udcff",), (LONG,), ("pipe",), (), ("echo", "rate 3"), ("--",))  # fmt: skip

POOLS: dict[str, tuple[str, ...]] = {
    "params": PARAMS, "metrics": METRICS, "on": HOSTS, "device": DEVICES, "devices": DEVICES, "gpus": LISTS,
    "gpu_type": ("L4", "T4,L4", "l4", "nope", "", ",", *WORDS),
    "partition": WORDS, "account": WORDS, "gres": WORDS, "gpus_per_node": WORDS, "sbatch_args": SLURM,
    "remote_python": ("python3", *WORDS),
    "nodelist": ("n1,n2", "n[1-3]", "n[1-", "n[3-1]", "n[1-99999999]", *WORDS), "image": WORDS, "ship": FILES,
    "base": REVISIONS, "head": REVISIONS,
    "sets": SETTINGS, "limits": RANGES, "sm_clocks": RANGES, "duty": RANGES, "sizes": (*LISTS, *RANGES),
    "dtypes": ("float32", "float16,bfloat16", "int8", "", ",", "x"), "batches": LISTS, "size_params": PARAMS,
    "workloads": TARGETS, "targets": TARGETS,
    "workload": TARGETS, "benchmarks": TARGETS, "victims": TARGETS, "aggressors": ("cpu", "memory", "pcie", *TARGETS),
    "isolation": ("full", "none", "ful", "", "cores,", "cores,memory", *TEXT[:8]), "tuner_command": ("true",
    "echo {config}", "'", "", "no-such", *TEXT),
    "safety_margin": ("1.2", "balanced", "nope", *NUMBERS), "grid": ("large", "small", "", "x", "64,128"),
    "model": ("random:llama-tiny", "random:", "random:nope",
    "folder", "missing", "a/b", "pipe", *TEXT), "config": FILES, "thresholds": FILES, "python": ("python3", "missing",
    "folder", *WORDS),
    "setup": ("true", "exit 3", "'", "", "a\nb"), "repository": ("a/b", "a", "", "a/b/c", "../..", "a b/c",
    "\udcff/x"), "commit": ("0" * 40, "abc", "", "\n"),
    "link": ("nvlink4", "10", "10:5", "-1", "nan", "", "x", "1e400", "0", "nvlink4:nan", "25GB/s"), "offset": ("0",
    "1", *NUMBERS), "backend": TEXT, "dtype": ("float32", *TEXT),
    "counts": LISTS, "ring_sizes": LISTS, "seq_lengths": LISTS, "segment_lengths": LISTS, "dilation_rates": LISTS,
    "name": ("softmax", *TEXT), "against": FILES,
    "baseline": FILES, "results": FILES, "runs": FILES, "run": FILES, "quick": ("2", *NUMBERS), "provider": HOSTS,
    "time": DURATIONS, "limit": DURATIONS,
    "quantity": ("call_us", *TEXT), "quantities": ("call_us", *TEXT), "lower_is_better": ("rate", *TEXT),
    "higher_is_better": ("rate", *TEXT), "names": ("*", "[", "sgemm*", *TEXT), "cases": FILES,
}  # fmt: skip

BASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "compare": (("runs/latest", "runs/latest"), ("good.npy", "good.npy")),
    "contention matrix": (("--device", "cpu:0", "--victim", "softmax@numpy", "--aggressor", "cpu", "--dry-run"),),
    "contention run": (("--device", "cpu:0", "--benchmark", "softmax@numpy", "--dry-run"),),
    "contention variance": (("runs/latest",), ("kernels.json", "kernels.json")),
    "doctor": ((),),
    "energy check": ((),),
    "energy compare": (("runs/latest",), ("header.csv",)),
    "energy run": (
        ("--model", "random:llama-tiny", "--device", "cpu", "--dry-run"),
        ("pytorch_single.yaml", "--dry-run"),
        ("openai_server.yaml", "--dry-run"),
    ),
    "gate": (("ok.py:work", "--base", "HEAD", "--device", "cpu:0", "--dry-run"),),
    "github comment": (("list.json", "--pull-request", "1", "--dry-run"),),
    "github measure": (("folder", "--gpu-type", "L4", "--output", "out"),),
    "github pull-request": (("list.json", "--dry-run"),),
    "github request": ((),),
    "history export": (("history.csv",),),
    "history import": (("runs",),),
    "history list": ((),),
    "history plot": (("work",),),
    "history regressions": ((),),
    "history show": (("work",),),
    "list": ((),),
    "monitor": (("out.jsonl", "--duration", "0.2", "--host-only"),),
    "power budget": (("runs/latest", "--watts", "500"),),
    "power characterize": (("power_cases.yaml", "--device", "cpu", "--dry-run"), ("--dry-run",)),
    "power sweep": (("gemm", "--sizes", "64,128", "--device", "cpu:0", "--dry-run"),),
    "power variability": (("runs",),),
    "reap": ((),),
    "rentals": ((),),
    "report": (("runs/latest",), ("host.jsonl",)),
    "resume": (("runs/latest",),),
    "run": (("ok.py:work", "--device", "cpu:0", "--dry-run"), ("softmax@numpy", "--device", "cpu", "--dry-run")),
    "scaling analyse": (("runs/latest",),),
    "scaling analyze": (("runs/latest",),),
    "scaling predict": (("--gpus-count", "2", "--link", "nvlink4", "--device", "cpu", "--dry-run"),),
    "scaling run": (("--quick", "2", "--device", "cpu", "--dry-run"),),
    "scaling test": (("--nproc", "1", "--device", "cpu", "--timeout", "5"),),
    "threshold apply": (("list.json", "--config", "config.yaml"), ("runs/latest", "--config", "config.yaml")),
    "threshold parse": (("bench.txt",),),
    "threshold run": (("thresholds.yaml", "--device", "cpu", "--dry-run"),),
    "time": (("ok.py:work", "--budget", "0.1", "--timeout", "5"),),
    "trace": (
        ("ok.py:work", "--device", "cpu", "--print-commands"),
        ("ok.py:work", "--device", "cpu", "--calls", "1", "--timeout", "5"),
    ),
}
"""A command line of each verb that works and measures little or nothing, as a place to start from."""

RARE = {"doctor": 0.3, "energy run": 0.5, "energy check": 0.4, "scaling test": 0.25, "scaling analyze": 0.2,
    "reap": 0.2, "rentals": 0.2, "trace": 0.6, "time": 0.8,
        "github request": 0.5, "github measure": 0.5, "monitor": 0.7}  # fmt: skip
"""Verbs with few options, or slow ones, come up less often than once in so many verbs."""

KEPT = frozenset({"help", "dry_run", "print_commands", "version"})
"""Options that are never drawn: help ends the command, and what keeps a command from measuring is part of its base."""

ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"ASSAY_HOME": "ok.py"}, {"ASSAY_HOME": "ok.py/x"}, {"ASSAY_HOME": LONG}, {"ASSAY_HOME": "~nobody_here"},
    {"ASSAY_HOME": "loop"},
    {"COLUMNS": "x"}, {"COLUMNS": "0"}, {"COLUMNS": "9" * 30}, {"CUDA_VISIBLE_DEVICES": "x,-1"}, {"RANK": "x"},
    {"LOCAL_RANK": "1"},
    {"GITHUB_EVENT_NAME": "issue_comment", "GITHUB_EVENT_PATH": "event.json", "GITHUB_REPOSITORY": "a/b"},
    {"GITHUB_EVENT_NAME": "x", "GITHUB_EVENT_PATH": "pipe"}, {"GITHUB_OUTPUT": "folder"},
    {"GITHUB_REPOSITORY": "\udcff"},
    {"LANG": "C", "PYTHONIOENCODING": "ascii"}, {"HOME": "/nonexistent"}, {"TMPDIR": "/nonexistent"}, {"PATH": ""},
)  # fmt: skip


WITH_DOCUMENT = 0.35
"""The share of lines that read a file of which one place is wrong."""


@dataclass(frozen=True)
class Line:
    """A command line, what its environment has besides, and files that it finds besides those of `hostile_files`."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Verb]]:
    """Yield every verb by its words: groups have none of their own."""
    if isinstance(command, Verb):
        yield " ".join(path), command
        return
    assert isinstance(command, click.Group)
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from verbs(below, (*path, name))


def draw_lines(root: click.Command, seed: int, count: int) -> list[Line]:
    """Return so many command lines over all verbs; every verb has its turn before one comes again."""
    chance = random.Random(seed)
    available = dict(verbs(root))
    lines: list[Line] = []
    while len(lines) < count:
        order = [name for name in available if chance.random() < RARE.get(name, 1.0)]
        chance.shuffle(order)
        lines += [draw_any_line(name, available[name], chance) for name in order[: count - len(lines)]]
    return lines


def draw_any_line(name: str, verb: Verb, chance: random.Random) -> Line:
    """Return a command line of one verb, or one that reads a file of which a place is wrong."""
    return draw_documented(chance) if chance.random() < WITH_DOCUMENT else draw_line(name, verb, chance)


def draw_documented(chance: random.Random) -> Line:
    """Return a command line that reads a file of which a place or two is wrong."""
    sample = chance.choice(documents())
    files = {
        sample.name: dump_document(mutated(sample.document, chance), sample.name),
        "other.json": dump_document(sample.document, ".json"),
    }
    return Line(sample.arguments, sample.environment, files)


def draw_line(name: str, verb: Verb, chance: random.Random) -> Line:
    """Return a command line of one verb."""
    words = list(chance.choice(BASES[name]))
    arguments = [row for row in verb.row.flags if not row.opts]
    if arguments and chance.random() < 0.4:
        words = _with_other_arguments(words, arguments[0], chance)
    options = [row for row in verb.row.flags if row.opts and row.name not in KEPT]
    for option in chance.sample(options, min(len(options), chance.choice((0, 1, 1, 1, 2, 2, 3)))):
        words += _option(option, chance)
    if name in {"run", "gate", "monitor"} and chance.random() < 0.2:
        words += ["--", *chance.choice(COMMANDS)]
    if chance.random() < 0.02:
        words += [chance.choice(("--", "--nope", "-x", "-", "--help", "--json=x", "\udcff"))]
    environment = chance.choice(ENVIRONMENTS) if chance.random() < (0.5 if name == "github request" else 0.04) else {}
    return Line((*name.split(), *words), environment)


def _with_other_arguments(words: Sequence[str], row: FlagRow, chance: random.Random) -> list[str]:
    """Return the words with hostile ones in the place of the first arguments."""
    first_option = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
    count = chance.choice((0, 1, 1, 1, 2)) if row.style == "arguments" else 1
    return [*(chance.choice(values_of(row)) for _ in range(count)), *words[first_option:]]


def _option(row: FlagRow, chance: random.Random) -> list[str]:
    name = chance.choice(row.spellings)
    if row.style == "switch":
        return [name]
    value = chance.choice(values_of(row))
    return [f"{name}={value}"] if chance.random() < 0.7 else [name, value]


def values_of(row: FlagRow) -> tuple[str, ...]:
    """Return good and hostile values for a flag or argument, by its name or what stands for its value in help."""
    if row.choices:
        return (*row.choices, "", "nope", row.choices[0].upper(), "\udcff")
    if row.name in POOLS:
        return POOLS[row.name]
    kinds = {"TIME": DURATIONS, "PERCENT": SHARES, "USD": MONEY, "30d": DATES, "14d": DATES, "W": NUMBERS,
             "N": NUMBERS, "PATH": FILES, "FILE": FILES, "DIR": FILES}  # fmt: skip
    return kinds.get(row.metavar, TEXT)
