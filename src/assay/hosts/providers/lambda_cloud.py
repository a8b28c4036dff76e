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
from assay.hosts.rented.context import RentalClock
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.http import HttpProvider, ProviderApi, response_object, response_rows
from assay.hosts.rented.provider import NoAnswer, NoCapacity, RentedMachine, job_of_machine

if TYPE_CHECKING:
    import httpx

    from assay.hosts.rented.http import ApiResponse
    from assay.hosts.rented.provider import InstanceRequest, Stage

API = "https://cloud.lambda.ai/api/v1"
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


class LambdaProvider(HttpProvider):
    """One Lambda account."""

    name = "lambda"
    noun = "instance"
    keys_url = "https://cloud.lambda.ai/api-keys"
    default_image = "Lambda Stack"
    images = False

    def __init__(self, clock: RentalClock | None = None, transport: httpx.BaseTransport | None = None) -> None:
        variables = ("LAMBDA_API_KEY", "ASSAY_LAMBDA_URL")
        clock = clock or RentalClock()
        super().__init__(ProviderApi("Lambda", API, *variables, clock, apart_s=REQUESTS_APART_S, transport=transport))

    def offers(self) -> tuple[Offer, ...]:
        """Return the instance types that are free, one offer for each region."""
        entries = response_object(self._get("its instance types", "/instance-types").part("data")).values()
        return tuple(offer for entry in entries for offer in _offers(response_object(entry)))

    def _keys(self) -> list[dict[str, Any]]:
        return response_rows(self._get("its list of keys", "/ssh-keys").part("data"))

    def prepare(self, request: InstanceRequest) -> None:
        """Register the rental's key, if it is not there already."""
        if any(key.get("name") == request.name for key in self._keys()):
            return
        key = {"name": request.name, "public_key": request.public_key or ""}
        created = self._api.ask("POST", "/ssh-keys", content=key)
        if not created.ok:
            raise self._refusal(created)

    def clean_up(self, job_id: str) -> None:
        """Remove a job's keys from the account."""
        for key in self._keys():
            if job_of_machine(str(key.get("name"))) == job_id:
                self._remove("a key", "DELETE", f"/ssh-keys/{key.get('id')}")

    def wait_for_launch(self) -> None:
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
        path = "/instance-operations/launch"
        answer = self._api.ask("POST", path, content=body, kind="launch", apart_s=LAUNCHES_APART_S)
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

    def list_ours(self) -> tuple[RentedMachine, ...]:
        """Return every instance that has a name of ours and is not gone."""
        entries = self._get("its list of instances", "/instances").part("data")
        if not isinstance(entries, list):
            raise NoAnswer("Lambda answered with a list that has no instances in it")
        listed = [_machine(entry) for entry in response_rows(entries) if job_of_machine(str(entry.get("name")))]
        return tuple(machine for machine in listed if machine.stage != "gone")

    def find(self, number: str) -> RentedMachine | None:
        """Return an instance's current state; null when Lambda does not know it."""
        answer = self._find(f"/instances/{number}", number)
        machine = None if answer is None else _machine(answer.part("data"))
        return None if machine is None or machine.stage == "gone" else machine

    def terminate(self, number: str) -> None:
        """Request an instance's termination, once; the answer need not name it, as `find` shows the result."""
        content = {"instance_ids": [number]}
        self._remove(f"instance {number}", "POST", "/instance-operations/terminate", content)

    def _refusal(self, answer: ApiResponse, what: str = "an instance") -> MachineCannot:
        """Return the error for a refusal; nothing was created."""
        code = str(answer.part("error", "code") or "")
        message = self._api.words(answer)
        if code == "global/invalid-api-key":
            return MachineCannot(
                f"Lambda does not accept LAMBDA_API_KEY: {message}; create another at {self.keys_url}."
            )
        if code == "global/quota-exceeded":
            return MachineCannot(f"Lambda's quota for this account is used up: {message}.")
        if code == "instance-operations/launch/insufficient-capacity":
            return NoCapacity(f"Lambda has none free there: {message}.")
        if code.startswith("provider/"):
            return NoAnswer(f"Lambda's own provider is in trouble: {message} ({code})")
        return super()._refusal(answer, what)


def _offers(entry: dict[str, Any]) -> list[Offer]:
    kind = response_object(entry.get("instance_type"))
    parts = re.fullmatch(r"gpu_(\d+)x_(\w+)", str(kind.get("name")))
    cents = kind.get("price_cents_per_hour")
    if parts is None or not isinstance(cents, int | float):
        return []
    return [
        Offer(
            host=LambdaProvider.name,
            name=str(kind["name"]),
            gpus=str(kind.get("gpu_description") or kind["name"]),
            usd_per_hour=cents / 100,
            gpu=TYPES.get(parts[2]) or parse_gpu_name(parts[2].replace("_", " ")),
            gpu_count=int(parts[1]),
            region=str(region.get("name")),
            ready_s=READY_S,
        )
        for region in response_rows(entry.get("regions_with_capacity_available"))
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
