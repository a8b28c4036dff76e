"""A user's own function: found without being run, called as it stands, refused in words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from assay.core.errors import BadInput
from assay.workloads.function import FunctionWorkload, is_function_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload


class Write(Protocol):
    """Writes a file of the user's into the working folder."""

    def __call__(self, text: str, name: str = "mine.py") -> None: ...


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Work in a folder that is not on the path, as under the installed command; forget what was imported there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def put(text: str, name: str = "mine.py") -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield put
    for name in set(sys.modules) - before:
        del sys.modules[name]


def prepare(spec: str, **params: str | int) -> PreparedWorkload:
    given: Params = dict(params)
    return FunctionWorkload(spec).prepare(given, None, device="cpu:0", seed=0)


@pytest.mark.parametrize("spec", ["f.py:go", "/a/b-c/f.py:go", "../f.py:go", "package.module:go", "module:go"])
def test_a_file_or_a_module_with_a_function_is_a_function_of_the_users(spec: str) -> None:
    assert is_function_spec(spec)


@pytest.mark.parametrize("spec", ["softmax", "softmax@numpy", "f.py", "f.py:", ":go", "cpu:0", "a/b:go", "f.py:a-b"])
def test_other_words_are_not(spec: str) -> None:
    assert not is_function_spec(spec)


def test_a_function_in_a_file_is_found_and_called(write: Write) -> None:
    write("def go():\n    return 42\n")
    FunctionWorkload("mine.py:go").check_source({})
    assert FunctionWorkload("mine.py:go").configs({}) == ()
    assert prepare("mine.py:go").call() == 42


def test_looking_for_a_function_does_not_run_the_file(write: Write) -> None:
    write("open('was-run', 'w')\ndef go(): pass\n")
    FunctionWorkload("mine.py:go").check_source({})
    assert not Path("was-run").exists()


@pytest.mark.parametrize(
    "text",
    [
        "go = lambda: 42\n",
        "if True:\n    def go(): return 42\nelse:\n    go = None\n",
        "try:\n    from nowhere import go\nexcept ImportError:\n    def go(): return 42\n",
        "from helper_of_mine import go\n",
        "from helper_of_mine import other as go\n",
        "from helper_of_mine import *\n",
        "class go:\n    def __new__(cls): return 42\n",
        "import functools\ngo = functools.partial(int, 42)\n",
        "\ufeffdef go(): return 42\n",
    ],
)
def test_it_does_not_matter_how_the_file_comes_by_the_function(write: Write, text: str) -> None:
    write("def go(): return 42\nother = go\n", "helper_of_mine.py")
    write(text)
    FunctionWorkload("mine.py:go").check_source({})
    assert prepare("mine.py:go").call() == 42


def test_a_file_may_be_written_in_an_encoding_it_declares(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes("# coding: latin-1\ndef go(): return 'é'\n".encode("latin-1"))
    FunctionWorkload("mine.py:go").check_source({})
    assert prepare("mine.py:go").call() == "é"


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        ("def go(): pass\n", "goo", r"^mine\.py defines no 'goo'\. Did you mean go\?$"),
        ("", "go", r"^mine\.py defines no 'go'\.$"),
        ("class Bench:\n    def go(self): pass\n", "go", r"^mine\.py defines no 'go'\."),
        ("def outer():\n    def go(): pass\n", "go", r"^mine\.py defines no 'go'\."),
        ("def go(:\n", "go", r"^mine\.py is not a Python file: .*line 1"),
        ("x = '\0'\n", "go", r"^mine\.py is not a Python file: "),
    ],
)
def test_a_file_without_the_function_is_bad_input(write: Write, text: str, function: str, message: str) -> None:
    write(text)
    with pytest.raises(BadInput, match=message) as caught:
        FunctionWorkload(f"mine.py:{function}").check_source({})
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_text_is_bad_input(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"\xff\xfe\x00\x80" * 9)
    with pytest.raises(BadInput, match=r"^mine\.py is not a Python file: "):
        FunctionWorkload("mine.py:go").check_source({})


