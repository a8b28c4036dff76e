"""What every provider of rented machines must get right, as checks that its author runs against a stand-in.

    from assay.hosts import kit

    @pytest.mark.parametrize("check", kit.CHECKS, ids=kit.name_of)
    def test_my_provider(check, tmp_path, monkeypatch):
        monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
        check(MyBench())

A bench is the provider, wired to a stand-in in which faults can be chosen, and to a clock that both go by. The
providers that come with Assay pass these checks; a check that fails raises `KitFailed` with a sentence.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot, StopRequested
from assay.hosts.errand import carry_out
from assay.hosts.rented.bench import (
    Bench,
    Fault,
    KitFailed,
    Nobody,
    errand,
    expect,
    fails,
    finish,
    gone,
    host_on,
    launch_raises,
    listed,
    nothing_left,
    order_for,
    tidy,
    wait,
    wish_for,
)
from assay.hosts.rented.book import Book
from assay.hosts.rented.provider import NoCapacity, Unanswered
from assay.hosts.rented.reaping import reap

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.rented.provider import Machine, Wish

__all__ = ["CHECKS", "Bench", "Fault", "KitFailed", "name_of"]


def name_of(check: Callable[[Bench], None]) -> str:
    """Return a check's name, for people."""
    return check.__name__


def it_says_which_credential_is_missing(bench: Bench) -> None:
    """Without credentials `missing` says in a clause what to set; with them nothing."""
    expect(bool(bench.without_credentials().missing()), "missing() is null though no credential is set")
    expect(bench.provider.missing() is None, f"missing() says {bench.provider.missing()!r} though all is there")


def its_offers_can_be_chosen_from(bench: Bench) -> None:
    """Every offer says which GPU, how many, and for how much; the bench's kind is among them."""
    offers = bench.provider.offers()
    expect(bool(offers), "there is no offer")
    for offer in offers:
        expect(offer.host == bench.provider.name, f"an offer is of host {offer.host!r}")
        expect(offer.gpu is not None and offer.gpu_count is not None, f"offer {offer.name} does not say its GPUs")
        expect(offer.usd_per_hour is not None and offer.usd_per_hour > 0, f"offer {offer.name} has no price")
    expect(any(offer.gpu == bench.gpu for offer in offers), f"nobody offers {bench.gpu}")


def a_machine_is_listed_by_its_name_and_seen_gone(bench: Bench) -> None:
    """Launched, found in the list, looked at, ended twice, gone for `look` and for the list."""
    request = wish_for(bench)
    machine = bench.provider.launch(request)
    expect(machine.name == request.name, f"a machine asked for as {request.name} is called {machine.name!r}")
    expect(machine.number in listed(bench), f"machine {machine.number} is not in the list")
    looked = bench.provider.look(machine.number)
    expect(looked is not None and looked.name == request.name, f"look({machine.number}) gives {looked}")
    bench.provider.end(machine.number)
    wait(bench, lambda: not bench.running(), "it is still running after its end was asked for")
    wait(bench, lambda: gone(bench, machine.number), "look() still shows a machine that is gone")
    expect(not bench.provider.ours(), "the list still shows a machine that is gone")
    bench.provider.end(machine.number)
    tidy(bench)


def what_is_not_there_is_null(bench: Bench) -> None:
    """A number that nobody ever had is null to `look`, and no error to `end`."""
    machine = bench.provider.launch(wish_for(bench))
    strange = machine.number[:-1] + ("0" if machine.number[-1] != "0" else "1")
    expect(bench.provider.look(strange) is None, "look() finds a machine that never was")
    bench.provider.end(strange)
    finish(bench)


def an_errand_leaves_nothing(bench: Bench) -> None:
    """One machine is made, used and gone."""
    errand(bench)
    expect(bench.made() == 1, f"{bench.made()} machines were made for one order")
    nothing_left(bench)


def a_cut_before_anything_was_made_is_unanswered(bench: Bench) -> None:
    """`Unanswered`, for nobody can know; the errand asks again and makes one."""
    launch_raises(bench, "cut before", Unanswered)
    expect(not bench.running(), "something was made")
    bench.next("cut before")
    errand(bench)
    expect(bench.made() == 1, f"{bench.made()} machines were made for one order")
    nothing_left(bench)


