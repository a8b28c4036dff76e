"""Why a model cannot be read, in one sentence, from what transformers and the hub's client raise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable

INSTEAD = "give a folder that holds it, or random:llama-1b and the like, whose weights are random"
_NOT_THERE = ("couldn't connect", "can't load", "does not appear to have a file", "cached files")


def not_read(model: str, revision: str, error: Exception) -> AssayError:
    """Return why a model of the hub or of a folder could not be read."""
    if isinstance(error, AssayError):
        return error
    of = f"{model}{f' at revision {revision}' if revision else ''}"
    for applies, explain in _REASONS:
        if applies(_chain(error)):
            return explain(of)
    lines = str(error).strip().splitlines()
    reason = lines[0].rstrip(".") if lines else type(error).__name__
    return MachineCannot(f"The model {of} cannot be read: {reason}.")


def _is(name: str) -> Callable[[list[BaseException]], bool]:
    """Return what finds an error of the hub's client, by the name of its kind."""

    def matches(causes: list[BaseException]) -> bool:
        from huggingface_hub import errors

        return any(isinstance(cause, getattr(errors, name)) for cause in causes)

    return matches


def _wants_trust(causes: list[BaseException]) -> bool:
    return "trust_remote_code" in str(causes[0])


def _is_not_there(causes: list[BaseException]) -> bool:
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    kinds = (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError, TimeoutError)
    return any(
        isinstance(cause, kinds)
        or (isinstance(cause, OSError) and any(word in str(cause).lower() for word in _NOT_THERE))
        for cause in causes
    )


def _no_name(of: str) -> AssayError:
    return BadInput(f"{of!r} is neither a folder nor a name of the hub, which is written OWNER/NAME.")


def _own_code(of: str) -> AssayError:
    return MachineCannot(
        f"The model {of} brings its own code, which is not run unless backend.trust_remote_code is true: "
        "that code can do anything that you can."
    )


def _gated(of: str) -> AssayError:
    return MachineCannot(f"The model {of} is gated: its owner must let you in, and you must log in to the hub.")


def _no_revision(of: str) -> AssayError:
    return MachineCannot(f"The hub does not have the model {of}: there is no such revision.")


def _not_on_hub(of: str) -> AssayError:
    return MachineCannot(f"The hub has no model {of}, or none that you may see; {INSTEAD}.")


def _not_here(of: str) -> AssayError:
    from huggingface_hub import is_offline_mode

    why = "the hub is not asked, as HF_HUB_OFFLINE says" if is_offline_mode() else "the hub cannot be reached"
    return MachineCannot(f"The model {of} is not in the cache here, and {why}; {INSTEAD}.")


_REASONS: tuple[tuple[Callable[[list[BaseException]], bool], Callable[[str], AssayError]], ...] = (
    (_is("HFValidationError"), _no_name),
    (_wants_trust, _own_code),
    (_is("GatedRepoError"), _gated),
    (_is("RevisionNotFoundError"), _no_revision),
    (_is("RepositoryNotFoundError"), _not_on_hub),
    (_is_not_there, _not_here),
)


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and all that led to it."""
    causes: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in causes:
        causes.append(one)
        one = one.__cause__ or one.__context__
    return causes
