"""An order on a rented machine: what it may cost, what may go wrong, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot, StopRequested
from assay.core.guardian import Guardian, GuardianLost, GuardianNotStarted
from assay.hosts import registry
from assay.hosts.base import Offer, Rental
from assay.hosts.rented import cleanup
from assay.hosts.rented.cleanup import hosts_to_reap, reap_machines
from assay.hosts.rented.journal import RentalJournal
from assay.hosts.rented.provider import NoCapacity, deadline_of_machine, machine_name
from assay.hosts.run_job import run_job
from tests.guardians import guardian_of
from tests.hosts.standins.cloud import Fate, VirtualClock
from tests.hosts.standins.wired import KEYS, PATHS, PretendWork, Quiet, host_of, order_for, service_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from assay.hosts.rented.host import RentedHost
    from tests.hosts.standins.cloud import Cloud, Fault

HOST: RentedHost


@pytest.fixture(scope="module", autouse=True)
def one_guardian() -> Iterator[None]:
    """Share one guardian: nothing here is killed."""
    with Guardian():
        yield


class Stage:
    """A host, its stand-in and their clock."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch, **told: Any) -> None:
        self.name, self.clock = name, VirtualClock()
        self.service = service_of(name, self.clock)
        self.cloud: Cloud = self.service.cloud
        monkeypatch.setenv(KEYS[name], self.cloud.key)
        self.work = PretendWork(self.cloud, self.clock, **told)
        self.host = host_of(name, self.service, self.clock, work=self.work)
        self.watcher = Quiet()
        monkeypatch.setitem(registry.BUILT_IN, name, f"{__name__}:HOST")
        globals()["HOST"] = self.host

    def errand(self, **told: Any) -> tuple[Any, Any]:
        return run_job(self.host, order_for(self.name, **told), self.watcher)


@pytest.fixture(params=["runpod", "lambda"])
def stage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(request.param, monkeypatch)


