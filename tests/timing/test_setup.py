"""A function of the user's: bound to arguments that fit, and looked at before it is timed."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.errors import BadInput, TrialFailed
from assay.timing.setup import BoundCall, FirstCalls, attribute_errors, bind_call, make_first_calls

if TYPE_CHECKING:
    from collections.abc import Callable


def finish() -> None:
    """Calls here are done when they return."""


def firsts(function: Callable[..., object], *args: object, **more: Any) -> FirstCalls:
    return make_first_calls(bind_call(function, args, name="f"), finish, 60.0, **more)


def test_a_call_without_arguments_is_the_function_itself() -> None:
    def work() -> int:
        return 1

    assert bind_call(work).call is work


def test_arguments_are_handed_over_by_place_and_by_name() -> None:
    bound = bind_call(lambda a, *, b: (a, b), (1,), {"b": 2})
    assert bound.call() == (1, 2)
    assert bound.arguments == (1, 2)


@pytest.mark.parametrize(
    ("function", "name"),
    [(len, "len"), (functools.partial(len, ()), "partial"), (lambda: None, "<lambda>")],
)
def test_a_function_has_a_name_whatever_it_is(function: Callable[..., object], name: str) -> None:
    bound = bind_call(function, ((),) if function is len else ())
    assert bound.name.rpartition(".")[2] == name


def test_a_given_name_is_used() -> None:
    assert bind_call(finish, name="mine").name == "mine"


def test_what_cannot_be_called_is_bad_input() -> None:
    with pytest.raises(BadInput, match="int cannot be called"):
        bind_call(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'n'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"m": 2}, "unexpected keyword argument 'm'"),
    ],
)
def test_arguments_that_do_not_fit_are_said_before_anything_runs(
    args: tuple[object, ...], kwargs: dict[str, object], words: str
) -> None:
    def work(n: object) -> None:
        raise AssertionError("it ran")

    with pytest.raises(BadInput, match=words):
        bind_call(work, args, kwargs)


def test_a_function_in_c_that_does_not_say_what_it_takes_is_believed() -> None:
    assert bind_call(dict.fromkeys, ("ab",)).call() == {"a": None, "b": None}


async def coroutine() -> None:
    """Do nothing, some day."""


def generator() -> Any:
    yield 1


async def stream() -> Any:
    yield 1


class Later:
    async def __call__(self) -> None:
        """Do nothing, some day."""


@pytest.mark.parametrize("function", [coroutine, generator, stream, functools.partial(coroutine)])
def test_what_only_makes_a_coroutine_or_generator_is_refused(function: Callable[[], object]) -> None:
    with pytest.raises(BadInput, match="only makes a coroutine or generator"):
        bind_call(function)


@pytest.mark.parametrize("function", [Later(), lambda: iter(generator()), lambda: aiter(stream())])
def test_one_that_hides_it_is_found_out_at_its_first_call(function: Callable[[], object]) -> None:
    with pytest.raises(BadInput, match="f only makes a coroutine or generator"):
        firsts(function)


def test_what_a_function_raises_is_said_with_its_cause() -> None:
    with pytest.raises(TrialFailed, match=r"^f raised ZeroDivisionError: division by zero$") as caught:
        firsts(lambda: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_function_that_leaves_the_program_has_failed() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(TrialFailed, match="f raised SystemExit: 3"):
        firsts(leave)


def test_an_interrupt_is_the_users_and_goes_through() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        firsts(interrupted)


def test_an_error_of_our_own_is_not_blamed_on_the_function() -> None:
    with pytest.raises(BadInput, match=r"^ours$"), attribute_errors("f"):
        raise BadInput("ours")


def test_steady_calls_leave_nothing_to_say() -> None:
    found = firsts(lambda: np.zeros(3))
    assert (found.steady, found.notes) == (True, ())


def test_calls_that_return_other_shapes_are_not_steady_and_that_is_said() -> None:
    sizes = iter([2, 3, 3])
    found = firsts(lambda: np.zeros(next(sizes)))
    assert not found.steady
    assert found.notes == ("its calls differ: one returned ndarray float64(2,), another ndarray float64(3,)",)


def test_calls_that_return_other_types_in_a_tuple_are_not_steady() -> None:
    values = iter([1, 2.0, 2.0])
    assert not firsts(lambda: (next(values),)).steady


@pytest.mark.parametrize("make", [np.zeros, "torch"])
def test_a_function_that_changes_its_argument_is_noted_with_its_number(make: Any) -> None:
    if make == "torch":
        make = pytest.importorskip("torch").zeros

    def add(other: Any, x: Any) -> None:
        x += 1

    found = firsts(add, make(2), make(4))
    assert found.notes == ("it changes its arguments (number 1): each call works on what the last one left",)
    assert found.steady


def test_arguments_that_cannot_be_looked_at_are_let_be() -> None:
    torch = pytest.importorskip("torch")
    for argument in (
        torch.zeros(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.zeros(2, dtype=torch.complex64),
        np.zeros(0),
        np.array(5),
        np.array([{}, []], dtype=object),
        "text",
    ):
        assert firsts(lambda _: None, argument).notes == ()


def test_a_setup_goes_before_each_first_call() -> None:
    stack: list[int] = []
    firsts(stack.pop, before_each=lambda: stack.append(1))
    assert stack == []


@pytest.mark.timeout(60, method="thread")
def test_a_call_that_does_not_return_is_given_up_in_the_main_thread() -> None:
    def spin() -> None:
        while True:
            pass

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(TrialFailed, match=r"^f has not returned within 0.05 s\.$"):
        make_first_calls(BoundCall("f", spin), finish, 0.05)


def test_slow_calls_are_made_once_and_quick_ones_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    firsts(lambda: calls.append(1))
    assert len(calls) == 3
    monkeypatch.setattr("assay.timing.setup.FIRST_CALLS_S", 0.0)
    firsts(lambda: calls.append(1))
    assert len(calls) == 4
