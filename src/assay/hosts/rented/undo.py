"""How a rental is undone by whoever is left: the guardian, or `assay reap`; credentials come from the environment."""

from __future__ import annotations

from assay.core.errors import MachineCannot
from assay.hosts import registry
from assay.hosts.rented.desk import account_of
from assay.hosts.rented.host import RentedHost


def end(provider: str, order: str, account: str | None = None) -> None:
    """End every machine of an order and see it gone; safe to do twice, and when it never came to be.

    Raises:
        MachineCannot: It is still there, the provider does not answer, or the credentials are not those it was
            rented with.
    """
    host = rented(provider)
    check_account(host, account)
    host.end_order(order)


def rented(provider: str) -> RentedHost:
    """Return a provider's host, which can be asked.

    Raises:
        MachineCannot: It is not known any more, or its credentials are not here.
    """
    host = registry.load(provider) if provider in registry.known() else None
    if not isinstance(host, RentedHost):
        raise MachineCannot(f"There is no provider {provider} here any more.")
    missing = host.available()
    if missing is not None:
        raise MachineCannot(f"{provider} cannot be asked from here: {missing}.")
    return host


def check_account(host: RentedHost, account: str | None) -> None:
    """Make sure that the machines of an account are looked for in that account: another shows none, and proves nothing.

    Raises:
        MachineCannot: The credentials are another account's, or the address is another.
    """
    if account is not None and account != account_of(host.provider):
        raise MachineCannot(f"it was rented from {host.name} with another key or at another address than are set here")
