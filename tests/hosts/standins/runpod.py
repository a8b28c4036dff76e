"""RunPod's API over a cloud that is none."""

from __future__ import annotations

from dataclasses import dataclass
from getpass import getuser
from typing import TYPE_CHECKING, Any

from tests.hosts.standins.answering import Reply
from tests.hosts.standins.cloud import Cloud, Kind, VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.rented.context import RentalClock
    from tests.hosts.standins.cloud import Box

SAID = {"starting": "STARTING", "up": "RUNNING", "lost": "EXITED", "ending": "EXITED", "gone": "TERMINATED"}
ANYWHERE = "SECURE"


def cloud(clock: VirtualClock | RentalClock) -> Cloud:
    """Return an account at which four kinds of GPU are to be had."""
    prices = {"NVIDIA L4": 0.49, "NVIDIA A40": 0.44, "NVIDIA L40S": 0.99, "NVIDIA H100 80GB HBM3": 2.89}
    return Cloud(clock, {name: Kind(price, {ANYWHERE: 9}) for name, price in prices.items()})


@dataclass
class RunPodService:
    """Its answers."""

    cloud: Cloud
    description: str = "runpod.yaml"
    base: str = "/v2"
    name: str = "runpod"
    page: int = 2
    """Pods on one page of a list."""

    port: int = 22
    """Of the ssh server that stands for every pod."""

    on_create: Callable[[dict[str, Any]], None] = lambda content: None

    def error(self, status: int, words: str) -> Reply:
        return Reply(status, {"title": "no", "status": status, "detail": words}, "application/problem+json")

    def answer(self, method: str, path: str, query: dict[str, str], content: Any) -> Reply:
        reply = self.error(404, "no such path")
        match (method, path.strip("/").split("/")):
            case ("GET", ["catalog", "gpus"]):
                reply = Reply(200, {"gpus": [self._gpu(name) for name in self.cloud.kinds]})
            case ("POST", ["pods"]):
                self.on_create(content)
                box = self.cloud.make(content["name"], content["gpu"]["id"], content["cloud"])
                none = "There are no longer any instances available with the requested specifications."
                reply = Reply(201, self._pod(box)) if box else self.error(400, none)
            case ("GET", ["pods"]):
                reply = self._listed(int(query.get("cursor", "0")))
            case ("GET", ["pods", number]):
                box = self.cloud.boxes.get(number)
                reply = Reply(200, self._pod(box)) if box and self._known(box) else self.error(404, "no such pod")
            case ("DELETE", ["pods", number]):
                box = self.cloud.boxes.get(number)
                if box is None or not self._known(box):
                    reply = self.error(404, "no such pod")
                self.cloud.end(number)
                reply = Reply(204)
            case ("GET", ["billing", "pods"]):
                box = self.cloud.boxes.get(query["podId"])
                gone = box is not None and self.cloud.stage(box) == "gone"
                reply = Reply(
                    200, {"records": [{"podId": query["podId"], "amount": self._bill(box)}] if gone and box else []}
                )
        return reply

    def _known(self, box: Box) -> bool:
        return self.cloud.shown(box) and self.cloud.stage(box) != "gone"

    def _listed(self, first: int) -> Reply:
        found = [box for box in self.cloud.boxes.values() if self._known(box)]
        last = first + self.page
        more = last < len(found)
        pages = {"hasNextPage": more, "nextCursor": str(last) if more else None}
        return Reply(200, {"pods": [self._pod(box) for box in found[first:last]], "pagination": pages})

    def _gpu(self, name: str) -> dict[str, Any]:
        kind = self.cloud.kinds[name]
        free = kind.free.get(ANYWHERE, 0)
        return {
            "id": name,
            "memory": 24,
            "price": {"secure": kind.usd_per_hour, "community": None},
            "maxCount": {"secure": 8},
            "availability": "NONE" if free <= 0 else "LOW",
        }

    def _pod(self, box: Box) -> dict[str, Any]:
        stage = self.cloud.stage(box)
        direct = {"host": "127.0.0.1", "port": self.port, "username": getuser()} if stage == "up" else None
        return {
            "id": box.number,
            "name": box.name,
            "status": SAID[stage],
            "cost": box.usd_per_hour,
            "gpu": {"id": box.kind, "count": 1},
            "ssh": {"proxy": None, "direct": direct},
        }

    def _bill(self, box: Box) -> float:
        end = box.end_asked_at or self.cloud.clock.now()
        return round(box.usd_per_hour * (end - box.made_at).total_seconds() / 3600, 4)
