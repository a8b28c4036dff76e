"""How the steps of a sweep, and what is said of them, are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import format_time, significant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Estimate
    from assay.core.values import Scalar
    from assay.experiments.power.rows import Knob
    from assay.experiments.power.sweep.options import SweepOptions

AXES: dict[Knob, str] = {
    "power_limit_w": "power limit (W)",
    "sm_mhz": "locked SM clock (MHz)",
    "size": "size",
    "dtype": "dtype",
    "batch": "batch",
    "duty": "duty (% of the time)",
}
UNITS: dict[Knob, str] = {"power_limit_w": "W", "sm_mhz": "MHz", "duty": "%"}
AS_FOUND = "as found"


def step_text(options: SweepOptions, setting: Scalar) -> str:
    """Write a step as a phase of the run: "limit 300 W", "clock 1200 MHz", "size 4096", "as found"."""
    if setting is None:
        return AS_FOUND
    names = {"power_limit_w": "limit", "sm_mhz": "clock"}
    return f"{names.get(options.knob, options.knob)} {setting_text(options.knob, setting)}"


def setting_text(knob: Knob, setting: Scalar) -> str:
    """Write a setting with its unit: "300 W", "1200 MHz", "50 %", "4096", "bfloat16"."""
    if setting is None:
        return AS_FOUND
    if isinstance(setting, str | bool):
        return str(setting)
    number = 100 * setting if knob == "duty" else setting
    unit = UNITS.get(knob)
    return f"{number:.10g} {unit}" if unit else f"{number:.10g}"


def at_text(knob: Knob, setting: Scalar) -> str:
    """Write a setting as a place: "a limit of 300 W", "size 4096", "bfloat16"."""
    names = {"power_limit_w": "a limit of ", "sm_mhz": "a clock of ", "duty": "a duty of ", "dtype": ""}
    return AS_FOUND if setting is None else f"{names.get(knob, f'{knob} ')}{setting_text(knob, setting)}"


def settings_text(knob: Knob, settings: Sequence[Scalar], among: Sequence[Scalar] = ()) -> str:
    """Write several settings: "250, 300 and 350 W"; runs of neighbours ``among`` all of them as "250 to 400 W"."""
    if not settings:
        return "none"
    unit = UNITS.get(knob)
    parts: list[str] = []
    for run in _runs(settings, among):
        words = [setting_text(knob, setting).removesuffix(f" {unit}" if unit else "") for setting in run]
        parts += [f"{words[0]} to {words[-1]}"] if len(run) > 2 else words
    return f"{listed(parts)} {unit}" if unit else listed(parts)


def _runs(settings: Sequence[Scalar], among: Sequence[Scalar]) -> list[list[Scalar]]:
    """Return settings in runs of neighbours."""
    indices = {setting: index for index, setting in enumerate(among)}
    runs: list[list[Scalar]] = []
    expected = -1
    for setting in settings:
        index = indices.get(setting, -1)
        if runs and index == expected:
            runs[-1].append(setting)
        else:
            runs.append([setting])
        expected = index + 1 if index >= 0 else -2
    return runs


def listed(words: Sequence[str]) -> str:
    """Write "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def axis_value(knob: Knob, setting: Scalar) -> float:
    """Return where a setting stands on its axis; a duty is shown in percent."""
    return (100.0 if knob == "duty" else 1.0) * float(str(setting))


def percent(share: float) -> str:
    """Write a share: "3.4 %", "12 %"."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.1f} %"


def more_or_less(ratio: float, more: str = "more", less: str = "less") -> str:
    """Write a ratio as what it adds or saves: 0.82 is "18 % less"."""
    return f"{percent(ratio - 1)} {more}" if ratio >= 1 else f"{percent(1 - ratio)} {less}"


def ratio_text(estimate: Estimate | None) -> str | None:
    """Write a ratio with its interval: "0.82 [0.80, 0.84]"; null where there is none."""
    if estimate is None:
        return None
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    digits = 3 if max(abs(estimate.low - 1), abs(estimate.high - 1)) < 0.1 else 2
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def joules_text(joules: float | None) -> str | None:
    """Write joules in the unit that reads best: "12.3 mJ"; null where they are not known."""
    if joules is None:
        return None
    for scale, unit in ((1e-12, "pJ"), (1e-9, "nJ"), (1e-6, "µJ"), (1e-3, "mJ")):
        if abs(joules) < 1000 * scale:
            return f"{significant(joules / scale)} {unit}"
    return f"{significant(joules)} J"


def time_text(microseconds: float | None) -> str | None:
    """Write a time in the unit that reads best; null where it is not known."""
    return None if microseconds is None else format_time(microseconds)
