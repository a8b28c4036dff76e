"""A user's own function as a workload: ``path/file.py:function`` or ``package.module:function``."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from dataclasses import replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, cast

from assay.core.errors import BadInput, suggest_nearest
from assay.workloads.base import PreparedWorkload, UntunedWorkload

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from assay.core.values import Params

_MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_function_spec(spec: str) -> bool:
    """Return whether a text names a function in a file or a module."""
    location, colon, name = spec.rpartition(":")
    return bool(colon and name.isidentifier() and (location.endswith(".py") or _MODULE_NAME.fullmatch(location)))


class FunctionWorkload(UntunedWorkload):
    """A user function, called with the parameters as keyword arguments.

    Data belongs at module level or in a cache of the function: whatever the call does is timed. The function's
    attribute ``synchronize`` is called before the clock is read. Its attribute ``tolerance`` is the relative error that
    passes when its output is compared with that of another function.
    """

    impl = "python"
    device_kinds = frozenset({"cpu", "cuda"})

    def __init__(self, spec: str) -> None:
        location, _, self._function = spec.rpartition(":")
        self._location = os.path.normpath(location) if location.endswith(".py") else location
        self.name = f"{self._location}:{self._function}"
        self.summary = f"the function {self.name}"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return no parameters: the user supplies those of a function."""
        return {}

    def check_source(self, params: Params) -> None:
        """Check, without running user code, that the function exists and takes the parameters.

        A module may be in the working folder, which is searched too in the worker.
        """
        if self._location.endswith(".py"):
            self._check_file(Path(self._location), params)
            return
        module = self._location.partition(".")[0]
        if importlib.util.find_spec(module) is None and PathFinder.find_spec(module, [str(Path.cwd())]) is None:
            raise BadInput(f"There is no module {self._location!r} to be found by this interpreter.")

    def digest(self) -> str | None:
        """Return a hash of the function's file; null for a module, whose file is not known yet."""
        if not self._location.endswith(".py"):
            return None
        return hashlib.sha256(Path(self._location).read_bytes()).hexdigest()[:16]

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Import the function and bind its parameters."""
        function = self._load()
        lazy = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(is_lazy(function) for is_lazy in lazy):
            raise BadInput(f"{self.name} only makes a coroutine or generator when called; wrap it in a plain function.")
        try:
            inspect.signature(function).bind(**params)
        except TypeError as error:
            raise BadInput(f"{self.name} cannot be called with {params or 'no arguments'}: {error}.") from None
        except ValueError:
            pass  # some C functions have no signature
        tolerance = getattr(function, "tolerance", None)
        is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
        if tolerance is not None and not (is_number and 0 <= tolerance < 1):
            raise BadInput(f"The tolerance of {self.name} is a relative error from 0 to 1, not {tolerance!r}.")
        prepared = PreparedWorkload(
            call=partial(function, **params), tolerance=None if tolerance is None else float(tolerance)
        )
        synchronize = getattr(function, "synchronize", None)
        if not callable(synchronize):
            return prepared
        return replace(prepared, synchronize=synchronize, synchronizes_itself=True)

    def _check_file(self, path: Path, params: Params) -> None:
        try:
            if path.exists() and not path.is_file():
                raise BadInput(f"{path} is no file of Python code.")
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.") from None
        except (SyntaxError, ValueError) as error:
            raise BadInput(f"{path} is not a Python file: {error}.") from None
        except (RecursionError, MemoryError):
            raise BadInput(f"{path} is not a usable Python file: it is nested too deeply.") from None
        names = set(_defined_names(tree))
        if self._function not in names and "*" not in names:
            raise BadInput(f"{path} defines no {self._function!r}.{suggest_nearest(self._function, names)}")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == self._function and not node.decorator_list:
                _check_signature(node, params, self.name)

    def _load(self) -> Callable[..., object]:
        if self._location.endswith(".py"):
            module = _import_file(Path(self._location))
        else:
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(self._location)
        function = getattr(module, self._function, None)
        if not callable(function):
            raise BadInput(f"{self.name} is not a function.")
        return cast("Callable[..., object]", function)


def _check_signature(function: ast.FunctionDef, params: Params, name: str) -> None:
    """Check parameters against a function's signature in the source."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    required = positional[: len(positional) - len(arguments.defaults)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required += [argument.arg for argument, default in keywords if default is None]
    missing = [argument for argument in required if argument not in params]
    if missing:
        raise BadInput(f"{name} needs {', '.join(missing)}; set it with --param {missing[0]}=VALUE.")
    accepted = [*positional, *(argument.arg for argument in arguments.kwonlyargs)]
    unknown = [param for param in params if param not in accepted and arguments.kwarg is None]
    if unknown:
        raise BadInput(f"{name} takes no {unknown[0]!r}.{suggest_nearest(unknown[0], accepted)}")


def _defined_names(tree: ast.Module) -> list[str]:
    """Return the names a module binds at its top level, by definition, assignment or import."""
    names: list[str] = []
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.alias):
            names.append((node.asname or node.name).partition(".")[0])
        pending.extend(ast.iter_child_nodes(node))
    return names


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module, with its own folder first on the path, as Python does."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"assay_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
