"""From the flags of ``assay threshold run`` to what is measured; anything that makes no sense is said here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.cli.on_host import LOCAL
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from assay.experiments.threshold.options import ThresholdOptions
    from assay.machine.model import Machine

DURATION_S = {"cuda": 60.0, "cpu": 20.0}
BUDGET_S = {"cuda": 240.0, "cpu": 90.0}
QUICK_SHARE = 0.5
QUICK_PROCESSES = 2


def by_its_older_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given with ``--provider`` read as ``--on``."""
    provider, on = given["provider"], given["on"]
    if provider is not None and on not in {LOCAL, provider}:
        raise BadInput(f"--provider is the older name of --on, and {provider} is not {on}; give one of them.")
    merged = {**given, "provider": None, "on": provider or on}
    if merged["on"] == LOCAL and given["gpu_type"] is not None:
        raise BadInput(
            f"--gpu-type {given['gpu_type']} says what kind of GPU to rent, and nothing is rented here; "
            "--gpus 0 chooses among those of this machine."
        )
    return merged


def build(given: Mapping[str, Any], machine: Machine) -> ThresholdOptions:
    """Return the options that the flags mean on this machine."""
    from pydantic import ValidationError

    from assay.core.values import first_problem
    from assay.experiments.threshold.grid import planned
    from assay.experiments.threshold.options import BLOCKS, GROWTH, ThresholdOptions
    from assay.experiments.threshold.spec import DEFAULT, load, margin_of
    from assay.isolation.devices import choose, kind_of

    groups = given["cpu_groups"] or (None if given["devices"] and given["devices"] != ("cpu",) else 1)
    chosen = choose(machine, gpus=given["gpus"], devices=given["devices"], cpu_groups=groups)
    named_devices = given["gpus"] or [name for name in given["devices"] if ":" in name]
    if len(named_devices) > 1:
        raise BadInput(f"A threshold is that of one device, and {len(named_devices)} are named; run them one by one.")
    device = chosen[0]
    kind = kind_of(device)
    path: Path = given["thresholds"] or DEFAULT
    margin = None if given["safety_margin"] is None else margin_of(given["safety_margin"])
    sizes = [_size(word) for word in given["sizes"]]
    if kind == "cpu" and given["decide_on"] == "span":
        raise BadInput("--decide-on span is for GPUs; on a CPU a call returns when its work is done: decide on call.")
    if kind == "cpu" and given["cache"] == "cold":
        raise BadInput("--cache cold is for GPUs; a CPU's caches are as the calls leave them.")
    share = QUICK_SHARE if given["quick"] else 1.0
    try:
        return ThresholdOptions(
            thresholds=tuple(
                planned(threshold, kind=kind, grid=given["grid"], margin=margin, sizes=sizes)
                for threshold in load(path)
            ),
            device=device,
            decide_on=given["decide_on"],
            growth=GROWTH,
            blocks=given["processes"] or (QUICK_PROCESSES if given["quick"] else BLOCKS),
            duration_s=given["duration"] or DURATION_S[kind] * share,
            budget_s=given["budget"] or BUDGET_S[kind] * share,
            isolation=given["isolation"],
            strangers=given["strangers"],
            cache=given["cache"],
            timeout_s=given["timeout"],
            cpu_groups=groups,
            retakes=given["retakes"],
            seed=given["seed"],
        )
    except ValidationError as error:
        raise BadInput(f"{first_problem(error)}.") from None


def _size(word: str) -> int:
    """Return a size of the grid."""
    if not (word.isascii() and word.isdecimal() and len(word) <= 18 and int(word) > 0):
        raise BadInput(f"--sizes takes whole numbers of at least 1, such as 1024,4096; {word!r} is none.")
    return int(word)
