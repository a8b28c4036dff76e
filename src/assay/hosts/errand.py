"""Have an order carried out elsewhere; whatever happens, what was lent for it goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import EndedEarly, StopRequested
from assay.core.guardian import Guardian
from assay.core.stopping import stop_on_signals

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.base import Ended, Host, Loan, Order, Watcher


def carry_out(host: Host, order: Order, watcher: Watcher) -> tuple[Ended, tuple[Path, ...]]:
    """Return how an order ended and the run folders it left, with the loan seen gone.

    Raises:
        MachineCannot: The host refuses, or does not answer.
        EndedEarly: Time or money ran out; the loan is gone all the same.
        StopRequested: A signal came; likewise.
    """
    with stop_on_signals(), Guardian():
        rental = host.create(order)
        try:
            ended = host.run(rental, order, watcher)
            folders = host.collect(rental, order)
        except (StopRequested, EndedEarly) as stopped:
            _release_after(stopped, host, rental)
            raise type(stopped)(f"{stopped}; {rental.name} ({rental.host} {rental.number}) is gone") from None
        except BaseException as error:
            _release_after(error, host, rental)
            raise
        host.release(rental)
    return ended, folders


def _release_after(error: BaseException, host: Host, loan: Loan) -> None:
    """Give a loan back after an error; a failure to do so replaces it, for it is what costs."""
    try:
        host.release(loan)
    except Exception as failure:
        raise failure from error
