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
"""``lost``: preempted, unhealthy, in error: still there until it is seen gone, but of no use."""


class NoAnswer(MachineCannot):
    """An answer never came, or said that the provider is in trouble: what was asked for may be done all the same."""


class NoCapacity(MachineCannot):
    """Nobody has such a machine free now; another kind or place may have."""


class InstanceRequest(Value):
    """A machine to be made."""

    name: str = Field(description="Unique, and what it is found again by.")
    offer: Offer
    image: str
    deadline_at: AwareDatetime
    public_key: str | None = Field(default=None, description="Who may log in; null where the line needs no key.")
    environment: dict[str, str] = Field(default_factory=dict, description="Of the machine; never a secret.")


class RentedMachine(Value):
    """A machine of ours, as the provider last described it."""

    name: str
    number: str = Field(description="What the provider calls it.")
    stage: Stage
    status_text: str = Field(default="", description="The provider's own word for that.")
    address: str | None = None
    port: int = 22
    user: str = "root"
    usd_per_hour: float | None = None
    since: AwareDatetime | None = None


class Provider(Protocol):
    """One account at one provider. Every method is one question or one order; none waits or tries again.

    What only some providers need may be there too:

    - ``keyed = True``: a key pair is made for each rental, and `InstanceRequest.public_key` is set.
    - ``prepare(request)``: whatever has to be there before a machine is asked for; safe to do again.
    - ``turn()``: waits until a machine may be asked for; whatever stops us meanwhile, nothing was asked for.
    - ``tidy(job_id)``: remove what `prepare` made, once all machines of an order are gone; safe to do again.
    - ``images = False``: its machines start from one image only, and ``--image`` is refused.
    - ``refuses``: places behind the host's name that are not used, each with its reason as a clause.
    - ``account() -> str``: what tells the account from another, so that nothing is looked for in the wrong one.
    """

    name: str
    default_image: str

    def missing(self) -> str | None:
        """Return which credential or package is not here and how to get it, as a clause; null when all is."""
        ...

    def offers(self) -> tuple[Offer, ...]:
        """Return what can be had now, with the price of this moment."""
        ...

    def launch(self, request: InstanceRequest) -> RentedMachine:
        """Ask for a machine, once.

        Raises:
            NoCapacity: It cannot be had now.
            NoAnswer: It may be there all the same.
            MachineCannot: Refused: credentials, payment, quota, a request that makes no sense.
        """
        ...

    def ours(self) -> tuple[RentedMachine, ...]:
        """Return every machine that bears a name of ours and is not gone."""
        ...

    def look(self, number: str) -> RentedMachine | None:
        """Return a machine as it is now; null when the provider knows of none, or it is gone for good."""
        ...

    def end(self, number: str) -> None:
        """Ask for a machine's end, once; whether it ended is seen by looking."""
        ...

    def line(self, machine: RentedMachine) -> RemoteConnection | None:
        """Return a line to a machine that is up; null when it cannot be reached yet."""
        ...

    def billed_usd(self, machine: RentedMachine) -> float | None:
        """Return what it has cost by the provider's own account; null when that is not told (yet)."""
        ...
