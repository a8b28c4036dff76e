"""The interface of a workload: a name and an implementation that prepares a call ready to be timed.

Inside ``with sharing_data():`` data that several calls of ``prepare`` would each draw or allocate is created once, so
that many configurations of one problem fit into memory. The configurations must run one after another, as they share
outputs too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from assay.core.results import Check, Note, Parity
    from assay.core.values import Params

Extras = Mapping[str, float]
"""Numbers that one call reports beside its time, under names that end in the unit: ``max_rss_mib``."""

StageExtras = Mapping[str, "float | Sequence[float]"]
"""The same for one call in a stage, where a name may have several numbers per call: ``gap_us``, one per token."""


def do_nothing() -> None:
    """Do nothing: most workloads finish their work within the call and hold nothing open."""


@dataclass(frozen=True)
class LaunchedKernels:
    """The kernels that one call launched, in order, and the library that they come from; null where unknown."""

    kernels: tuple[str, ...]
    backend: str | None = None


@dataclass(frozen=True)
class PreparedWorkload:
    """A subject with its data in place, ready to be called again and again.

    ``call`` makes one unit of work and may return extras, which are kept as series of their own. ``check`` compares one
    call's output with a float64 reference, and ``parity`` that of a fast path with its reference. Null means that a
    function or a number does not apply or is not known.
    """

    call: Callable[[], object]
    check: Callable[[], Check] | None = None
    parity: Callable[[], Parity] | None = None
    tolerance: float | None = None  # relative error allowed against another function; null: that of its dtype
    launched_kernels: Callable[[], LaunchedKernels] | None = None  # makes a call; an unrequested backend is a failure
    flop: float | None = None  # floating-point operations of one call
    bytes_moved: float | None = None  # least number of bytes one call must read and write
    measured: Callable[[], Mapping[str, float]] | None = None  # makes one call; returns what it measured about it
    align: Callable[[], None] | None = None  # waits until all ranks are ready, before each timed call
    synchronize: Callable[[], None] = do_nothing  # waits until the work of all calls so far is finished
    close: Callable[[], None] = do_nothing  # releases whatever is held open
    reports_extras: bool = False  # whether a call returns numbers to keep, its own time among them
    synchronizes_itself: bool = False  # the user's own synchronization is used, so that the host clock times the call
    agree_to_stop: Callable[[bool], bool] | None = None  # whether any rank of a stage would stop; after each call
    placement: Mapping[str, str] | None = None  # actual device of each part of a model
    dtype: str | None = None  # dtype of a model's weights as loaded: ``bfloat16``
    notes: tuple[Note, ...] = ()  # what the user should know about the preparation


class Workload(Protocol):
    """One workload in one implementation.

    ``configs`` lists the configurations an auto-tuner may choose from; the first is the default.
    A workload that cannot be tuned has none.
    """

    name: str
    impl: str
    device_kinds: frozenset[str]
    summary: str

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the parameters and their default values, which also fix their types.

        The names and types are the same on every kind of device; sizes may differ, to give the device enough work.
        """
        ...

    def configs(self, params: Params) -> Sequence[Params]:
        """Return the configuration space for these parameters."""
        ...

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; ``params`` are complete and of the right types."""
        ...


class UntunedWorkload:
    """Base class of workloads without configurations, as there is nothing to tune."""

    def configs(self, params: Params) -> Sequence[Params]:
        """Return no configurations."""
        return ()


def one_line(text: object, most: int = 200) -> str:
    """Return a text or the message of an error on one line, cut to ``most`` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


@runtime_checkable
class ParamsChecker(Protocol):
    """A workload with rules between its parameters, which are checked before anything is started."""

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse parameters that break a rule, with a one-sentence error."""
        ...


@runtime_checkable
class RankAware(Protocol):
    """A workload that several ranks compute together; its parameters are adapted before anything is started."""

    def for_ranks(self, params: Params, ranks: int, explicit: Collection[str]) -> Params:
        """Return the parameters for ``ranks`` ranks, explicit ones unchanged; refuse an impossible combination."""
        ...


_T = TypeVar("_T")
_SHARED: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def sharing_data() -> Iterator[None]:
    """Share data until the end of the block, then release it."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def shared_data(key: Hashable, make: Callable[[], _T]) -> _T:
    """Return the data for this key, created once per block; created anew where nothing is shared."""
    store = _SHARED.get()
    if store is None:
        return make()
    if key not in store:
        store[key] = make()
    return cast("_T", store[key])
