"""From the flags of ``assay power sweep`` to its options; anything that makes no sense is said here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.cli.run import parameter
from assay.core.errors import BadInput
from assay.experiments.power.sweep.options import CAPS, SweepOptions
from assay.experiments.power.sweep.plan import block_of, longest_s
from assay.experiments.power.sweep.points import FLAGS, cap_points, duty_points, load_points, parameters_of
from assay.experiments.power.sweep.steps import numbers, shares, whole_numbers
from assay.isolation.allot import parse_level
from assay.isolation.devices import choose
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Scalar
    from assay.experiments.power.rows import Knob
    from assay.experiments.power.sweep.options import Point
    from assay.machine.model import Machine

DURATION_S, QUICK_DURATION_S = 10.0, 3.0
SETTLE_S, QUICK_SETTLE_S = 30.0, 5.0
REPEAT = 3
SHORTEST_TRIAL_S = 1.0
FLAG_NAMES: dict[Knob, str] = {knob: flag.lstrip("-").replace("-", "_") for knob, flag in FLAGS.items()}


def build(given: Mapping[str, Any], machine: Machine) -> SweepOptions:
    """Return the options that the flags mean on this machine."""
    knob = _knob(given)
    named_devices = given["gpus"] or given["devices"]
    chosen = choose(machine, gpus=given["gpus"], devices=given["devices"], cpu_groups=given["cpu_groups"])
    devices = chosen if named_devices else chosen[:1]
    points = _points(knob, given, devices[0].partition(":")[0])
    label = next(point.subject.label for point in points if point.subject is not None)
    quick = given["quick"]
    settle_s = given["settle"] if given["settle"] is not None else QUICK_SETTLE_S if quick else SETTLE_S
    options = SweepOptions(
        knob=knob,
        points=points,
        workload=label,
        devices=devices,
        together=given["together"] and len(devices) > 1,
        isolation=parse_level(given["isolation"]),
        strangers=given["strangers"],
        duration_s=given["duration"] or (QUICK_DURATION_S if quick else DURATION_S),
        settle_s=settle_s or None,
        cooldown_s=given["cooldown"],
        repeat=given["repeat"] or REPEAT,
        restarts=given["restarts"],
        max_slowdown=given["max_slowdown"],
        minimum_effect=given["minimum_effect"],
        budget_s=given["budget"],
        timeout_s=given["timeout"],
        cpu_groups=given["cpu_groups"],
        retakes=given["retakes"],
        seed=given["seed"],
    )
    return within_budget(options)


def _knob(given: Mapping[str, Any]) -> Knob:
    """Return what is swept: one thing."""
    knobs: list[Knob] = [knob for knob, name in FLAG_NAMES.items() if given[name]]
    if not knobs:
        raise BadInput(f"Nothing to sweep: name the steps with one of {', '.join(FLAGS.values())}.")
    if len(knobs) > 1:
        raise BadInput(f"One knob at a time: {' and '.join(FLAGS[knob] for knob in knobs)} are {len(knobs)}.")
    if given["size_params"] and knobs[0] != "size":
        raise BadInput("--size-param names what --sizes sets, and there is no --sizes.")
    if given["apply"] and knobs[0] not in CAPS:
        raise BadInput(f"--apply is for limits and clocks; {FLAGS[knobs[0]]} changes nothing on the GPU.")
    return knobs[0]


def _points(knob: Knob, given: Mapping[str, Any], kind: str) -> tuple[Point, ...]:
    params = dict(parameter(text) for text in given["params"])
    steps = _steps(knob, given[FLAG_NAMES[knob]])
    spec = given["workload"]
    if knob in CAPS or knob == "duty":
        subject = registry.subject(spec, device_kind=kind, given=params)
        make = cap_points if knob in CAPS else duty_points
        return make(subject, [float(str(step)) for step in steps])
    names = parameters_of(knob, spec, given["size_params"], device_kind=kind, given=params)
    return load_points(knob, steps, spec, device_kind=kind, given=params, names=names)


def _steps(knob: Knob, words: Sequence[str]) -> tuple[Scalar, ...]:
    if knob == "dtype":
        return tuple(dict.fromkeys(words))
    if knob == "duty":
        return shares(FLAGS[knob], words)
    if knob == "power_limit_w":
        return numbers(FLAGS[knob], words, units=("W",))
    return whole_numbers(FLAGS[knob], words, units=("MHz",) if knob == "sm_mhz" else ())


def within_budget(options: SweepOptions) -> SweepOptions:
    """Shorten the trials, and the wait for steadiness with them, until all repeats fit the budget."""
    block = block_of(options, 1)
    if options.budget_s is None or block is None:
        return options
    trials = options.repeat * len(block.trials)
    ours_s = options.duration_s + (options.settle_s or 0.0) * options.restarts
    beside_s = options.repeat * sum(longest_s(options, trial) - ours_s for trial in block.trials)
    share = (options.budget_s - beside_s) / (trials * ours_s)
    if share >= 1:
        return options
    if share * options.duration_s < SHORTEST_TRIAL_S:
        least_s = beside_s + trials * ours_s * SHORTEST_TRIAL_S / options.duration_s
        raise BadInput(
            f"--budget {options.budget_s:g} s is too little for {trials} trials; they need {least_s:.0f} s. "
            "Fewer steps, GPUs or --repeat need less."
        )
    settle_s = None if options.settle_s is None else share * options.settle_s
    return options.model_copy(update={"duration_s": share * options.duration_s, "settle_s": settle_s})
