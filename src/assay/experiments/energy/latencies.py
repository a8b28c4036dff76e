"""How long tokens were waited for, process by process: until the first, and from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.stats.metered import Draw
from assay.stats.quantiles import fewest

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.experiments.energy.seen import CellSeen, Draws
    from assay.experiments.energy.stages import Seen
    from assay.stats.summary import Samples

GAPS = {"gap_p50_ms": 0.5, "gap_p95_ms": 0.95, "gap_p99_ms": 0.99}


def first_tokens(seen: CellSeen) -> tuple[Seen, ...]:
    """Return the windows in which first tokens were waited for: of whole requests, else those of the prompt alone."""
    windows = [window for window in seen.whole if len(window.samples("first_token_us"))]
    return tuple(windows) or tuple(
        window for window in seen.windows.get("prefill", ()) if len(window.samples("first_token_us"))
    )


def _ttft(seen: CellSeen) -> Draws:
    windows = first_tokens(seen)
    draws = [Draw(float(np.median(window.samples("first_token_us"))) / 1e3) for window in windows]
    return draws or _why_no(seen, "no first token came")


def gap_windows(seen: CellSeen) -> tuple[Seen, ...]:
    """Return the windows in which tokens followed one another: of whole requests, else those of decoding alone."""
    windows = [window for window in seen.whole if len(window.samples("gap_us"))]
    return tuple(windows) or tuple(window for window in seen.windows.get("decode", ()) if len(window.samples("gap_us")))


def per_request_us(seen: Seen) -> Samples:
    """Return the mean gap of each request of a window; of all together where they cannot be told apart.

    Answers of a server come in chunks of several tokens where it likes, so that its client tells the mean itself.
    """
    samples = seen.samples("tpot_us")
    if len(samples):
        return samples
    gaps, calls = seen.samples("gap_us"), seen.stage.calls
    if seen.place.phase != "served" and len(gaps) >= calls and len(gaps) % calls == 0:
        return np.asarray(gaps.reshape(calls, -1).mean(axis=1), dtype=np.float64)
    return np.array([gaps.mean()])


def _tpot(seen: CellSeen) -> Draws:
    draws = [Draw(float(np.median(per_request_us(window))) / 1e3) for window in gap_windows(seen)]
    return draws or _why_no(seen, "no token followed another")


def _gap(share: float) -> Callable[[CellSeen], Draws]:
    def draws(seen: CellSeen) -> Draws:
        windows = gap_windows(seen)
        if not windows:
            return _why_no(seen, "no token followed another")
        enough = [window for window in windows if len(window.samples("gap_us")) >= fewest(share)]
        if not enough:
            most = max(len(window.samples("gap_us")) for window in windows)
            return f"{fewest(share)} gaps of one process are needed, and there are {most} at most"
        return [Draw(float(np.quantile(window.samples("gap_us"), share)) / 1e3) for window in enough]

    return draws


def _why_no(seen: CellSeen, otherwise: str) -> str:
    windows = seen.of("whole")
    return windows if isinstance(windows, str) else otherwise


LATENCIES: dict[str, Callable[[CellSeen], Draws]] = {
    "ttft_ms": _ttft,
    "tpot_ms": _tpot,
    **{name: _gap(share) for name, share in GAPS.items()},
}
"""How each figure is told of one process."""