def test_a_file_that_cannot_be_read_is_bad_input(write: Write, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^mine\.py cannot be read: No such file or directory\.$"):
        FunctionWorkload("mine.py:go").check_source({})
    (tmp_path / "mine.py").mkdir()
    with pytest.raises(BadInput, match=r"^mine\.py is no file of Python code\.$"):
        FunctionWorkload("mine.py:go").check_source({})


@pytest.mark.parametrize(
    "text", ["async def go(): pass\n", "def go():\n    yield 1\n", "async def go():\n    yield 1\n"]
)
def test_a_function_that_would_do_nothing_when_called_is_refused(write: Write, text: str) -> None:
    write(text)
    with pytest.raises(BadInput, match="only makes a coroutine or generator when called; wrap it"):
        prepare("mine.py:go")


def test_a_function_that_needs_arguments_says_which_are_missing(write: Write) -> None:
    write("def go(n, *, how): pass\n")
    with pytest.raises(BadInput, match=r"^mine\.py:go cannot be called with no arguments: .*'n'\.$"):
        prepare("mine.py:go")
    with pytest.raises(BadInput, match=r"^mine\.py:go cannot be called with \{'n': 1\}: .*'how'\.$"):
        prepare("mine.py:go", n=1)


def test_a_parameter_that_the_function_does_not_take_is_refused(write: Write) -> None:
    write("def go(n=1): pass\n")
    with pytest.raises(BadInput, match="unexpected keyword argument 'm'"):
        prepare("mine.py:go", m=2)


def test_parameters_are_passed_by_name(write: Write) -> None:
    write("def go(n, how='slow', **others): return n, how, others\n")
    assert prepare("mine.py:go", n=3).call() == (3, "slow", {})
    assert prepare("mine.py:go", n=3, how="fast", x=1).call() == (3, "fast", {"x": 1})


def test_what_is_no_function_is_refused(write: Write) -> None:
    write("go = 42\n")
    with pytest.raises(BadInput, match=r"^mine\.py:go is not a function\.$"):
        prepare("mine.py:go")


def test_a_function_that_says_how_to_wait_for_it_is_waited_for(write: Write) -> None:
    write("done = []\ndef go(): pass\ngo.synchronize = lambda: done.append(1)\ndef finished(): return done\n")
    prepared = prepare("mine.py:go")
    prepared.call()
    prepared.synchronize()
    assert sys.modules[prepared.call.func.__module__].done == [1]  # type: ignore[attr-defined]


def test_a_file_may_use_its_neighbours_wherever_it_lies(write: Write, tmp_path: Path) -> None:
    write("VALUE = 7\n", "deep/folder/neighbour_of_mine.py")
    write("import neighbour_of_mine\ndef go(): return neighbour_of_mine.VALUE\n", "deep/folder/mine.py")
    assert prepare("deep/folder/mine.py:go").call() == 7
    assert prepare(f"{tmp_path}/deep/folder/mine.py:go").call() == 7


def test_two_files_of_one_name_do_not_get_in_each_others_way(write: Write) -> None:
    for number in (1, 2):
        write(f"NUMBER = {number}\ndef go(): return NUMBER\n", f"v{number}/mine.py")
    first, second = prepare("v1/mine.py:go"), prepare("v2/mine.py:go")
    assert (first.call(), second.call()) == (1, 2)


def test_a_module_of_the_working_folder_is_found_as_the_worker_will_find_it(write: Write) -> None:
    write("", "package_of_mine/__init__.py")
    write("def go(n): return n + 1\n", "package_of_mine/deep.py")
    FunctionWorkload("package_of_mine.deep:go").check_source({})
    assert prepare("package_of_mine.deep:go", n=1).call() == 2


def test_a_module_that_is_installed_is_found_and_functions_written_in_c_may_be_timed(write: Write) -> None:
    FunctionWorkload("math:hypot").check_source({})
    assert prepare("math:hypot").call() == 0.0
    assert isinstance(prepare("time:time").call(), float)


def test_a_module_that_is_not_there_is_bad_input(write: Write) -> None:
    with pytest.raises(BadInput, match=r"^There is no module 'nowhere_to_be_found\.deep'"):
        FunctionWorkload("nowhere_to_be_found.deep:go").check_source({})


def test_a_module_without_the_function_is_bad_input(write: Write) -> None:
    with pytest.raises(BadInput, match=r"^math:hypotenuse is not a function\.$"):
        prepare("math:hypotenuse")
