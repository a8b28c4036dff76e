"""Which of several failures to tell of: when a rank goes, the others fail too, for no reason of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.launch.handle import Failure

OUT_OF_MEMORY = "out of memory"


def by_cause(failures: Iterable[Failure]) -> list[Failure]:
    """Return failures, given as they came, with what caused the others first.

    Memory that ran out comes first, then whatever is no consequence of another's end; of those, what came first.
    """
    return sorted(failures, key=lambda failure: (failure.by_another, not failure.reason.startswith(OUT_OF_MEMORY)))


def all_refused(failures: Iterable[Failure]) -> bool:
    """Return whether the machine could not, on every rank that failed for a reason of its own."""
    all_failures = list(failures)
    own = [failure for failure in all_failures if not failure.by_another]
    return all(failure.refused for failure in own or all_failures)
