"""Every verb with values that somebody might get wrong, and every value of every flag that is documented."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
import pytest

from assay.cli.commands import ALIASES
from assay.cli.main import cli
from benchmarks.hostile_documents import documents, dump_document
from benchmarks.hostile_input import Outcome, Scratch, problem_of, table
from benchmarks.hostile_lines import BASES, Line, draw_lines, verbs
from tests.compat.test_compat_contention import OLDEST
from tests.experiments.tunings import folder_of, options

if TYPE_CHECKING:
    from tests.forking import Forking

pytestmark = pytest.mark.full

VERBS = dict(verbs(cli))
LINES = draw_lines(cli, seed=20, count=60)
GROUPS = 10


@pytest.fixture(scope="module")
def scratch(forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    """Files of every kind, with a run that is done."""
    made = Scratch(tmp_path_factory.mktemp("hostile"), forking)
    folder_of(made.files / "phased", options())
    return made


def test_every_verb_has_a_line_to_start_from() -> None:
    assert {*VERBS, *ALIASES} == set(BASES)
    assert len({" ".join(line.arguments[:2]) for line in LINES}) > 25


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_hostile_command_line_gets_a_sentence_and_an_honest_exit_code(group: int, scratch: Scratch) -> None:
    ended = [scratch.run(number, line) for number, line in enumerate(LINES) if number % GROUPS == group]
    assert {tuple(outcome.arguments): problem for outcome in ended if (problem := problem_of(outcome))} == {}


def outcome(code: int | None, *, stderr: str = "assay: No.", traceback: bool = False, left: int = 0) -> Outcome:
    return Outcome(["list"], {}, {}, code, stderr, traceback=traceback, left_running=left)


def test_what_may_not_happen_is_called_by_its_name() -> None:
    assert [problem_of(outcome(code)) for code in (0, 1, 2, 3, 4)] == [None] * 5
    assert problem_of(outcome(0, stderr="")) is None
    assert problem_of(outcome(2, stderr=" \n")) == "no sentence"
    assert problem_of(outcome(None)) == "hang"
    assert problem_of(outcome(70)) == "exit 70"
    assert problem_of(outcome(-9)) == "exit -9"
    assert problem_of(outcome(2, traceback=True)) == "traceback"
    assert problem_of(outcome(0, left=1)) == "left a process"


def test_the_table_follows_from_the_outcomes() -> None:
    kept = [json.loads(json.dumps(vars(outcome(code)))) for code in (0, 2, 2, 70, None)]
    assert table([{"seed": 3, "outcomes": kept}]).splitlines()[-1] == "| 3 | 5 | 1 | 1 | 0 | 2 | 0 | 0 | 1 | 1 | 0 |"


@dataclass(frozen=True)
class Walk:
    """A command line of a verb to which every value of its flags is added in turn."""

    arguments: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)


def _document(words: str) -> dict[str, str]:
    """Return the file that a command of the hostile documents reads, as it is when it is right."""
    found = next(one for one in documents() if " ".join(one.arguments).startswith(words))
    return {found.name: dump_document(found.document, found.name)}


NSA = "runtime:\n  fa2_min_len_win: 64\n  fa2_min_len_cmp: 16\n"
SLOWER = {"m.json": json.dumps(OLDEST), "other.json": json.dumps({**OLDEST, "best_time_ms": 3.0})}
WALKS = {
    **{name: Walk(bases[0]) for name, bases in BASES.items()},
    "compare": Walk(("m.json", "other.json", "--fail-on-regression"), SLOWER),
    "contention variance": Walk(("phased/latest",)),
    "energy compare": Walk(("m.json",), _document("energy compare")),
    "energy run": Walk(("openai_server.yaml", "--dry-run")),
    "scaling analyse": Walk(("m.json", "--min-efficiency", "30%"), _document("scaling analyse")),
    "scaling analyze": Walk(("m.json", "--min-efficiency", "30%"), _document("scaling analyse")),
    "threshold apply": Walk(("m.json", "--config", "nsa.yaml"), {**_document("threshold apply"), "nsa.yaml": NSA}),
    "threshold run": Walk(("--device", "cpu", "--dry-run")),
    "time": Walk(("ok.py:work", "ok.py:other", "--device", "cpu", "--budget", "0.1")),
}
DOCUMENTED = {
    ("run", "--isolation"): ("none", "gpu", "cpu", "numa", "full"),
    ("run", "--on"): ("local", "ssh:gpu1", "slurm", "modal", "runpod", "lambda", "auto"),
    ("contention matrix", "--aggressor"): ("cpu", "memory", "pcie", "sm", "hbm"),
    ("contention run", "--aggressor"): ("cpu", "memory", "pcie", "sm", "hbm"),
    ("scaling predict", "--link"): ("nvlink4", "pcie5", "eth400", "5us:100GB/s"),
    ("scaling run", "--link"): ("nvlink4", "pcie5", "eth400", "5us:100GB/s"),
    ("threshold run", "--safety-margin"): ("1.2", "conservative", "balanced", "aggressive"),
    ("threshold run", "--grid"): ("large",),
    ("time", "--device"): ("cpu", "cuda", "cuda:1"),
    ("trace", "--device"): ("cpu", "cuda", "cuda:1"),
}
"""Values that the help of a flag names, where any text is taken."""

NEEDS_GPU = (3, "needs a GPU")
NOT_RENTED = (3, "can be rented from here")
REFUSED: dict[tuple[str, str, str], tuple[int, str]] = {
    **{(verb, "--cache", "cold"): (2, "--cache cold applies to GPUs only") for verb in VERBS},
    **{("contention matrix", "--aggressor", name): NEEDS_GPU for name in ("pcie", "sm", "hbm")},
    **{("contention run", "--aggressor", name): NEEDS_GPU for name in ("pcie", "sm", "hbm")},
    **{("run", "--on", host): NOT_RENTED for host in ("modal", "runpod", "lambda", "auto")},
    **{("history plot", "--origin", name): (2, f"has no {name} numbers") for name in ("fake", "simulated")},
    **{("history show", "--origin", name): (2, f"has no {name} numbers") for name in ("fake", "simulated")},
    **{("time", "--method", name): (2, "is for a GPU") for name in ("graph", "queue", "trace")},
    **{("time", "--decide-on", name): (2, "is for a GPU") for name in ("busy", "span")},
    **{(verb, "--device", name): (3, "GPU") for verb in ("time", "trace") for name in ("cuda", "cuda:1")},
    **{("energy run", "--device", name): (2, "where the server is started") for name in ("cuda", "cpu")},
    ("time", "--cache", "cold"): (2, "is for a GPU"),
    ("trace", "--counters", "ncu"): (2, "--counters ncu needs a GPU"),
    ("threshold run", "--decide-on", "span"): (2, "--decide-on span applies to GPUs only"),
    **{("compare", "--unsure", name): (2, "The gate cannot decide on any number") for name in ("pass", "fail")},
    **{
        (f"scaling {verb}", "--unsure", name): (2, "has nothing to decide on")
        for verb in ("analyse", "analyze")
        for name in ("pass", "fail")
    },
    **{(f"scaling {verb}", "--unsure", "fail"): (2, "--unsure fail needs") for verb in ("predict", "run")},
    ("contention run", "--tuner", "triton"): (2, "--tuner triton tunes only workloads named NAME@triton"),
    # Helion tunes compiled kernels on a GPU: test_contention.py has it with a stand-in, test_contention_gpu.py for real
    ("contention run", "--tuner", "helion"): (2, "--tuner helion tunes only workloads named NAME@helion"),
}
"""Values that are refused on a machine without GPUs and accounts: with which exit code, and why."""


def values_of(verb: str, parameter: click.Parameter) -> tuple[str, ...]:
    """Return every value that a flag is documented to take; none where any will do."""
    if choices := VERBS[verb].row_of[parameter].choices:
        return choices
    return next((DOCUMENTED[verb, name] for name in parameter.opts if (verb, name) in DOCUMENTED), ())


def words_of(parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Return a value as it stands on a command line."""
    return (value,) if isinstance(parameter, click.Argument) else (f"{max(parameter.opts, key=len)}={value}",)


