"""Entry point of a worker that runs under another interpreter.

It is run as a file: it loads this installation of Assay, even if that interpreter has another one or none, and
leaves all other imports to the interpreter.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def load_assay() -> None:
    """Import the package ``assay`` from this file's location, independent of ``sys.path``."""
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "assay", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} is not a package")
    sys.modules["assay"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load_assay()
    sys.exit(importlib.import_module("assay.worker.main").main(sys.argv[1:]))
