"""One account at Modal: sandboxes with a GPU, found again by name and tags, ended by Modal at their time limit."""

from __future__ import annotations

import asyncio
import contextlib
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from assay.core.errors import MachineCannot
from assay.hosts import prices
from assay.hosts.modal import credentials
from assay.hosts.modal.errors import meaning
from assay.hosts.modal.line import SandboxLine, ended_words
from assay.hosts.modal.talk import ask
from assay.hosts.rented.provider import Machine, NoCapacity, Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import modal

    from assay.hosts.base import Offer
    from assay.hosts.rented.provider import Wish

APP = "assay"
EXACT = {"H100-SXM": "H100!"}
"""How Modal is asked for a GPU where its plain name may become a better one; others are called as Assay calls them."""

COUNTS = (1, 2, 4, 8)
LONGEST_S = 24 * 3600
"""Modal keeps no sandbox longer."""

CORES, MEMORY_MIB = 4.0, 16 * 1024
"""What a measuring program needs beside the GPU; Modal's own default is an eighth of a core."""

ANSWER_WITHIN_S = 60.0
LAUNCH_WITHIN_S = 900.0
"""The image is built the first time, and a sandbox is handed out when it has a machine."""

MADE_BY = {"made-by": "assay"}
_TIME = "%Y%m%dT%H%M%SZ"

T = TypeVar("T")


