"""Let `pynvml` in this process speak to the fake.

pynvml loads `libnvidia-ml.so.1` once and remembers it. `attached` hands it the fake under another name, for a
while and without a trace. `preload` is the other way, for a whole process: once a library whose SONAME is
`libnvidia-ml.so.1` is in it, the dynamic loader gives that one to whoever asks by this name, pynvml or PyTorch.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.fakes.nvml_build import DRIVER_NAME
from tests.fakes.nvml_mapping import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from tests.fakes.nvml_mapping import Mapped

VARIABLES = ("LD_LIBRARY_PATH", ENVIRONMENT)


@contextmanager
def attached(fake: Mapped) -> Iterator[ModuleType]:
    """Give `pynvml`, not yet initialised, with the fake behind it; child processes find the fake too.

    At the end NVML is shut down however often it was initialised, and pynvml is as it was. Not to be nested: one
    library serves one scenario at a time.
    """
    import pynvml

    before = (pynvml.nvmlLib, pynvml._nvmlLib_refcount, dict(pynvml._nvmlGetFunctionPointer_cache))
    changed = {name: os.environ.get(name) for name in VARIABLES}
    library = ctypes.CDLL(str(fake.library.with_name(DRIVER_NAME)))
    _shut_down(library)
    _hand_over(pynvml, library, 0, {})
    os.environ.update(fake.env())
    try:
        yield pynvml
    finally:
        _shut_down(library)
        _hand_over(pynvml, *before)
        _restore(changed)


def preload(fake: Mapped) -> None:
    """Put the fake into this process for good, in place of any NVML that is not loaded yet."""
    ctypes.CDLL(str(fake.library), mode=ctypes.RTLD_GLOBAL)
    os.environ.update(fake.env())


def _hand_over(pynvml: Any, library: ctypes.CDLL | None, users: int, functions: dict[str, object]) -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlLib_refcount = users
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlGetFunctionPointer_cache.update(functions)


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _shut_down(library: ctypes.CDLL) -> None:
    while library.nvmlShutdown() == 0:
        pass
