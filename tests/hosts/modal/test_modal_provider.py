"""The account at Modal, asked through the real SDK, which talks to a server on loopback."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot, StopRequested
from assay.hosts.gpu_types import satisfies
from assay.hosts.providers.modal import ModalProvider, SdkCall
from assay.hosts.rented.provider import InstanceRequest, NoAnswer, NoCapacity
from tests.hosts.standins.modal.sandboxes import PREEMPTED

if TYPE_CHECKING:
    from tests.conftest import Eventually
    from tests.hosts.standins.modal.server import ModalStandIn

NAME = "assay-until-20301115t093000z-1-4f2a90c1d2e3b4a5"


def wish(provider: ModalProvider, gpu: str = "L4", count: int = 1, name: str = NAME) -> InstanceRequest:
    offer = next(each for each in provider.offers() if each.gpu == gpu and each.gpu_count == count)
    deadline = datetime.now(UTC) + timedelta(seconds=1000)
    return InstanceRequest(
        name=name, offer=offer, image="some/image:1", deadline_at=deadline, environment={"PLAIN": "words"}
    )


def test_a_sandbox_is_asked_for_exactly_found_again_and_seen_gone(modal_stand_in: ModalStandIn) -> None:
    provider = ModalProvider(answer_within_s=20, launch_within_s=20)
    assert provider.missing() is None
    assert provider.list_ours() == (), "there is no app yet"

    machine = provider.launch(wish(provider, "H100-SXM", 2))
    [made] = modal_stand_in.sandboxes.all.values()
    assert (made.name, made.gpu, made.image) == (NAME, "H100!:2", "FROM some/image:1")
    assert made.environment == {"PLAIN": "words"}
    assert 990 <= made.timeout_s <= 1000, "Modal itself keeps the deadline"
    assert (machine.name, machine.number, machine.stage) == (NAME, made.id, "up")
    assert machine.usd_per_hour == pytest.approx(2 * 3.95)
    assert provider.list_ours() == (machine,)
    assert provider.find(made.id) == machine
    assert provider.billed_usd(machine) is None, "Modal does not tell, and null is not 0"

    provider.terminate(made.id)
    seen = provider.find(made.id)
    assert seen is not None
    assert (seen.stage, seen.status_text) == ("gone", "was terminated")
    assert provider.connect(seen) is None
    assert provider.list_ours() == ()
    provider.terminate(made.id)
    assert provider.find("sb-0000000000000000000000") is None
    provider.terminate("sb-0000000000000000000000")


def test_sandboxes_that_somebody_else_made_are_not_ours(modal_stand_in: ModalStandIn) -> None:
    provider = ModalProvider(answer_within_s=20, launch_within_s=20)
    modal_stand_in.on_create = lambda sandbox: sandbox.tags.clear()
    provider.launch(wish(provider))
    assert provider.list_ours() == ()


def test_every_offer_names_a_gpu_that_the_driver_can_be_held_to() -> None:
    offers = ModalProvider().offers()
    assert {each.gpu_count for each in offers} == {1, 2, 4, 8}
    assert all(each.priced_on and each.ends_itself and each.longest_s for each in offers)
    names = {each.name for each in offers if each.gpu_count == 1}
    assert "H100!" in names
    assert not {"H100", "A100"} & names, "such a name may become another GPU"
    hopper = next(each for each in offers if each.name == "H100!")
    assert hopper.gpu is not None
    assert satisfies(hopper.gpu, "NVIDIA H100 80GB HBM3")
    assert not satisfies(hopper.gpu, "NVIDIA H200")


def test_what_modal_refuses_is_told_apart_and_nothing_is_left(modal_stand_in: ModalStandIn) -> None:
    from grpclib import Status

    from tests.hosts.standins.modal.server import Fault

    provider = ModalProvider(answer_within_s=20, launch_within_s=20)
    refusals = {
        (Status.RESOURCE_EXHAUSTED, "Insufficient capacity for L4"): (NoCapacity, "no such machine free"),
        (Status.RESOURCE_EXHAUSTED, "GPU quota exceeded"): (MachineCannot, "quota"),
        (Status.PERMISSION_DENIED, "add a card first"): (MachineCannot, "payment method"),
        (Status.INVALID_ARGUMENT, "no such GPU"): (MachineCannot, "refuses the request"),
        (Status.UNIMPLEMENTED, "too old"): (MachineCannot, "update the package"),
        (Status.UNAUTHENTICATED, "token as-verysecret is bad"): (MachineCannot, "MODAL_TOKEN_ID"),
    }
    for (status, words), (kind, said) in refusals.items():
        modal_stand_in.fail("SandboxCreate", Fault(status, words))
        with pytest.raises(MachineCannot, match=said) as caught:
            provider.launch(wish(provider))
        assert type(caught.value) is kind
        assert "verysecret" not in str(caught.value)
    modal_stand_in.image_fails = "manifest for some/image:1 not found"
    with pytest.raises(MachineCannot, match=r"image.* not found; name another with --image"):
        provider.launch(wish(provider))
    assert not modal_stand_in.sandboxes.all


def test_wrong_credentials_say_how_to_get_right_ones(
    modal_stand_in: ModalStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-somethingwrong")
    provider = ModalProvider(answer_within_s=20)
    with pytest.raises(MachineCannot, match=r"does not accept the credentials.*modal token new") as caught:
        provider.list_ours()
    assert "somethingwrong" not in str(caught.value)


@pytest.mark.parametrize("keys_honoured", [True, False])
def test_an_answer_that_never_came_leaves_one_sandbox_that_is_found_by_name(
    modal_stand_in: ModalStandIn, *, keys_honoured: bool
) -> None:
    from tests.hosts.standins.modal.server import Fault

    modal_stand_in.keys_honoured = keys_honoured
    modal_stand_in.fail("SandboxCreate", *[Fault(after=True, cut=True)] * 4)
    provider = ModalProvider(answer_within_s=20, launch_within_s=20)
    with pytest.raises(NoAnswer):
        provider.launch(wish(provider))
    [ours] = provider.list_ours()
    assert ours.name == NAME
    assert modal_stand_in.launched(NAME) == 1


def test_a_sandbox_that_gets_no_machine_in_time_is_taken_back(modal_stand_in: ModalStandIn) -> None:
    modal_stand_in.capacity = False
    provider = ModalProvider(answer_within_s=20, launch_within_s=0.7)
    with pytest.raises(NoCapacity, match=r"no such machine free within 0\.7 s"):
        provider.launch(wish(provider))
    assert modal_stand_in.launched(NAME) == 1
    assert provider.list_ours() == ()


def test_a_create_that_is_not_answered_in_time_may_be_done_all_the_same(modal_stand_in: ModalStandIn) -> None:
    from tests.hosts.standins.modal.server import Fault

    modal_stand_in.fail("SandboxCreate", Fault(hang_s=5.0))
    with pytest.raises(NoAnswer, match="no answer in time"):
        ModalProvider(answer_within_s=20, launch_within_s=0.3).launch(wish(ModalProvider()))


def test_the_account_is_told_from_another_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    told = set()
    for token, url in (("ak-one", "http://127.0.0.1:1"), ("ak-two", "http://127.0.0.1:1"), ("ak-two", "")):
        monkeypatch.setenv("MODAL_TOKEN_ID", token)
        monkeypatch.setenv("MODAL_SERVER_URL", url)
        told.add(ModalProvider().account())
    assert len(told) == 3
    assert not any("ak-" in each for each in told)


def test_a_modal_that_does_not_answer_is_not_waited_for_longer_than_told(modal_stand_in: ModalStandIn) -> None:
    from tests.hosts.standins.modal.server import Fault

    modal_stand_in.fail("AppGetOrCreate", Fault(hang_s=5.0))
    with pytest.raises(NoAnswer, match="did not answer when its sandboxes were listed: no answer in time"):
        ModalProvider(answer_within_s=0.3).list_ours()


def test_a_sandbox_over_its_time_or_taken_away_is_gone_and_says_how(modal_stand_in: ModalStandIn) -> None:
    provider = ModalProvider(answer_within_s=20, launch_within_s=20)
    late, taken = (provider.launch(wish(provider, name=f"{NAME[:-1]}{each}")).number for each in "67")
    modal_stand_in.sandboxes.all[taken].end(PREEMPTED)
    modal_stand_in.sandboxes.all[late].created_at -= 1001
    said = [machine.status_text for number in (late, taken) if (machine := provider.find(number))]
    assert said == ["has reached its time limit", "was taken away (exit code 0)"]
    assert provider.list_ours() == ()


def test_a_signal_while_a_machine_is_waited_for_takes_it_back(
    modal_stand_in: ModalStandIn, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    modal_stand_in.capacity = False
    provider = ModalProvider(answer_within_s=20, launch_within_s=20)
    talks: list[SdkCall[object]] = []
    begin = SdkCall.result

    def noted(talk: SdkCall[object]) -> object:
        talks.append(talk)
        return begin(talk)

    monkeypatch.setattr(SdkCall, "result", noted)

    def stop() -> None:
        eventually(lambda: "SandboxGetTaskId" in modal_stand_in.calls)

        def raised() -> None:
            raise StopRequested("Stopped by SIGINT")

        talks[-1].tell(raised)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(StopRequested):
        provider.launch(wish(provider))
    stopper.join()
    assert not modal_stand_in.sandboxes.running()
    assert not [each for each in threading.enumerate() if each.name == "assay-modal"]


def test_a_deadline_that_has_passed_asks_for_nothing() -> None:
    provider = ModalProvider(now=lambda: datetime(2040, 1, 1, tzinfo=UTC))
    with pytest.raises(MachineCannot, match="the deadline has passed"):
        provider.launch(wish(provider))
