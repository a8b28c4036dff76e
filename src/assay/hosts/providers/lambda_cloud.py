"""Lambda: instances over its API, version 1. Written from its specification; never run against a live account.

An instance is a whole machine, with its own NVIDIA driver and PyTorch; custom images are not supported. One that shuts
itself down is billed until it is terminated: its watchdog ends what runs there, and `assay reap` terminates it.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.hosts.base import Offer
from assay.hosts.gpu_types import parse_gpu_name
from assay.hosts.rented import provider as identity
from assay.hosts.rented.context import SystemRentalClock
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.http import ProviderApi, response_object, response_rows
from assay.hosts.rented.provider import NoAnswer, NoCapacity, RentedMachine

if TYPE_CHECKING:
    import httpx

    from assay.hosts.remote.connection import SshConnection
    from assay.hosts.rented.context import RentalClock
    from assay.hosts.rented.http import ApiResponse
    from assay.hosts.rented.provider import InstanceRequest, Stage

API = "https://cloud.lambda.ai/api/v1"
KEYS_AT = "https://cloud.lambda.ai/api-keys"
REQUESTS_APART_S, LAUNCHES_APART_S = 1.0, 12.0
READY_S = 300.0
"""From the request until the instance answers: assumed, not measured."""

STAGES: dict[str, Stage] = {
    "booting": "starting",
    "active": "up",
    "unhealthy": "lost",
    "terminating": "ending",
    "terminated": "gone",
    "preempted": "lost",
}
TYPES = {
    "a10": "A10",
    "a6000": "A6000",
    "a100": "A100-40GB",
    "a100_sxm4": "A100-40GB",
    "a100_80gb_sxm4": "A100-80GB",
    "gh200": "GH200",
    "h100_pcie": "H100-PCIe",
    "h100_sxm5": "H100-SXM",
    "b200_sxm6": "B200",
}
"""Maps the part after ``gpu_1x_`` of an instance type's name to Assay's GPU type."""


class LambdaProvider:
    """One Lambda account."""

    name = "lambda"
    default_image = "Lambda Stack"
    keyed = True
    images = False

    def __init__(self, clock: RentalClock | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self._api = ProviderApi(
            "Lambda",
            API,
            "LAMBDA_API_KEY",
            "ASSAY_LAMBDA_URL",
            clock or SystemRentalClock(),
            apart_s=REQUESTS_APART_S,
            transport=transport,
        )

    def missing(self) -> str | None:
        """Return a clause that the key is not set; null when it is."""
        why = self._api.missing()
        return None if why is None else f"{why}; make a key at {KEYS_AT} and export it"

    def account(self) -> str:
        """Return an identifier of this account."""
        return self._api.identity

    def offers(self) -> tuple[Offer, ...]:
        """Return the instance types that are free, one offer for each region."""
        answer = self._query("its instance types", "GET", "/instance-types")
        return tuple(
            offer
            for entry in response_object(answer.part("data")).values()
            for offer in _offers(response_object(entry))
        )

    def prepare(self, request: InstanceRequest) -> None:
        """Register the rental's key, if it is not there already."""
        answer = self._query("its list of keys", "GET", "/ssh-keys")
        if any(key.get("name") == request.name for key in response_rows(answer.part("data"))):
            return
        created = self._api.ask(
            "POST", "/ssh-keys", content={"name": request.name, "public_key": request.public_key or ""}
        )
        if not created.ok:
            raise self._refusal(created)

    def turn(self) -> None:
        """Wait until the rate limit allows a launch."""
        self._api.turn("launch", LAUNCHES_APART_S)

    def launch(self, request: InstanceRequest) -> RentedMachine:
        """Request an instance, once."""
        if request.image != self.default_image:
            raise BadInput("--image means nothing to Lambda: its machines come with Lambda Stack.")
        body = {
            "region_name": request.offer.region,
            "instance_type_name": request.offer.name,
            "ssh_key_names": [request.name],
            "name": request.name,
            "tags": [{"key": "assay", "value": request.name}],
            "user_data": _user_data((request.deadline_at - self._api.clock.now()).total_seconds()),
        }
        answer = self._api.ask(
            "POST", "/instance-operations/launch", content=body, kind="launch", apart_s=LAUNCHES_APART_S
        )
        if not answer.ok:
            raise self._refusal(answer)
        numbers = answer.part("data", "instance_ids")
        if not isinstance(numbers, list) or not numbers or not isinstance(numbers[0], str):
            raise NoAnswer("Lambda answered with an instance that has no id")
        return RentedMachine(
            name=request.name,
            number=numbers[0],
            stage="starting",
            status_text="booting",
            user="ubuntu",
            usd_per_hour=request.offer.usd_per_hour,
        )

    def ours(self) -> tuple[RentedMachine, ...]:
        """Return every instance that has a name of ours and is not gone."""
        answer = self._query("its list of instances", "GET", "/instances")
        if not isinstance(answer.part("data"), list):
            raise NoAnswer("Lambda answered with a list that has no instances in it")
        listed = [
            _machine(entry)
            for entry in response_rows(answer.part("data"))
            if identity.job_of_machine(str(entry.get("name")))
        ]
        return tuple(machine for machine in listed if machine.stage != "gone")

    def look(self, number: str) -> RentedMachine | None:
        """Return an instance's current state; null when Lambda does not know it."""
        answer = self._api.ask("GET", f"/instances/{number}")
        if answer.status == 404:
            return None
        if not answer.ok:
            raise MachineCannot(self._api.refused(f"a look at instance {number}", answer))
        machine = _machine(answer.part("data"))
        return None if machine.stage == "gone" else machine

    def end(self, number: str) -> None:
        """Request an instance's termination, once; the answer need not name it, as `look` shows the result."""
        answer = self._api.ask("POST", "/instance-operations/terminate", content={"instance_ids": [number]})
        if not answer.ok and answer.status != 404:
            raise MachineCannot(self._api.refused(f"to end instance {number}", answer))

    def line(self, machine: RentedMachine) -> SshConnection | None:
        """Return a connection to an instance; null while it has no address."""
        return identity.connect(machine, f"Lambda instance {machine.number}")

    def billed_usd(self, machine: RentedMachine) -> float | None:
        """Return null: this API has no billing data."""
        return None

    def tidy(self, job_id: str) -> None:
        """Remove a job's keys from the account."""
        answer = self._query("its list of keys", "GET", "/ssh-keys")
        for key in response_rows(answer.part("data")):
            if identity.job_of_machine(str(key.get("name"))) == job_id:
                removed = self._api.ask("DELETE", f"/ssh-keys/{key.get('id')}")
                if not removed.ok and removed.status != 404:
                    raise MachineCannot(self._api.refused("to remove a key", removed))

    def _query(self, what: str, method: str, path: str) -> ApiResponse:
        answer = self._api.ask(method, path)
        if not answer.ok:
            raise self._refusal(answer, what)
        return answer

    def _refusal(self, answer: ApiResponse, what: str = "an instance") -> MachineCannot:
        """Return the error for a refusal; nothing was created."""
        code = str(answer.part("error", "code") or "")
        message = self._api.words(answer)
        if code == "global/invalid-api-key":
            return MachineCannot(f"Lambda does not accept LAMBDA_API_KEY: {message}; make another at {KEYS_AT}.")
        if code == "global/quota-exceeded":
            return MachineCannot(f"Lambda's quota for this account is used up: {message}.")
        if code == "instance-operations/launch/insufficient-capacity":
            return NoCapacity(f"Lambda has none free there: {message}.")
        if code.startswith("provider/"):
            return NoAnswer(f"Lambda's own provider is in trouble: {message} ({code})")
        return MachineCannot(self._api.refused(what, answer))


