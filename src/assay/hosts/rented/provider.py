"""What a provider of rented machines must implement; everything else is the same for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import AwareDatetime, Field

from assay.core.errors import MachineCannot
from assay.core.values import Value
from assay.hosts.base import Offer

if TYPE_CHECKING:
    from assay.hosts.remote.connection import RemoteConnection

Stage = Literal["starting", "up", "ending", "gone", "lost"]
"""``lost``: preempted, unhealthy or in error: unusable, but still there until confirmed gone."""


class NoAnswer(MachineCannot):
    """No answer, or a server error: the request may have taken effect nevertheless."""


class NoCapacity(MachineCannot):
    """No such machine is free now; another type or place may have one."""


class InstanceRequest(Value):
    """A machine to create."""

    name: str = Field(description="Unique; the machine is looked up by it.")
    offer: Offer
    image: str
    deadline_at: AwareDatetime
    public_key: str | None = Field(
        default=None, description="Key that may log in; null where the connection needs none."
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="The machine's environment variables; never a secret."
    )


class RentedMachine(Value):
    """A machine of ours, in the state last reported by the provider."""

    name: str
    number: str = Field(description="The provider's id.")
    stage: Stage
    status_text: str = Field(default="", description="The provider's own name of the state.")
    address: str | None = None
    port: int = 22
    user: str = "root"
    usd_per_hour: float | None = None
    since: AwareDatetime | None = None


class Provider(Protocol):
    """One account at one provider. Every method is one query or one request; none waits or retries.

    Optional members:

    - ``keyed = True``: a key pair is created for each rental, and `InstanceRequest.public_key` is set.
    - ``prepare(request)``: create what must exist before a machine is requested; idempotent.
    - ``turn()``: wait until a machine may be requested; if it is interrupted, nothing was requested.
    - ``tidy(job_id)``: remove what `prepare` created, once all machines of a job are gone; idempotent.
    - ``images = False``: its machines have one fixed image, and ``--image`` is refused.
    - ``refuses``: places (``--on HOST:PLACE``) that are refused, each with the reason as a clause.
    - ``account() -> str``: an identifier of the account, so that cleanup does not query the wrong one.
    """

    name: str
    default_image: str

    def missing(self) -> str | None:
        """Return which credential or package is missing and how to get it, as a clause; null when none is."""
        ...

    def offers(self) -> tuple[Offer, ...]:
        """Return what is available now, at live prices."""
        ...

    def launch(self, request: InstanceRequest) -> RentedMachine:
        """Request a machine, once.

        Raises:
            NoCapacity: It is not available now.
            NoAnswer: It may have been created nevertheless.
            MachineCannot: Refused: credentials, payment, quota, an invalid request.
        """
        ...

    def ours(self) -> tuple[RentedMachine, ...]:
        """Return every machine that has a name of ours and is not gone."""
        ...

    def look(self, number: str) -> RentedMachine | None:
        """Return a machine's current state; null when the provider does not know it, or it is gone for good."""
        ...

    def end(self, number: str) -> None:
        """Request a machine's termination, once; `look` and `ours` show whether it ended."""
        ...

    def line(self, machine: RentedMachine) -> RemoteConnection | None:
        """Return a connection to a machine that is up; null when it cannot be reached yet."""
        ...

    def billed_usd(self, machine: RentedMachine) -> float | None:
        """Return the cost billed by the provider, in USD; null when it is not available (yet)."""
        ...
