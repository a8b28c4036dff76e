"""RunPod: pods over its REST API, version 2. Written from its specification; never run against a live account.

A pod is a container with whole GPUs. Serverless is not used: a benchmark needs a whole machine from its first
sample to its last. A pod cannot end its own billing, as it has no key of the account: its watchdog ends what runs
there, and `assay reap` terminates the pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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

API = "https://api.runpod.io/v2"
CLOUD = "SECURE"
DISK_GB = 40
READY_S = 120.0
"""From the request until the pod answers, with or without a cached image: assumed, not measured."""

MOST_PAGES = 100
STAGES: dict[str, Stage] = {
    "PROVISIONING": "starting",
    "STARTING": "starting",
    "RUNNING": "up",
    "EXITED": "lost",
    "ERROR": "lost",
    "TERMINATED": "gone",
}


class RunPodProvider(HttpProvider):
    """One RunPod account."""

    name = "runpod"
    noun = "pod"
    keys_url = "https://console.runpod.io/user/settings"
    default_image = "runpod/pytorch:1.4.0-cu1300-torch2130-ubuntu2404"
    refuses: ClassVar[dict[str, str]] = {
        "serverless": "a benchmark needs a whole machine to itself from its first sample to its last, and a serverless "
        "worker shares it, comes and goes; pods are rented instead"
    }

    def __init__(self, clock: RentalClock | None = None, transport: httpx.BaseTransport | None = None) -> None:
        clock = clock or RentalClock()
        super().__init__(ProviderApi("RunPod", API, "RUNPOD_API_KEY", "ASSAY_RUNPOD_URL", clock, transport=transport))

    def offers(self) -> tuple[Offer, ...]:
        """Return the GPU types in stock in the secure cloud, with 1, 2, 4 and 8 GPUs per pod."""
        params = {"include": "AVAILABILITY", "product": "POD", "cloud": CLOUD}
        gpus = response_rows(self._get("its catalogue", "/catalog/gpus", params).part("gpus"))
        return tuple(offer for gpu in gpus for count in (1, 2, 4, 8) if (offer := _offer(gpu, count)))

    def launch(self, request: InstanceRequest) -> RentedMachine:
        """Request a pod, once."""
        body: dict[str, Any] = {
            "name": request.name,
            "image": request.image,
            "gpu": {"id": request.offer.name, "count": request.offer.gpu_count or 1},
            "cloud": CLOUD,
            "disk": DISK_GB,
            "ports": ["22/tcp"],
            "env": {**request.environment, "PUBLIC_KEY": request.public_key or ""},
            "startSsh": True,
        }
        answer = self._api.ask("POST", "/pods", content=body)
        if answer.ok:
            return _machine(answer.body)
        raise self._launch_refusal(answer)

    def _launch_refusal(self, answer: ApiResponse) -> MachineCannot | BadInput:
        """Return the error for a refused creation; nothing was created."""
        message = self._api.words(answer)
        if answer.status == 402:
            return MachineCannot(f"RunPod wants money first: {message} (402); add credit or a payment method.")
        if answer.status == 403:
            return NoCapacity(f"RunPod does not let this key have it: {message} (403).")
        if answer.status == 422:
            return BadInput(f"RunPod cannot read the request: {message} (422); is the --image right?")
        if answer.status == 400:
            return NoCapacity(f"RunPod has none free, or does not like the request: {message} (400).")
        return MachineCannot(self._api.refused("a pod", answer))

    def list_ours(self) -> tuple[RentedMachine, ...]:
        """Return every pod that has a name of ours and is not gone."""
        machines: list[RentedMachine] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            answer = self._get("its list of pods", "/pods", {"cursor": cursor} if cursor else None)
            if not isinstance(answer.part("pods"), list):
                raise NoAnswer("RunPod answered with a list that has no pods in it")
            pods = response_rows(answer.part("pods"))
            machines += [_machine(pod) for pod in pods if job_of_machine(str(pod.get("name")))]
            cursor = answer.part("pagination", "nextCursor") if answer.part("pagination", "hasNextPage") else None
            if not cursor:
                break
        return tuple(machine for machine in machines if machine.stage != "gone")

    def find(self, number: str) -> RentedMachine | None:
        """Return a pod's current state; null when RunPod does not know it."""
        answer = self._find(f"/pods/{number}", number)
        machine = None if answer is None else _machine(answer.body)
        return None if machine is None or machine.stage == "gone" else machine

    def terminate(self, number: str) -> None:
        """Request a pod's termination, once; a pod that is gone is not an error."""
        self._remove(f"pod {number}", "DELETE", f"/pods/{number}")

    def billed_usd(self, machine: RentedMachine) -> float | None:
        """Return a pod's billed cost, in USD; null while it is not billed yet."""
        answer = self._get("its bills", "/billing/pods", {"podId": machine.number})
        amounts = [
            record["amount"]
            for record in response_rows(answer.part("records"))
            if record.get("podId") == machine.number and isinstance(record.get("amount"), int | float)
        ]
        return float(sum(amounts)) if amounts else None


def _machine(pod: Any) -> RentedMachine:
    """Return a pod as a machine.

    Raises:
        NoAnswer: It has no id; the request may have taken effect nevertheless.
    """
    if not isinstance(pod, dict) or not isinstance(pod.get("id"), str) or not pod["id"]:
        raise NoAnswer("RunPod answered with a pod that has no id")
    direct = response_object(response_object(pod.get("ssh")).get("direct"))
    cost = pod.get("cost")
    status = str(pod.get("status") or "")
    return RentedMachine(
        name=str(pod.get("name") or ""),
        number=pod["id"],
        stage=STAGES.get(status, "starting"),
        status_text=status,
        address=str(direct["host"]) if direct.get("host") else None,
        port=int(direct.get("port") or 22),
        user=str(direct.get("username") or "root"),
        usd_per_hour=float(cost) if isinstance(cost, int | float) and cost > 0 else None,
    )


def _offer(gpu: dict[str, Any], count: int) -> Offer | None:
    """Return an offer of ``count`` GPUs of a type; null when it is not available now."""
    price, most = (response_object(gpu.get(name)).get(CLOUD.lower()) for name in ("price", "maxCount"))
    if not isinstance(price, int | float) or price <= 0 or gpu.get("availability") in {None, "NONE"}:
        return None
    if count > (most if isinstance(most, int) else 1):
        return None
    name = str(gpu.get("id"))
    return Offer(
        host=RunPodProvider.name,
        name=name,
        gpus=f"{count} × {name}",
        usd_per_hour=float(price) * count,
        gpu=parse_gpu_name(name),
        gpu_count=count,
        ready_s=READY_S,
    )


HOST = RentedHost(RunPodProvider())