def _offers(entry: dict[str, Any]) -> list[Offer]:
    kind = response_object(entry.get("instance_type"))
    parts = re.fullmatch(r"gpu_(\d+)x_(\w+)", str(kind.get("name")))
    cents = kind.get("price_cents_per_hour")
    if parts is None or not isinstance(cents, int | float):
        return []
    count, short = int(parts[1]), parts[2]
    regions = [
        str(region_entry.get("name")) for region_entry in response_rows(entry.get("regions_with_capacity_available"))
    ]
    return [
        Offer(
            host=LambdaProvider.name,
            name=str(kind["name"]),
            gpus=str(kind.get("gpu_description") or kind["name"]),
            usd_per_hour=cents / 100,
            gpu=TYPES.get(short) or parse_gpu_name(short.replace("_", " ")),
            gpu_count=count,
            region=region,
            ready_s=READY_S,
            ends_itself=False,
        )
        for region in regions
    ]


def _machine(entry: object) -> RentedMachine:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not entry["id"]:
        raise NoAnswer("Lambda answered with an instance that has no id")
    status = str(entry.get("status") or "")
    cents = response_object(entry.get("instance_type")).get("price_cents_per_hour")
    return RentedMachine(
        name=str(entry.get("name") or ""),
        number=entry["id"],
        stage=STAGES.get(status, "starting"),
        status_text=status,
        address=str(entry["ip"]) if entry.get("ip") else None,
        user="ubuntu",
        usd_per_hour=cents / 100 if isinstance(cents, int | float) else None,
    )


def _user_data(seconds: float) -> str:
    """Return the first-boot commands: shut down at the deadline, even if nobody ever logs in.

    They use the remaining time, not the time of day, as the instance's clock may differ from ours.
    """
    minutes = max(1, math.ceil(seconds / 60))
    return f"#cloud-config\nruncmd:\n  - [shutdown, -P, '+{minutes}']\n"


HOST = RentedHost(LambdaProvider())
