"""Requests to a one-shot process and its replies: lines of JSON on a separate socket.

parent                                               process
  │ ── TimeRequest | TraceRequest ───────────────► │
  │ ◄───────────────────── PhaseStarted (loading) ─┤  with its time limit: the process is killed when that passes
  │ ◄───────────────────── PhaseStarted (calling) ─┤
  │ ◄─────────── PhaseStarted (timing or tracing) ─┤
  │ ◄─── TimeResult | TraceResult | RequestFailed ─┤
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from assay.core.results import SubjectFacts
from assay.core.values import Subject, Value
from assay.monitor.kernel_trace.rows import CallSpan
from assay.timing.options import MethodChoice, TimeKind
from assay.timing.results import Cache, Comparison, Measurement

Phase = Literal["loading", "calling", "timing", "tracing", "counting"]


class TimeRequest(Value):
    """What to time, and how; see ``assay.measure`` for one subject and ``assay.compare`` for several."""

    subjects: tuple[Subject, ...] = Field(min_length=1)
    device: str | None
    cache: Cache | None
    method: MethodChoice
    precision: float
    budget_s: float | None = Field(description="Of all processes together; null: what is usual on the device.")
    processes: int = Field(default=1, ge=1, description="That share the budget, one after another.")
    process: int = Field(default=1, ge=1, description="Which of them this is.")
    by: TimeKind | None
    minimum_effect: float
    limit_s: float
    lock_mhz: int | None
    seed: int


class TraceRequest(Value):
    """What to trace kernel by kernel: one subject, with the number of calls and of warm-up calls."""

    subjects: tuple[Subject] = Field(description="One.")
    device: str
    calls: int = Field(ge=1)
    warmup: int = Field(ge=0)
    limit_s: float = Field(description="For the first call, and for all the others together.")
    seed: int
    file: str = Field(description="Where PyTorch's trace goes, absolute.")


class PhaseStarted(Value):
    """The phase that begins, its subject, and its time limit."""

    kind: Literal["begins"] = "begins"
    phase: Phase
    name: str
    within_s: float
    budget_s: float | None = Field(default=None, description="Of timing: how long it is meant to take at most.")


class TimeResult(Value):
    """A measurement of one subject or a comparison of several, and the checks before it."""

    kind: Literal["timed"] = "timed"
    facts: tuple[SubjectFacts, ...]
    budget_s: float = Field(description="This process's share, in seconds.")
    measurement: Measurement | None = None
    comparison: Comparison | None = None


class TraceResult(Value):
    """The calls by the host's clock. PyTorch's trace is in the file, or ``missing_reason`` says why there is none."""

    kind: Literal["followed"] = "followed"
    facts: SubjectFacts
    calls: tuple[CallSpan, ...]
    profiled: bool
    missing_reason: str | None = None


class RequestFailed(Value):
    """No result; why, in one sentence, and the traceback if it is a defect of Assay."""

    kind: Literal["unfulfilled"] = "unfulfilled"
    error: Literal["BadInput", "MachineCannot", "WrongResult", "TrialFailed", "defect"]
    reason: str
    traceback: str | None = None


Reply = Annotated[PhaseStarted | TimeResult | TraceResult | RequestFailed, Field(discriminator="kind")]
_REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)


def parse_reply(line: bytes) -> Reply:
    """Parse one line of the process's output."""
    return _REPLY.validate_json(line)
