"""A user's own function as a workload: ``path/file.py:function`` or ``package.module:function``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from assay.core.errors import BadInput, nearest
from assay.workloads.base import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from assay.core.values import Params

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_function_spec(spec: str) -> bool:
    """Return whether a word names a function in a file or a module."""
    place, colon, name = spec.rpartition(":")
    return bool(colon and name.isidentifier() and (place.endswith(".py") or _MODULE.fullmatch(place)))


class FunctionWorkload:
    """A function of the user's, called with the parameters as keyword arguments.

    Data belongs at module level or in a cache of the function: whatever the call does is timed. A function
    with an attribute ``synchronize`` has that called before the clock is read.
    """

    impl = "python"
    device_kinds = frozenset({"cpu", "cuda"})

    def __init__(self, spec: str) -> None:
        self.name = spec
        self.summary = f"the function {spec}"
        self._place, _, self._function = spec.rpartition(":")

    def defaults(self) -> Params:
        """Return no parameters, having made sure without running it that the function is there."""
        if self._place.endswith(".py"):
            self._look_into(Path(self._place))
        elif importlib.util.find_spec(self._place.partition(".")[0]) is None:
            raise BadInput(f"There is no module {self._place!r} to be found by this interpreter.")
        return {}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: a function is not tuned."""
        return ()

    def prepare(
        self,
        params: Params,
        config: Params | None,
        *,
        device: str,
        seed: int,
    ) -> Prepared:
        """Import the function and bind its parameters."""
        function = self._load()
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise BadInput(f"{self.name} only makes a coroutine or generator when called; wrap it in a plain function.")
        try:
            inspect.signature(function).bind(**params)
        except TypeError as error:
            raise BadInput(f"{self.name} cannot be called with {params or 'no arguments'}: {error}.") from None
        synchronize = getattr(function, "synchronize", None)
        call = partial(function, **params)
        return Prepared(call=call, synchronize=synchronize) if callable(synchronize) else Prepared(call=call)

    def _look_into(self, path: Path) -> None:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
        except (SyntaxError, ValueError) as error:
            raise BadInput(f"{path} is not a Python file: {error}.") from None
        names = set(_defined(tree))
        if self._function not in names:
            raise BadInput(f"{path} defines no {self._function!r}.{nearest(self._function, names)}")

    def _load(self) -> Callable[..., object]:
        module = _import_file(Path(self._place)) if self._place.endswith(".py") else _import_module(self._place)
        function = getattr(module, self._function, None)
        if not callable(function):
            raise BadInput(f"{self.name} is not a function.")
        return cast("Callable[..., object]", function)


def _defined(tree: ast.Module) -> list[str]:
    """Return the names a module binds at its top level, by definition, assignment or import."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.alias):
            names.append((node.asname or node.name).partition(".")[0])
    return names


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Run a file as a module, with its own folder first on the path, as Python would."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"assay_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
