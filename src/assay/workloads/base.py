"""What a workload is: a name and an implementation that prepares a call ready to be timed.

Inside ``with sharing_data():`` data that several calls of ``prepare`` would each draw or allocate is made once, so that
many configurations of one problem fit into memory. It is for configurations that run one after another, as outputs are
shared too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from assay.core.results import Check, Note, Parity
    from assay.core.values import Params


Extras = Mapping[str, float]
"""What one call reported beside its time, each under a name that ends in its unit: ``max_rss_mib``."""

StageExtras = Mapping[str, "float | Sequence[float]"]
"""The same of one call in a stage, where a name may have several numbers a call: ``gap_us``, one for each token."""


def _do_nothing() -> None:
    """Do nothing: most workloads finish their work within the call and hold nothing open."""


@dataclass(frozen=True)
class LaunchedKernels:
    """What one call really launched: the kernels in order, and the library they show to have done the work."""

    kernels: tuple[str, ...]
    backend: str | None = None


@dataclass(frozen=True)
class PreparedWorkload:
    """A subject with its data in place, ready to be called again and again.

    Attributes:
        call: One unit of work. It may return extras, which are kept as series of their own.
        check: Compares one call's output with a float64 reference; null where there is none.
        parity: Judges one call's output, as that of a fast path, by what it stands for; null where that is not known.
        tolerance: The relative error that passes where it is compared with another function; null: that of its dtype.
        launched_kernels: Makes one call and looks at what it launched; a backend other than the one asked for is a
        failure. flop: Floating-point operations of one call; null where it is not known.
        bytes_moved: The least bytes one call must read and write; null where it is not known.
        measured: Makes one call and says what it was seen to do; null where there is nothing to say.
        align: Waits until all ranks are here, called before each call that is timed; null for what needs no others.
        synchronize: Waits until the work of all calls so far is finished.
        close: Gives back whatever was held open.
        reports_extras: What a call returns are numbers to keep, its own time among them.
        synchronizes_itself: The user said how to wait for the work, so the host's clock is what is meant.
        agree_to_stop: Of several ranks in a stage: whether any of them would stop, asked by all after each call.
        placement: Which part of a model really lies on which device; null where it is not of parts.
        dtype: Of a model's weights, as they were loaded: ``bfloat16``; null where there is none to tell.
        notes: What its user should know about how it was put in place.
    """

    call: Callable[[], object]
    check: Callable[[], Check] | None = None
    parity: Callable[[], Parity] | None = None
    tolerance: float | None = None
    launched_kernels: Callable[[], LaunchedKernels] | None = None
    flop: float | None = None
    bytes_moved: float | None = None
    measured: Callable[[], Mapping[str, float]] | None = None
    align: Callable[[], None] | None = None
    synchronize: Callable[[], None] = field(default=_do_nothing)
    close: Callable[[], None] = field(default=_do_nothing)
    reports_extras: bool = False
    synchronizes_itself: bool = False
    agree_to_stop: Callable[[bool], bool] | None = None
    placement: Mapping[str, str] | None = None
    dtype: str | None = None
    notes: tuple[Note, ...] = ()


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

        The names and types are the same on every kind of device; sizes may differ, to be work enough for it.
        """
        ...

    def configs(self, params: Params) -> Sequence[Params]:
        """Return the configuration space for these parameters."""
        ...

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Put the data in place; ``params`` are complete and of the right types."""
        ...


@runtime_checkable
class ParamsChecker(Protocol):
    """A workload whose parameters have rules between them, looked at before anything is started."""

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse parameters that break a rule, in one sentence."""
        ...


@runtime_checkable
class RankAware(Protocol):
    """A workload that several ranks compute together, looked at before anything is started."""

    def for_ranks(self, params: Params, ranks: int, explicit: Collection[str]) -> Params:
        """Return the parameters for so many ranks, those given unchanged, or refuse in one sentence what cannot be."""
        ...


_T = TypeVar("_T")
_SHARED: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def sharing_data() -> Iterator[None]:
    """Share data until the end of the block; then nothing of it is held here any more."""
    before = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(before)


def shared_data(key: Hashable, make: Callable[[], _T]) -> _T:
    """Return what was made for this key in this block; made now where it was not, or nothing is shared."""
    store = _SHARED.get()
    if store is None:
        return make()
    if key not in store:
        store[key] = make()
    return cast("_T", store[key])
