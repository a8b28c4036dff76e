"""The examples in the docstrings of the public functions are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["measure", "compare", "pick", "do_bench"])
def test_the_example_of_a_function_is_true(name: str) -> None:
    module = importlib.import_module(f"assay.timing.{name}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.attempted >= 2
    assert results.failed == 0
