"""Lambda's API over a cloud that is none, with its limits: one request a second, one launch in twelve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.hosts.standins.answering import Reply
from tests.hosts.standins.cloud import Cloud, Kind, VirtualClock

if TYPE_CHECKING:
    from datetime import datetime

    from assay.hosts.rented.context import RentalClock
    from tests.hosts.standins.cloud import Box

SAID = {"starting": "booting", "up": "active", "lost": "preempted", "ending": "terminating", "gone": "terminated"}
NO_CAPACITY = "instance-operations/launch/insufficient-capacity"
CODES = {
    400: NO_CAPACITY,
    401: "global/invalid-api-key",
    402: "global/quota-exceeded",
    404: "global/object-does-not-exist",
}


def cloud(clock: VirtualClock | RentalClock) -> Cloud:
    """Return an account at which three kinds of machine are to be had, in two regions."""
    prices = {"gpu_1x_a10": 1.29, "gpu_1x_a100_sxm4": 1.99, "gpu_1x_h100_pcie": 3.29}
    return Cloud(clock, {name: Kind(price, {"us-east-1": 9, "us-west-2": 9}) for name, price in prices.items()})


@dataclass
class LambdaService:
    """Its answers."""

    cloud: Cloud
    description: str = "lambda.yaml"
    base: str = "/api/v1"
    name: str = "lambda"
    requests_apart_s: float = 1.0
    launches_apart_s: float = 12.0
    _last: dict[str, datetime] = field(default_factory=dict)

    def error(self, status: int, words: str, code: str | None = None) -> Reply:
        return Reply(status, {"error": {"code": code or CODES.get(status, "global/unknown"), "message": words}})

    def answer(self, method: str, path: str, query: dict[str, str], content: Any) -> Reply:
        if self._too_soon("request", self.requests_apart_s):
            return self._slow_down()
        reply = self.error(404, "no such path")
        match (method, path.strip("/").split("/")):
            case ("GET", ["instance-types"]):
                reply = Reply(200, {"data": {name: self._offered(name) for name in self.cloud.kinds}})
            case ("POST", ["instance-operations", "launch"]):
                reply = self._launch(content)
            case ("POST", ["instance-operations", "terminate"]):
                ended = [number for number in content["instance_ids"] if self.cloud.end(number)]
                found = [self._instance(self.cloud.boxes[number]) for number in ended]
                reply = Reply(200, {"data": {"terminated_instances": found}})
            case ("GET", ["instances"]):
                shown = [box for box in self.cloud.boxes.values() if self._known(box)]
                reply = Reply(200, {"data": [self._instance(box) for box in shown]})
            case ("GET", ["instances", number]):
                box = self.cloud.boxes.get(number)
                known = box is not None and self.cloud.shown(box)
                return (
                    Reply(200, {"data": self._instance(box)}) if box and known else self.error(404, "no such instance")
                )
            case ("GET", ["ssh-keys"]):
                reply = Reply(200, {"data": list(self.cloud.ssh_keys.values())})
            case ("POST", ["ssh-keys"]):
                key = {"id": f"k{len(self.cloud.requests)}", **content}
                self.cloud.ssh_keys[key["id"]] = key
                reply = Reply(200, {"data": key})
            case ("DELETE", ["ssh-keys", number]):
                there = self.cloud.ssh_keys.pop(number, None)
                reply = Reply(200, {}) if there else self.error(404, "no such key")
        return reply

    def _launch(self, content: Any) -> Reply:
        if self._too_soon("launch", self.launches_apart_s):
            return self._slow_down()
        if not any(key["name"] == content["ssh_key_names"][0] for key in self.cloud.ssh_keys.values()):
            return self.error(400, "no such key", "global/invalid-parameters")
        box = self.cloud.make(content["name"], content["instance_type_name"], content["region_name"])
        if box is None:
            return self.error(400, "Not enough capacity to fulfill launch request.", NO_CAPACITY)
        return Reply(200, {"data": {"instance_ids": [box.number]}})

    def _slow_down(self) -> Reply:
        said = {"error": {"code": "global/rate-limited", "message": "slow down"}}
        return Reply(429, said, headers=(("Retry-After", "1"),))

    def _too_soon(self, what: str, apart_s: float) -> bool:
        now = self.cloud.clock.now()
        last = self._last.get(what)
        if last is not None and (now - last).total_seconds() < apart_s - 1e-6:
            return True
        self._last[what] = now
        return False

    def _known(self, box: Box) -> bool:
        return self.cloud.shown(box) and self.cloud.stage(box) != "gone"

    def _type(self, name: str, usd_per_hour: float) -> dict[str, Any]:
        return {"name": name, "gpu_description": name, "price_cents_per_hour": round(usd_per_hour * 100)}

    def _offered(self, name: str) -> dict[str, Any]:
        kind = self.cloud.kinds[name]
        return {
            "instance_type": self._type(name, kind.usd_per_hour),
            "regions_with_capacity_available": [{"name": region} for region, free in kind.free.items() if free > 0],
        }

    def _instance(self, box: Box) -> dict[str, Any]:
        stage = self.cloud.stage(box)
        found: dict[str, Any] = {
            "id": box.number,
            "name": box.name,
            "status": SAID[stage],
            "instance_type": self._type(box.kind, box.usd_per_hour),
        }
        return {**found, "ip": "127.0.0.1"} if stage == "up" else found
