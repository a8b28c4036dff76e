"""Units: how quantities are named and parsed from the command line."""

from __future__ import annotations

import re

from assay.core.errors import BadInput

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-zµμ]*)\s*", re.IGNORECASE)
MAX_DURATION_S = 30 * 86400.0
"""No single duration is longer than thirty days: a larger one is a typing error."""

MAX_REPEATS = 10_000
MAX_PROCESSES = 1_024
MAX_CALLS = 10_000_000
MAX_SIZE = 2**31 - 1
"""Upper limits of counts, for the same reason: each repeat is planned, and each process is started."""

_UNIT_SUFFIXES = {
    "us": "µs",
    "ms": "ms",
    "s": "s",
    "ns": "ns",
    "w": "W",
    "j": "J",
    "mib": "MiB",
    "gib": "GiB",
    "gb": "GB",
    "mb": "MB",
    "mhz": "MHz",
    "cycles": "cycles",
    "c": "°C",
    "percent": "%",
    "gflops": "GFLOP/s",
    "tflops": "TFLOP/s",
    "tokens": "tokens",
    "bytes": "bytes",
    "flop": "FLOP",
}


def parse_duration_s(text: str, *, zero_ok: bool = False) -> float:
    """Return seconds from "5", "5s", "500ms", "2m" or "1h"; anything else is bad input."""
    match = _DURATION.fullmatch(text)
    unit = re.sub("[µμ]", "u", match[2].lower()) if match else ""
    if match is None or (unit and unit not in _SECONDS):
        raise BadInput(f"{text!r} is not a duration; write seconds, or 500ms, 90s, 5m, 2h.")
    seconds = float(match[1]) * _SECONDS[unit or "s"]
    if seconds == 0 and not zero_ok:
        raise BadInput("A duration must be longer than zero.")
    if seconds > MAX_DURATION_S:
        raise BadInput(f"{text!r} is longer than thirty days, which cannot be meant.")
    return seconds


def parse_fraction(text: str) -> float:
    """Return 0.01 from "1%", "1 %" or "0.01"; it must lie strictly between 0 and 1."""
    body = text.strip()
    try:
        signed = body.endswith("%")
        value = float(body[:-1]) / 100 if signed else float(body)
    except ValueError:
        raise BadInput(f"{text!r} is not a percentage; write 1% or 0.01.") from None
    if not 0 < value < 1:
        meant = f"; for {body} percent write {body}% or {value / 100:g}" if not signed and 1 <= value < 100 else ""
        raise BadInput(f"{text!r} is out of range: it lies between 0 and 1, or 0% and 100%{meant}.")
    return value


def unit_of(quantity: str) -> str:
    """Return the unit in a quantity's name: ``call_us`` is in µs; "" when it has none."""
    return _UNIT_SUFFIXES.get(quantity.rsplit("_", 1)[-1].lower(), "") if "_" in quantity else ""
