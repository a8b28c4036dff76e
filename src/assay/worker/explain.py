"""What went wrong in a worker, as one sentence for its parent."""

from __future__ import annotations

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.worker import protocol as say

_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""How PyTorch says that memory ran out where the error is not called so."""

_GONE = (
    "connection closed by peer",
    "connection reset by peer",
    "connection was likely closed",
    "connection refused",
    "broken pipe",
    "caused pair closure",
    "remote process exited",
    "timed out waiting",
)
"""How gloo, NCCL and PyTorch's store say that another rank is gone; in small letters."""

_MOST_CHARACTERS = 300


def explain(error: BaseException) -> say.Failed:
    """Return a failure as one sentence."""
    if isinstance(error, AssayError):
        is_invalid = isinstance(error, BadInput)
        return say.Failed(reason=str(error), refused=isinstance(error, MachineCannot), senseless=is_invalid)
    text = " ".join(str(error).split())
    shortened = text[:_MOST_CHARACTERS]
    if out_of_memory(error):
        return say.Failed(reason=f"out of memory: {shortened or type(error).__name__}")
    reason = f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__
    return say.Failed(reason=reason, by_another=any(words in text.lower() for words in _GONE))


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: Python's, a GPU's as PyTorch says it, or the host's as PyTorch says it."""
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or any(words in str(error) for words in _OUT_OF_MEMORY)