def an_answer_that_never_came_is_found_by_name(bench: Bench) -> None:
    """The machine that was made all the same is taken; no second one is made."""
    for nth, fault in enumerate(("cut after", "trouble"), start=1):
        bench.next("cut after" if fault == "cut after" else "trouble")
        errand(bench)
        expect(bench.made() == nth, f"after {fault!r} there are {bench.made()} machines for {nth} orders")
        nothing_left(bench)


def a_machine_that_turns_up_late_is_not_left(bench: Bench) -> None:
    """Whether it is taken in the end or was replaced by another: when the order is released, all are gone."""
    bench.next("late")
    errand(bench)
    nothing_left(bench)


def two_machines_for_one_request_both_go(bench: Bench) -> None:
    """Whatever bears the order's name is ended."""
    bench.next("twice")
    errand(bench)
    nothing_left(bench)


def no_capacity_is_told_from_a_refusal(bench: Bench) -> None:
    """`NoCapacity` where another kind may be had; `MachineCannot` and nothing below it where we may not."""
    launch_raises(bench, "no capacity", NoCapacity)
    error = launch_raises(bench, "refused", MachineCannot)
    expect(not isinstance(error, NoCapacity | Unanswered), f"a refusal is a {type(error).__name__}")
    expect(not bench.running(), "something was made")
    bench.next("refused")
    fails(bench, MachineCannot)
    nothing_left(bench)


def an_end_that_was_not_heard_is_asked_for_again(bench: Bench) -> None:
    """Released means seen gone."""
    bench.next("deaf")
    errand(bench)
    nothing_left(bench)


def a_machine_that_is_taken_away_is_replaced(bench: Bench) -> None:
    """The order begins anew on another machine; both are gone in the end."""
    for fault in ("taken", "stuck"):
        before = bench.made()
        bench.next("taken" if fault == "taken" else "stuck")
        errand(bench)
        expect(bench.made() == before + 2, f"after {fault!r} {bench.made() - before} machines were made, not 2")
        nothing_left(bench)


def a_signal_while_it_is_asked_for_leaves_nothing(bench: Bench) -> None:
    """A `StopRequested` that comes with the answer: the machine is found by its name, and ended."""
    host = host_on(bench)
    launch = bench.provider.launch

    def stopped(wish: Wish) -> Machine:
        launch(wish)
        raise StopRequested("Stopped by SIGINT")

    bench.provider.launch = stopped  # type: ignore[method-assign]
    try:
        carry_out(host, order_for(bench), Nobody())
    except StopRequested:
        pass
    else:
        raise KitFailed("the signal was lost")
    finally:
        bench.provider.launch = launch  # type: ignore[method-assign]
    nothing_left(bench)


def reap_ends_what_is_over_its_deadline_and_nothing_else(bench: Bench) -> None:
    """By the deadline in the name; a stranger's machine is never touched, whatever it is called."""
    stranger = bench.stranger()
    bench.provider.launch(wish_for(bench, seconds=3600.0))
    now = bench.clock.now()
    reap([host_on(bench)], Book(), now)
    expect(len(bench.running()) == 2, "a machine that is not over its deadline was ended")
    reap([host_on(bench)], Book(), now + timedelta(hours=2))
    expect(set(bench.running()) == {stranger}, f"after reap {sorted(bench.running())} run, not {stranger}")


CHECKS: tuple[Callable[[Bench], None], ...] = (
    it_says_which_credential_is_missing,
    its_offers_can_be_chosen_from,
    a_machine_is_listed_by_its_name_and_seen_gone,
    what_is_not_there_is_null,
    an_errand_leaves_nothing,
    a_cut_before_anything_was_made_is_unanswered,
    an_answer_that_never_came_is_found_by_name,
    a_machine_that_turns_up_late_is_not_left,
    two_machines_for_one_request_both_go,
    no_capacity_is_told_from_a_refusal,
    an_end_that_was_not_heard_is_asked_for_again,
    a_machine_that_is_taken_away_is_replaced,
    a_signal_while_it_is_asked_for_leaves_nothing,
    reap_ends_what_is_over_its_deadline_and_nothing_else,
)
"""Every check; each takes a fresh bench, and an ``ASSAY_HOME`` of its own."""
