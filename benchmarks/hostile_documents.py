"""Files that were right until one place of them became wrong: settings, plans, results of this and of older tools."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from assay.core.yaml_input import read_yaml
from benchmarks.hostile_files import EXAMPLES, LONG
from tests.compat.test_compat_contention import OLDEST
from tests.experiments.energy.made_rows import result, row
from tests.experiments.power.simulated_fleets import Setting, simulate
from tests.experiments.power.simulated_sweeps import sweep_rows
from tests.experiments.scaling.results import content
from tests.experiments.threshold.test_threshold_results import OLDER

if TYPE_CHECKING:
    import random

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 10**30, -(10**30), 1e308, -1e308, 5e-324, float("nan"), float("inf"), "", " ",
    "x", "nan", "1", LONG,
    "a\nb", "é", "💥", "../..", "/dev/null", "missing.py:f", "random:nope", [], {}, [[]], [None], [1, "a"], {"a": 1},
    {"": None}, [-1], [0], [1, 1],
    [10**30], "5us", "1%", "0", "auto", "cpu", ["x"] * 50, {"n": [1, 2]}, "{}", "{0.__class__}", "*", "[", "(",
    "2026-01-01", "http://[", "cuda:0",
)  # fmt: skip
"""What is put in the place of something right; NaN and infinities are written as JSON never has them."""


@dataclass(frozen=True)
class Documented:
    """A command line that reads a file, by which name, and a file that is right."""

    arguments: tuple[str, ...]
    name: str
    document: Any
    environment: dict[str, str]


def _reading(arguments: str, name: str, document: Any, **environment: str) -> Documented:
    return Documented(tuple(arguments.split()), name, document, environment)


@cache
def documents() -> tuple[Documented, ...]:
    """Return every kind of file that somebody may give, with a command that reads it."""
    example = {name: read_yaml(EXAMPLES / f"{name}.yaml") for name in
               ("run", "thresholds", "power_cases", "openai_server", "pytorch_single", "config")}  # fmt: skip
    energy = result(*(row(mode=mode, batch=batch) for mode in ("eager", "graphs") for batch in (1, 8)))
    fleet = simulate(Setting(nodes=1, gpus=2, runs=2), 1).all_rows
    comment = {
        "action": "created",
        "issue": {"number": 7, "pull_request": {"url": "https://api.github.com/x"}, "state": "open"},
        "comment": {"body": "/benchmark L4", "user": {"login": "writer", "type": "User"}},
        "repository": {"full_name": "acme/kernels", "default_branch": "main"},
    }
    return (
        _reading("run ok.py:work --device cpu:0 --dry-run --options m.yaml", "m.yaml",
                 {"duration": "1s", "repeat": 2, "isolation": "none", "precision": "1%", "param": ["n=3"], "seed": 1,
                 "restarts": 2, "cache": "warm"}),
        _reading("run --dry-run --options m.json", "m.json", example["run"]),
        _reading("contention run --dry-run --options m.yaml", "m.yaml",
                 {"benchmark": ["softmax@numpy"], "device": "cpu:0", "workers-per-device": 2, "budget": "1m",
                 "tuner": "pick", "aggressor": "cpu"}),
        _reading("power sweep gemm --device cpu:0 --dry-run --options m.yaml", "m.yaml",
                 {"sizes": [64, 128], "duration": "1s", "duty": "50%", "batches": [1, 2], "dtypes": ["float32"],
                 "max-slowdown": "5%"}),
        _reading("scaling run --dry-run --options m.yaml", "m.yaml",
                 {"quick": 2, "device": "cpu", "seq-lengths": [512], "segment-lengths": [128], "dilation-rates": [1],
                 "num-heads": 2, "embed-dim": 64}),
        _reading("threshold run m.yaml --device cpu --dry-run", "m.yaml", example["thresholds"]),
        _reading("threshold run m.yaml --device cpu --dry-run", "m.yaml", example["thresholds"]),
        _reading("power characterize m.yaml --device cpu --dry-run", "m.yaml", example["power_cases"]),
        _reading("power characterize m.yaml --device cpu --dry-run", "m.yaml", example["power_cases"]),
        _reading("energy run m.yaml --dry-run", "m.yaml", example["openai_server"]),
        _reading("energy run m.yaml --dry-run", "m.yaml", example["openai_server"]),
        _reading("threshold apply m.json --config config.yaml", "m.json", OLDER),
        _reading("threshold apply m.json --config config.yaml --safety-margin 1.1 --json", "m.json", OLDER),
        _reading("threshold run thresholds.yaml --device cpu --dry-run --baseline m.json", "m.json", OLDER),
        _reading("threshold apply list.json --config m.yaml", "m.yaml", example["config"]),
        _reading("contention variance m.json other.json", "m.json", OLDEST),
        _reading("compare m.json other.json", "m.json", OLDEST),
        _reading("compare m.json other.json", "m.json", OLDER),
        _reading("scaling analyse m.json", "m.json", content()),
        _reading("scaling analyse m.json --min-efficiency 50%", "m.json", content(assay=None)),
        _reading("energy compare m.json", "m.json", energy.as_json()),
        _reading("energy compare m.json --by batch -o out.html", "m.json", energy.as_json()),
        _reading("power variability m.jsonl", "m.jsonl", [gpu.as_json() for gpu in fleet]),
        _reading("power budget m.jsonl --watts 900", "m.jsonl", [step.as_json() for step in sweep_rows(0, knee=300.0)]),
        _reading("github request", "m.json", comment, GITHUB_EVENT_NAME="issue_comment", GITHUB_EVENT_PATH="m.json",
        GITHUB_REPOSITORY="acme/kernels",
                 ASSAY_DEFAULT_GPU="L4"),
    )  # fmt: skip


def mutated(document: Any, chance: random.Random) -> Any:
    """Return a document in which one place, or two, is another: replaced, removed, doubled or renamed."""
    result = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2))):
        positions = list(_places(result))
        if not positions:
            return chance.choice(HOSTILE)
        holder, key = chance.choice(positions)
        match chance.random():
            case share if share < 0.75:
                holder[key] = copy.deepcopy(chance.choice(HOSTILE))
            case share if share < 0.85:
                del holder[key]
            case share if share < 0.95 and isinstance(holder, dict):
                holder[chance.choice(("", "x", "name", "type", f"{key} "))] = holder.pop(key)
            case _ if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
    return result


def _places(holder: Any) -> list[tuple[Any, Any]]:
    """Return every place of a document, as what holds it and the key or number there."""
    keys: list[Any] = (
        list(holder) if isinstance(holder, dict) else list(range(len(holder))) if isinstance(holder, list) else []
    )
    return [position for key in keys for position in ((holder, key), *_places(holder[key]))]


def dump_document(document: Any, name: str) -> str:
    """Return a document as its file has it: rows one below the other, or JSON, which YAML can read too."""
    if name.endswith(".jsonl"):
        return "".join(f"{json.dumps(row)}\n" for row in (document if isinstance(document, list) else [document]))
    return json.dumps(document, indent=1 if name.endswith(".json") else None)