@pytest.fixture
def runpod(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage("runpod", monkeypatch)


def nothing_is_left(stage: Stage, home: Path) -> bool:
    left = [*stage.cloud.running(), *stage.cloud.ssh_keys]
    return not left and not list((home / "leases").glob("*")) and not list((home / "rentals").glob("*"))


def test_the_lease_and_the_intent_are_on_disk_before_anything_is_asked_for(stage: Stage, assay_home: Path) -> None:
    seen: list[tuple[bool, list[str]]] = []

    def faults(method: str, path: str) -> None:
        if method == "POST":
            seen.append((leases.lease_exists("0123456789abcdef"), [entry.event for entry in RentalJournal().entries()]))

    stage.cloud.faults = faults
    ended, folders = stage.errand()
    assert (ended.exit_code, len(folders)) == (0, 1)
    assert seen[0][0], "the lease"
    assert seen[0][1][0] == "intent"
    events = [entry.event for entry in RentalJournal().entries() if entry.event != "billed"]
    assert events == ["intent", "requested", "created", "up", "ended", "released"]
    assert nothing_is_left(stage, assay_home)
    (box,) = stage.cloud.boxes.values()
    assert deadline_of_machine(box.name) == stage.work.armed[box.number], "the machine has its deadline too"


def test_the_machine_gets_the_rentals_own_public_key_and_no_secret(stage: Stage, assay_home: Path) -> None:
    stage.errand()
    sent = b"\n".join(stage.cloud.told)
    assert b"ssh-ed25519 " in sent
    assert stage.cloud.key.encode() not in sent
    for path in assay_home.rglob("*"):
        assert path.is_dir() or stage.cloud.key.encode() not in path.read_bytes()


def test_quoted_and_billed_are_both_kept(runpod: Stage) -> None:
    runpod.errand()
    (rental,) = RentalJournal().rentals()
    quoted = rental.quoted_usd(runpod.clock.now())
    assert rental.billed_usd is not None
    assert quoted == pytest.approx(rental.billed_usd, rel=0.1)


def test_another_gpu_than_the_one_asked_for_is_given_back(stage: Stage, assay_home: Path) -> None:
    stage.cloud.usual = Fate(wrong_gpu=True)
    with pytest.raises(MachineCannot, match="has a T4"):
        stage.errand()
    assert nothing_is_left(stage, assay_home)


def test_results_that_fail_their_schema_end_the_machine_too(runpod: Stage, assay_home: Path) -> None:
    runpod.work.broken = True
    with pytest.raises(MachineCannot, match="not a run"):
        runpod.errand()
    assert nothing_is_left(runpod, assay_home)


def test_an_order_that_loses_machine_after_machine_is_given_up(stage: Stage, assay_home: Path) -> None:
    stage.cloud.usual = Fate(taken_s=50)
    with pytest.raises(MachineCannot, match="giving up"):
        stage.errand()
    assert len(stage.cloud.boxes) == 3
    assert {deadline_of_machine(box.name) for box in stage.cloud.boxes.values()} == {
        deadline_of_machine(next(iter(stage.cloud.boxes.values())).name)
    }, "the deadline stays what it was"
    assert nothing_is_left(stage, assay_home)


def test_another_start_is_paid_from_the_same_budget(runpod: Stage, assay_home: Path) -> None:
    runpod.cloud.fates.append(Fate(up_s=None))
    price = runpod.cloud.kinds["NVIDIA L4"]

    def faults(method: str, path: str) -> None:
        if runpod.cloud.boxes:
            price.usd_per_hour = 5.0

    runpod.cloud.faults = faults
    with pytest.raises(MachineCannot, match=r"is not kept: it may cost .* and --max-cost is \$0.49"):
        runpod.errand(max_cost_usd=0.49)
    assert len(runpod.cloud.boxes) == 1
    assert nothing_is_left(runpod, assay_home)


def test_a_budget_too_small_rents_nothing(stage: Stage, assay_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineCannot, match="--max-cost is"):
        stage.errand(max_cost_usd=0.1, limit_s=3600)
    with pytest.raises(MachineCannot, match="is enough for"):
        stage.errand(max_cost_usd=0.001)
    monkeypatch.setenv("ASSAY_MONTHLY_BUDGET_USD", "0.2")
    with pytest.raises(MachineCannot, match="of this month's"):
        stage.errand()
    assert not stage.cloud.boxes
    assert nothing_is_left(stage, assay_home)


def test_what_runs_elsewhere_counts_against_the_month(runpod: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_MONTHLY_BUDGET_USD", "0.7")
    loan = runpod.host.create(order_for("runpod"))
    with pytest.raises(MachineCannot, match=r"\$0.49 is spent or reserved for running machines"):
        runpod.host.create(order_for("runpod", id="fedcba9876543210"))
    runpod.host.release(loan)
    runpod.host.release(runpod.host.create(order_for("runpod", id="fedcba9876543210")))


def test_many_at_once_do_not_spend_the_same_money(runpod: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_MONTHLY_BUDGET_USD", "1.0")

    def rent(nth: int) -> Rental | None:
        try:
            return runpod.host.create(order_for("runpod", id=f"fedcba987654321{nth}"))
        except MachineCannot:
            return None

    with ThreadPoolExecutor(6) as many:
        loans = [loan for loan in many.map(rent, range(6)) if loan is not None]
    assert len(loans) == 2, "at $0.49 each"
    for loan in loans:
        runpod.host.release(loan)


def test_a_price_that_rose_since_it_was_chosen_is_not_paid_unasked(runpod: Stage) -> None:
    chosen = next(offer for offer in runpod.host.offers() if offer.gpu == "L4" and offer.gpu_count == 1)
    runpod.cloud.kinds["NVIDIA L4"].usd_per_hour = 0.8
    with pytest.raises(MachineCannot, match=r"was chosen for \$0.49 an hour, and now its price is \$0.80 an hour"):
        runpod.errand(offer=chosen)
    assert not runpod.cloud.boxes
    runpod.errand(offer=chosen, max_cost_usd=2.0)
    assert RentalJournal().rentals()[-1].usd_per_hour == 0.8, "quoted is the price of the moment"


def test_a_machine_that_turns_out_dearer_than_its_offer_is_given_back(stage: Stage, assay_home: Path) -> None:
    stage.cloud.usual = Fate(dearer=10)
    with pytest.raises(MachineCannot, match="is not kept"):
        stage.errand(max_cost_usd=2.0)
    assert nothing_is_left(stage, assay_home)


@pytest.mark.parametrize(
    ("told", "kind", "words"),
    [
        ({"gpu": None}, BadInput, r"--gpu-type says which GPU to rent; runpod has A40 \(\$0.44 an hour\), L4"),
        ({"gpu": "L5"}, BadInput, "There is no GPU type 'L5'"),
        ({"gpu": "T4"}, NoCapacity, "runpod has no T4 free now; it has"),
        ({"host_place": "mars"}, BadInput, "runpod has no place 'mars' now"),
    ],
)
def test_what_cannot_be_had_is_said(told: dict[str, Any], kind: type[Exception], words: str, runpod: Stage) -> None:
    with pytest.raises(kind, match=words):
        runpod.errand(**told)
    assert not runpod.cloud.boxes


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (402, "RunPod wants money first"),
        (403, "does not let this key"),
        (422, "is the --image right"),
        (400, "none free"),
    ],
)
def test_refusals_of_runpod_are_told_apart(status: int, words: str, runpod: Stage, assay_home: Path) -> None:
    runpod.cloud.refuses["POST /pods"] = (status, "as you wish")
    with pytest.raises((MachineCannot, BadInput), match=f"{words}.*"):
        runpod.errand()
    before = runpod.clock.now()
    assert runpod.cloud.requests.count("POST /v2/pods") == 1, "a refusal is not asked again"
    assert runpod.clock.now() - before < timedelta(seconds=1)
    assert nothing_is_left(runpod, assay_home)


def test_another_region_is_tried_where_one_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("lambda", monkeypatch)
    free = stage.cloud.kinds["gpu_1x_a10"].free
    offers = stage.host.offers()
    free["us-east-1"] = 0
    chosen = next(o for o in offers if o.gpu == "A10" and o.region == "us-east-1")
    monkeypatch.setattr(stage.host.provider, "offers", lambda: offers)
    stage.errand(offer=chosen)
    assert len(stage.cloud.boxes) == 1


def test_an_image_means_nothing_to_lambda(monkeypatch: pytest.MonkeyPatch, assay_home: Path) -> None:
    stage = Stage("lambda", monkeypatch)
    with pytest.raises(BadInput, match="--image means nothing to Lambda"):
        stage.errand(image="pytorch/pytorch")
    assert nothing_is_left(stage, assay_home)


def test_a_machine_that_will_not_go_keeps_its_lease_until_it_does(runpod: Stage, assay_home: Path) -> None:
    runpod.cloud.usual = Fate(deaf=10_000)
    with pytest.raises(MachineCannot, match=r"still has m0000 \(RUNNING\); `assay reap` tries again"):
        runpod.errand()
    assert leases.lease_exists("0123456789abcdef")
    runpod.cloud.boxes["m0000"].deaf = 0
    cleanup.undo_rental("runpod", "0123456789abcdef", runpod.host.provider.account())
    assert not runpod.cloud.running()


def test_the_wrong_key_proves_nothing_gone(runpod: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    account = runpod.host.provider.account()
    loan = runpod.host.create(order_for("runpod"))
    monkeypatch.setenv("RUNPOD_API_KEY", "another")
    with pytest.raises(MachineCannot, match="with another key or at another address"):
        cleanup.undo_rental("runpod", "0123456789abcdef", account)
    monkeypatch.delenv("RUNPOD_API_KEY")
    with pytest.raises(MachineCannot, match="RUNPOD_API_KEY is not set; create a key at"):
        cleanup.undo_rental("runpod", "0123456789abcdef", account)
    monkeypatch.setenv("RUNPOD_API_KEY", runpod.cloud.key)
    runpod.host.release(loan)
    runpod.host.release(loan)
    assert not runpod.cloud.running()


def test_a_signal_while_a_machine_is_given_back_does_not_keep_it(runpod: Stage, assay_home: Path) -> None:
    loan = runpod.host.create(order_for("runpod"))
    signals = iter([True])

    def stopped() -> None:
        if next(signals, False):
            raise StopRequested("Stopped by SIGTERM")

    runpod.clock.on_sleep = stopped
    with pytest.raises(StopRequested):
        runpod.host.release(loan)
    assert nothing_is_left(runpod, assay_home)


def test_nothing_is_rented_without_a_guardian(stage: Stage, assay_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise GuardianLost("The guardian was killed, and no other could be started.")

    monkeypatch.setattr(Guardian, "require", lost)
    with pytest.raises(GuardianLost):
        stage.errand()
    assert not stage.cloud.boxes
    assert RentalJournal().entries() == ()
    assert nothing_is_left(stage, assay_home)


def test_a_machine_is_given_back_where_the_guardian_dies_and_none_can_be_started(
    runpod: Stage, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stdin: int) -> None:
        raise GuardianNotStarted("there are too many processes")

    running: list[int] = []

    def work(*_: object) -> None:
        running.append(len(runpod.cloud.running()))
        monkeypatch.setattr("assay.core.guardian._spawn", refuse)
        os.kill(guardian_of(os.getpid()), signal.SIGKILL)
        time.sleep(60)

    monkeypatch.setattr(runpod.work, "run", work)
    with pytest.raises(StopRequested, match=r"no other could be started: there are too many processes; .* is gone"):
        runpod.errand()
    assert running == [1]
    assert nothing_is_left(runpod, assay_home)
    monkeypatch.undo()
    Guardian.require()


def test_a_machine_that_was_made_late_is_waited_for_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that had to be patient was asked for long before it was sent."""
    stage = Stage("lambda", monkeypatch)
    stage.cloud.usual = Fate(listed_s=80.0)
    several: tuple[Fault, ...] = ("too_many", "too_many", "too_many", "too_many", "drop_after")
    faults = iter(several)
    stage.cloud.faults = lambda method, path: next(faults, None) if path == PATHS["lambda"] else None
    times = iter(range(1000))

    def stopped() -> None:
        if stage.cloud.boxes and next(times) == 1:
            raise StopRequested("Stopped by SIGINT")

    stage.clock.on_sleep = stopped
    with pytest.raises(StopRequested):
        stage.errand()
    assert not stage.cloud.running()


def test_all_of_ours_are_listed_whoever_asked_for_them(runpod: Stage) -> None:
    loan = runpod.host.create(order_for("runpod"))
    elsewhere = machine_name("elsewhere0000000", 1, runpod.clock.now() + timedelta(hours=1))
    runpod.cloud.make(elsewhere, "NVIDIA A40", "SECURE")
    runpod.cloud.make("assay-dev", "NVIDIA A40", "SECURE")
    ours, theirs = runpod.host.list_ours()
    assert (ours.number, ours.gpu, ours.usd_per_hour, ours.deadline_at) == (
        loan.number,
        "L4",
        0.49,
        deadline_of_machine(ours.name),
    )
    assert (theirs.name, theirs.since, theirs.usd_per_hour) == (elsewhere, None, 0.44)
    runpod.host.release(Rental(host="runpod", name=elsewhere, number=theirs.number))
    runpod.host.release(loan)
    assert [box.name for box in runpod.cloud.running()] == ["assay-dev"]


def test_what_would_be_done_is_shown_and_not_done(runpod: Stage) -> None:
    shown = runpod.host.script(order_for("runpod", limit_s=1800))
    assert "rent L4 from runpod for $0.49 an hour, at most $0.24 in 30 min" in shown
    assert "assay run softmax" in shown
    assert not runpod.cloud.boxes


def test_reap_leaves_the_living_and_ends_the_late_and_the_lost(runpod: Stage, assay_home: Path) -> None:
    loan = runpod.host.create(order_for("runpod"))

    def reaped() -> list[str]:
        return [report.outcome for report in reap_machines([runpod.host], RentalJournal(), runpod.clock.now())]

    assert reaped() == ["left"]
    runpod.host.release(loan)
    late = machine_name("0123456789abcdef", 1, runpod.clock.now() + timedelta(hours=9))
    runpod.cloud.make(late, "NVIDIA L4", "SECURE")
    assert reaped() == ["released"]
    assert not runpod.cloud.running()
    runpod.host.create(order_for("runpod", id="fedcba9876543210"))
    (assay_home / "leases" / "fedcba9876543210.json").unlink()
    assert reaped() == ["released"]
    assert reaped() == []
    assert nothing_is_left(runpod, assay_home)


def test_stopped_while_it_waits_for_its_turn_nothing_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, assay_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage("lambda", monkeypatch)

    def turn() -> None:
        raise StopRequested("Stopped by SIGINT")

    monkeypatch.setattr(stage.host.provider, "wait_for_launch", turn)
    begun = stage.clock.now()
    with pytest.raises(StopRequested):
        stage.errand()
    assert "requested" not in [
        entry["event"] for entry in map(json.loads, RentalJournal().path.read_text().splitlines())
    ]
    assert stage.clock.now() - begun < timedelta(seconds=30)
    assert capsys.readouterr().err == ""
    assert nothing_is_left(stage, assay_home)


def test_what_may_have_been_made_is_looked_for_and_that_is_said(
    runpod: Stage, assay_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(wish: object) -> None:
        raise StopRequested("Stopped by SIGINT")

    monkeypatch.setattr(runpod.host.provider, "launch", launch)
    with pytest.raises(StopRequested):
        runpod.errand()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("runpod did not answer a request for a machine: checking whether one appears, for 9")
    assert said[1:] == ["runpod: no machine appeared."]
    assert nothing_is_left(runpod, assay_home)


def test_a_strangers_deadline_gets_a_little_more_time(runpod: Stage) -> None:
    deadline_at = runpod.clock.now() + timedelta(hours=1)
    runpod.cloud.make(machine_name("elsewhere0000000", 1, deadline_at), "NVIDIA A40", "SECURE")
    for minutes, left in ((59, 1), (62, 1), (66, 0)):
        reap_machines([runpod.host], RentalJournal(), runpod.clock.now().replace(minute=0) + timedelta(minutes=minutes))
        assert len(runpod.cloud.running()) == left
        runpod.clock.at = deadline_at - timedelta(hours=1)


def test_reap_says_who_cannot_be_asked_but_has_something_of_ours(
    runpod: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runpod.host.create(order_for("runpod"))
    monkeypatch.delenv("RUNPOD_API_KEY")
    hosts, (report,) = hosts_to_reap(RentalJournal())
    assert (report.outcome, "RUNPOD_API_KEY is not set" in report.reason) == ("failed", True)
    assert runpod.host not in hosts
    entries = [json.loads(line) for line in RentalJournal().path.read_text().splitlines()]
    assert entries[0]["provider"] == "runpod"


def test_an_offer_that_can_be_had_for_less_time_is_said(runpod: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Offer(host="runpod", name="NVIDIA L4", gpu="L4", gpu_count=1, usd_per_hour=0.5, longest_s=3600)
    monkeypatch.setattr(runpod.host.provider, "offers", lambda: (short,))
    with pytest.raises(MachineCannot, match="it can be rented for 1 h at most"):
        runpod.errand(limit_s=7200)