def lines_of(verb: str) -> list[tuple[tuple[str, ...], tuple[int, str]]]:
    """Return command lines that have every value of every flag, with how each is to end.

    Values that are fine stand on one line, one of each flag; those that are refused each have their own.
    """
    good: list[list[tuple[str, ...]]] = []
    lines: list[tuple[tuple[str, ...], tuple[int, str]]] = []
    for parameter in VERBS[verb].params:
        fine = 0
        for value in values_of(verb, parameter):
            key = next(((verb, name, value) for name in parameter.opts if (verb, name, value) in REFUSED), None)
            if key is not None:
                lines.append((words_of(parameter, value), REFUSED[key]))
                continue
            good += [[]] if fine == len(good) else []
            good[fine].append(words_of(parameter, value))
            fine += 1
    return [(tuple(word for words in line for word in words), (0, "")) for line in good] + lines


WITH_VALUES = [name for name in VERBS if lines_of(name)]


@pytest.mark.parametrize("verb", WITH_VALUES)
def test_every_documented_value_of_every_flag_is_taken_or_refused_for_a_good_reason(
    verb: str, scratch: Scratch
) -> None:
    walk = WALKS[verb]
    for number, (words, (code, why)) in enumerate(lines_of(verb)):
        base = () if verb == "list" else walk.arguments
        ended = scratch.run(1000 + number, Line((*verb.split(), *base, *words), {}, walk.files))
        assert ended.exit_code == code, (ended.arguments, ended.stderr)
        assert why in ended.stderr
