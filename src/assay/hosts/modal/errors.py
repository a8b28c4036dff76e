"""What an error of the SDK means: refused, not to be had now, or perhaps done all the same."""

from __future__ import annotations

from assay.core.errors import AssayError, MachineCannot
from assay.hosts.modal.credentials import GET_ONE, without_secrets
from assay.hosts.rented.provider import NoCapacity, Unanswered

_LONGEST = 300


def meaning(error: Exception, doing: str) -> AssayError:
    """Return what is to be raised in place of an error that came while something was done.

    ``doing`` is a clause: "when a sandbox was asked for". What is not known to have been refused may be done.
    """
    if isinstance(error, AssayError):
        return error
    message = in_short(error)
    for kinds, become, words in _meanings():
        if isinstance(error, kinds):
            if become is NoCapacity and "capacity" not in message.lower():
                continue
            return become(words.format(doing=doing, said=message))
    return Unanswered(f"Modal did not answer {doing}: {message}")


def _meanings() -> tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[AssayError], str], ...]:
    """Return what to raise, and in which words, by kinds of error; the first that fits counts."""
    from modal import exception as sdk

    return (
        (sdk.AuthError, MachineCannot, f"Modal does not accept the credentials: {{said}}; {GET_ONE}."),
        (
            sdk.PermissionDeniedError,
            MachineCannot,
            "Modal does not allow it {doing}: {said}; has the workspace a payment method?",
        ),
        (sdk.ResourceExhaustedError, NoCapacity, "Modal has no such machine free now: {said}."),
        (
            sdk.ResourceExhaustedError,
            MachineCannot,
            "A quota, spending or rate limit at Modal was reached {doing}: {said}; see the workspace's usage page.",
        ),
        (
            sdk.ImageBuildError,
            MachineCannot,
            "Modal could not build the image {doing}: {said}; name another with --image.",
        ),
        (sdk.AlreadyExistsError, Unanswered, "Modal has a sandbox of that name already: {said}"),
        (
            (sdk.VersionError, sdk.UnimplementedError),
            MachineCannot,
            "Modal does not serve this version of its SDK {doing}: {said}; update the package modal.",
        ),
        (sdk.ConflictError, MachineCannot, "The sandbox at Modal ended by itself {doing}: {said}."),
        ((sdk.InvalidError, sdk.NotFoundError), MachineCannot, "Modal refuses what was asked {doing}: {said}."),
    )


def in_short(error: BaseException) -> str:
    """Return an error's words on one line, without a credential."""
    words = " ".join(without_secrets(str(error)).split()).rstrip(".")
    if not words:
        words = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} …"
