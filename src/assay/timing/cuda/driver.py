"""The CUDA driver, as far as Assay calls it itself: to load and launch its own kernels, to count a graph's nodes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from assay.core.errors import MachineCannot

_COPY = 1
_ON_DEVICE = {0, _COPY, 2}  # kinds of nodes: kernels, copies and fills
_ACTIVE = 1  # the state of a stream that captures


@dataclass(frozen=True)
class Captured:
    """How many kernels, copies and fills were captured, how many of them copy, and whether some run side by side."""

    operations: int
    copies: int
    branches: bool


class Launch:
    """A kernel with its grid and its arguments, ready to be put on a stream."""

    def __init__(
        self, library: Any, function: ctypes.c_void_p, grid: int, block: int, arguments: tuple[int, ...]
    ) -> None:
        self._launch = library.cuLaunchKernel
        self._function = function
        self._shape = tuple(ctypes.c_uint(side) for side in (grid, 1, 1, block, 1, 1, 0))
        self._values = [ctypes.c_uint64(argument) for argument in arguments]
        self._pointers = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in self._values)
        )

    def __call__(self, stream: int) -> None:
        """Launch on a stream, given by its handle."""
        code = self._launch(self._function, *self._shape, ctypes.c_void_p(stream), self._pointers, None)
        if code:
            raise MachineCannot(f"The CUDA driver would not launch a kernel of Assay's ({_said(code)}).")


class Kernels:
    """Assay's own kernels, compiled by the driver for the GPU whose context is current."""

    def __init__(self) -> None:
        self._library = library()
        self._module = ctypes.c_void_p()
        source = resources.files(__package__).joinpath("kernels.ptx").read_bytes()
        code = self._library.cuModuleLoadData(ctypes.byref(self._module), source + b"\0")
        if code:
            raise MachineCannot(f"The CUDA driver would not load Assay's kernels ({_said(code)}).")

    def launch(self, name: str, *arguments: int, grid: int = 1, block: int = 1) -> Launch:
        """Return a launch of the kernel ``assay_name`` with 64-bit arguments."""
        function = ctypes.c_void_p()
        code = self._library.cuModuleGetFunction(ctypes.byref(function), self._module, f"assay_{name}".encode())
        if code:
            raise MachineCannot(f"The CUDA driver does not find assay_{name} ({_said(code)}).")
        return Launch(self._library, function, grid, block, arguments)


@cache
def library() -> Any:
    """Return the driver's library, or say that there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise MachineCannot(f"There is no CUDA driver here: {error}.") from None


def version() -> str:
    """Return the CUDA version of the driver: ``13.0``."""
    number = ctypes.c_int()
    if library().cuDriverGetVersion(ctypes.byref(number)):
        return "unknown"
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def captured(stream: int) -> Captured:
    """Return what a stream, given by its handle, has captured so far.

    Raises:
        MachineCannot: It is not capturing, or the driver does not say.
    """
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    _must(
        library().cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), None, None
        )
    )
    if status.value != _ACTIVE:
        raise MachineCannot("The CUDA driver says that nothing is being captured.")
    count, edges = ctypes.c_size_t(0), ctypes.c_size_t(0)
    _must(library().cuGraphGetNodes(graph, None, ctypes.byref(count)))
    _must(library().cuGraphGetEdges(graph, None, None, ctypes.byref(edges)))
    held = (ctypes.c_void_p * count.value)()
    if count.value:
        _must(library().cuGraphGetNodes(graph, held, ctypes.byref(count)))
    kinds = [_kind(node) for node in held]
    on_device = [kind for kind in kinds if kind in _ON_DEVICE]
    return Captured(len(on_device), on_device.count(_COPY), branches=edges.value != max(0, count.value - 1))


def _kind(node: int | None) -> int:
    kind = ctypes.c_int()
    _must(library().cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    return kind.value


def _must(code: int) -> None:
    if code:
        raise MachineCannot(f"The CUDA driver would not describe a graph ({_said(code)}).")


def _said(code: int) -> str:
    """Return the driver's words for an error."""
    words = ctypes.c_char_p()
    if library().cuGetErrorString(code, ctypes.byref(words)) or words.value is None:
        return f"error {code}"
    return words.value.decode()