class ModalProvider:
    """The account whose token is in the environment, or in the SDK's own file."""

    name = "modal"
    default_image = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"

    def __init__(
        self,
        *,
        answer_within_s: float = ANSWER_WITHIN_S,
        launch_within_s: float = LAUNCH_WITHIN_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._answer_within_s = answer_within_s
        self._launch_within_s = launch_within_s
        self._now = now

    def missing(self) -> str | None:
        """Return whether the SDK or the token is missing, and how to get it; null when both are here."""
        return credentials.missing()

    def account(self) -> str:
        """Return what tells the account from another; no credential."""
        return credentials.account()

    def offers(self) -> tuple[Offer, ...]:
        """Return Modal's GPUs at their listed price: Modal tells neither prices nor what is free."""
        return tuple(_of(offer, count) for offer in prices.listed(self.name) for count in COUNTS)

    def launch(self, wish: Wish) -> Machine:
        """Ask for a sandbox, once; Modal itself ends it at the deadline."""
        now = self._now()
        left_s = min(math.ceil((wish.deadline_at - now).total_seconds()), LONGEST_S)
        if left_s <= 0:
            raise MachineCannot("No sandbox is asked for at Modal: the deadline has passed.")
        tags = {**MADE_BY, "name": wish.name, "since": now.astimezone(UTC).strftime(_TIME)}
        if wish.offer.usd_per_hour is not None:
            tags["usd-per-hour"] = f"{wish.offer.usd_per_hour:g}"

        async def create() -> str:
            import modal

            app = await modal.App.lookup.aio(APP, create_if_missing=True)
            creation = asyncio.ensure_future(
                modal.Sandbox.create.aio(
                    "sleep",
                    str(2 * LONGEST_S),
                    app=app,
                    name=wish.name,
                    tags=tags,
                    image=modal.Image.from_registry(wish.image),
                    env=dict(wish.environment) or None,
                    gpu=_gpu(wish.offer),
                    cpu=CORES,
                    memory=MEMORY_MIB,
                    timeout=left_s,
                )
            )
            await asyncio.wait({creation}, timeout=self._launch_within_s)
            if not creation.done() and await _listed(app, tags):
                creation.cancel()  # the SDK takes back what it has not handed out
                await asyncio.wait({creation})
                if creation.cancelled():
                    raise NoCapacity(f"Modal had no such machine free within {self._launch_within_s:g} s.")
            async with asyncio.timeout(0):
                sandbox = await creation
            await sandbox.detach.aio()
            return str(sandbox.object_id)

        within_s = self._launch_within_s + 2 * self._answer_within_s
        try:
            number = self._asked(create, "when a sandbox was asked for", within_s=within_s)
        except Unanswered:
            raise
        except MachineCannot as error:
            self._nothing_made(wish.name, error)
            raise
        return _machine(number, tags)

    def ours(self) -> tuple[Machine, ...]:
        """Return the sandboxes of Assay's that have not ended."""
        return self._asked(self._list, "when its sandboxes were asked for")

    def look(self, number: str) -> Machine | None:
        """Return a sandbox as it is now; null when Modal knows of none. One that has ended says how."""

        async def see() -> Machine | None:
            import modal
            from modal import exception

            try:
                sandbox = await modal.Sandbox.from_id.aio(number)
                return await _seen(sandbox)
            except exception.NotFoundError:
                return None

        return self._asked(see, f"when the sandbox {number} was looked at")

    def end(self, number: str) -> None:
        """Ask for a sandbox's end; nothing happens when it has ended."""

        async def terminate() -> None:
            import modal
            from modal import exception

            with contextlib.suppress(exception.NotFoundError, exception.ConflictError):
                sandbox = await modal.Sandbox.from_id.aio(number)
                await sandbox.terminate.aio()
                await sandbox.detach.aio()

        self._asked(terminate, f"when the sandbox {number} was to be ended")

    def line(self, machine: Machine) -> SandboxLine | None:
        """Return a line into a sandbox; null when it has ended, or is ending."""
        return SandboxLine(machine.number) if machine.stage == "up" else None

    def billed_usd(self, machine: Machine) -> float | None:
        """Return null: Modal accounts for apps and days, not for single sandboxes."""
        return None

    async def _list(self) -> tuple[Machine, ...]:
        import modal
        from modal import exception

        try:
            app = await modal.App.lookup.aio(APP)
        except exception.NotFoundError:
            return ()
        return await _listed(app, MADE_BY)

    def _nothing_made(self, name: str, error: MachineCannot) -> None:
        """See that a refusal has left nothing: the SDK asks several times, and an earlier request may have been heard.

        Raises:
            Unanswered: There is a sandbox, or it is not told.
        """
        try:
            made = any(machine.name == name for machine in self.ours())
        except Unanswered:
            raise
        except MachineCannot:
            return
        if made:
            raise Unanswered(f"{str(error).rstrip('.')}; yet there is a sandbox of that name") from error

    def _asked(
        self, make: Callable[[], Coroutine[object, object, T]], doing: str, *, within_s: float | None = None
    ) -> T:
        _quieten()
        try:
            return ask(make, within_s=within_s or self._answer_within_s)
        except Exception as error:
            raise meaning(error, doing) from error


def _of(offer: Offer, count: int) -> Offer:
    price = None if offer.usd_per_hour is None else offer.usd_per_hour * count
    name = EXACT.get(offer.gpu or "", offer.name)
    return offer.model_copy(
        update={
            "name": name if count == 1 else f"{name}:{count}",
            "gpus": f"{count} × {offer.gpu}",
            "gpu_count": count,
            "usd_per_hour": price,
            "longest_s": float(LONGEST_S),
        }
    )


def _gpu(offer: Offer) -> str | None:
    """Return a GPU as Modal is asked for it: the exact one, and how many."""
    if offer.gpu is None:
        return None
    count = offer.gpu_count or 1
    name = EXACT.get(offer.gpu, offer.gpu)
    return name if count == 1 else f"{name}:{count}"


async def _listed(app: modal.App, tags: dict[str, str]) -> tuple[Machine, ...]:
    import modal

    machines = [await _seen(sandbox) async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, tags=tags)]
    return tuple(machine for machine in machines if machine.stage != "gone")


async def _seen(sandbox: modal.Sandbox) -> Machine:
    tags = await sandbox.get_tags.aio()
    code = sandbox.returncode
    machine = _machine(str(sandbox.object_id), tags)
    await sandbox.detach.aio()
    return machine if code is None else machine.model_copy(update={"stage": "gone", "said": ended_words(code)})


def _machine(number: str, tags: dict[str, str]) -> Machine:
    since, price = tags.get("since"), tags.get("usd-per-hour")
    return Machine(
        name=tags.get("name", ""),
        number=number,
        stage="up",
        said="running",
        usd_per_hour=float(price) if price else None,
        since=datetime.strptime(since, _TIME).replace(tzinfo=UTC) if since else None,
    )


def _quieten() -> None:
    """Keep the SDK from logging beside what is said here in words."""
    import logging

    import modal  # noqa: F401 - sets its own level when it is loaded

    logging.getLogger("modal-client").setLevel(logging.CRITICAL)
