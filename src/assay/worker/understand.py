"""Whether transformers, as it is here, understands settings of a generation; told by a fresh process."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, BadInput
from assay.worker.asking import answer_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def ask(settings: Mapping[str, Any]) -> str | None:
    """Return why it does not understand them; null: it does, or is not to be asked here."""
    refused = answer_of("assay.worker.understand", dict(settings)).get("refused")
    return None if refused is None else str(refused)


def understood(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer: ``refused``, where they make no sense."""
    from assay.workloads.generation.settings import check_understood

    try:
        check_understood(settings)
    except BadInput as error:
        return {"refused": str(error)}
    except AssayError as error:
        return {"error": str(error)}
    return {}


def main() -> int:
    """Answer the settings on standard input with one line of JSON."""
    print(json.dumps(understood(json.load(sys.stdin))))  # noqa: T201 - the answer to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
