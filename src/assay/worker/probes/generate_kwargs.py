"""Check whether the installed transformers accepts the settings of a generation."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, BadInput
from assay.worker.probes import query_subprocess

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_generate_kwargs(settings: Mapping[str, Any]) -> str | None:
    """Return why transformers rejects the settings; null: it accepts them, or could not be asked."""
    refused = query_subprocess("assay.worker.probes.generate_kwargs", dict(settings)).get("refused")
    return None if refused is None else str(refused)


def validate_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply: ``refused``, if the settings are invalid."""
    from assay.workloads.generation.params import check_supported_settings

    try:
        check_supported_settings(settings)
    except BadInput as error:
        return {"refused": str(error)}
    except AssayError as error:
        return {"error": str(error)}
    return {}


def main() -> int:
    """Validate the settings on standard input and print one line of JSON."""
    print(json.dumps(validate_settings(json.load(sys.stdin))))  # noqa: T201 - the reply to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
