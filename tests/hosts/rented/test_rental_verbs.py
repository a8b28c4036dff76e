"""``assay rentals`` and ``assay reap`` as they are typed, with a stand-in of RunPod on loopback."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from assay.hosts.rented.context import RentalClock
from assay.hosts.rented.journal import JournalEntry, RentalJournal
from assay.hosts.rented.provider import machine_name
from tests.hosts.standins.answering import Served
from tests.hosts.standins.runpod import RunPodService, cloud
from tests.hosts.standins.victims import HERE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.running import Assay

ORDER = "0123456789abcdef"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    account = cloud(RentalClock())
    server = Served(RunPodService(account))
    monkeypatch.setenv("ASSAY_RUNPOD_URL", server.url)
    monkeypatch.setenv("RUNPOD_API_KEY", account.key)
    yield server
    server.close()
    assert server.wrong == []


def make(served: Served, order: str, hours_left: float) -> str:
    name = machine_name(order, 1, datetime.now(UTC) + timedelta(hours=hours_left))
    box = served.service.cloud.make(name, "NVIDIA L4", "SECURE")
    assert box is not None
    return box.number


def note(event: str, minutes_ago: float, order: str = ORDER, **told: object) -> None:
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    RentalJournal().write(
        JournalEntry.model_validate({"at": at, "event": event, "job_id": order, "provider": "runpod", **told})
    )


def rent(served: Served, minutes_ago: float = 30) -> str:
    number = make(served, ORDER, 1)
    note("intent", 0, usd_per_hour=0.49, at_most_usd=0.98, gpu="L4")
    note("requested", 0, usd_per_hour=0.49)
    note("created", minutes_ago, number=number, usd_per_hour=0.49)
    return number


def test_what_runs_is_shown_with_what_it_costs_so_far(assay: Assay, served: Served) -> None:
    number = rent(served)
    theirs = make(served, "fedcba9876543210", 2)
    told = json.loads(assay("rentals", "--json", ASSAY_MONTHLY_BUDGET_USD="20").out)
    mine, other = told["rentals"]
    assert (mine["machine"], mine["gpu"], mine["usd_per_hour"]) == (number, "L4", 0.49)
    assert mine["quoted_usd"] == pytest.approx(0.245, abs=0.01)
    assert (other["machine"], other["since"], other["quoted_usd"]) == (theirs, None, None), "not asked for from here"
    assert told["month"] == {"spent_usd": 0.98, "budget_usd": 20.0}
    shown = assay("rentals").out
    assert "2 machines are rented now; this month $0.98 is spent or reserved." in shown.replace("\n", " ")


def test_what_is_over_is_shown_quoted_against_billed(assay: Assay, served: Served) -> None:
    number = rent(served)
    note("ended", 0, number=number)
    note("released", 0)
    served.service.cloud.end(number)
    box = served.service.cloud.boxes[number]
    box.end_asked_at = box.made_at + timedelta(hours=-1)
    box.made_at = box.end_asked_at - timedelta(minutes=30)
    (row,) = json.loads(assay("rentals", "--json").out)["rentals"]
    assert (row["state"], row["billed_usd"]) == ("over", 0.245), "the bill came after the machine was gone"
    assert row["quoted_usd"] == pytest.approx(0.245, abs=0.01)


def test_serverless_is_refused_with_the_reason(assay: Assay, served: Served) -> None:
    ran = assay("run", "softmax", "--on", "runpod:serverless", "--gpu-type", "L4")
    assert ran.code == 2
    assert "--on runpod:serverless is refused: a benchmark needs a whole machine to itself" in ran.err
    assert served.service.cloud.requests == []


def test_without_rentals_there_is_nothing_to_show(assay: Assay) -> None:
    assert assay("rentals").out == "Nothing is rented, and nothing was in this month.\n"
    assert assay("reap").out == "Nothing was left behind.\n"


def test_reap_ends_what_is_over_its_deadline_whoever_asked_for_it(assay: Assay, served: Served) -> None:
    served.service.cloud.usual = served.service.cloud.usual.__class__(gone_s=0.0, up_s=0.0)
    over, young = make(served, "fedcba9876543210", -1), make(served, ORDER, 1)
    path = os.pathsep.join([str(HERE / "plugged"), os.environ.get("PYTHONPATH", "")])
    ran = assay("reap", PYTHONPATH=path)
    assert f"released: quick machine {over} (its deadline has passed)" in ran.out
    assert f"left: quick machine {young} (its deadline is" in ran.out
    assert ran.code == 0
    assert [box.number for box in served.service.cloud.running()] == [young]


def test_reap_says_which_credential_it_needs(assay: Assay, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rent(served)
    monkeypatch.delenv("RUNPOD_API_KEY")
    ran = assay("reap")
    assert ran.code == 3
    assert "not known: the machines of runpod (runpod cannot be queried from here: RUNPOD_API_KEY is not set" in ran.out
    monkeypatch.setenv("RUNPOD_API_KEY", "wrong")
    shown = assay("rentals").out
    assert "does not accept RUNPOD_API_KEY" in shown
    assert "What is rented now from runpod is not known" in " ".join(shown.split())


def test_a_refused_key_tells_nothing_of_what_is_rented(
    assay: Assay, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "wrong")
    ran = assay("reap")
    assert ran.code == 3
    assert ran.out.startswith("not known: the machines of runpod (RunPod does not accept RUNPOD_API_KEY")
    assert assay("rentals").out.startswith("Whether anything is rented is not known: RunPod does not accept")
