"""Which workload the user's words mean."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.workloads import registry
from assay.workloads.registry import (
    complete_params,
    find_workload,
    parse_as,
    parse_scalar,
    registered_workloads,
    resolve_subject,
)

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.values import Scalar

PLUGIN = """
from assay.workloads.base import PreparedWorkload

class Toy:
    name = "toy"
    summary = "a plug-in's workload"

    def __init__(self, impl, kinds=("cpu", "cuda")):
        self.impl, self.device_kinds = impl, frozenset(kinds)

    def defaults(self, device_kind="cpu"):
        return {"n": 3, "scale": 1.5, "causal": False, "dtype": "float32"}

    def configs(self, params):
        return ({"block": params["n"]}, {"block": 1})

    def prepare(self, params, config, *, device, seed):
        return PreparedWorkload(call=lambda: (params["n"], self.impl))

NUMPY, TORCH, ODD, GPU = Toy("numpy"), Toy("torch"), Toy("odd"), Toy("odd", ("cuda",))
"""


class Install(Protocol):
    """Puts a distribution with entry points on the path, as installing a plug-in does."""

    def __call__(self, points: dict[str, str]) -> None: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    def put(points: dict[str, str]) -> None:
        (tmp_path / "assay_toy.py").write_text(textwrap.dedent(PLUGIN))
        (tmp_path / "assay_toy_broken.py").write_text("import a_module_that_nobody_has\n")
        info = tmp_path / "assay_toy-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: assay-toy\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = {target}" for name, target in points.items())
        (info / "entry_points.txt").write_text(f"[assay.workloads]\n{lines}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "assay_toy", raising=False)

    return put


@pytest.fixture
def toy(install: Install) -> None:
    install({"toy@numpy": "assay_toy:NUMPY", "toy@torch": "assay_toy:TORCH", "toy@odd": "assay_toy:ODD"})


def test_every_registered_workload_is_what_its_key_says() -> None:
    for key, entry in registered_workloads().items():
        name, _, impl = key.partition("@")
        assert (entry.name, entry.impl) == (name, impl)
        if impl == "numpy":
            workload = entry.load()
            assert (workload.name, workload.impl) == (name, impl)
            assert workload.device_kinds <= {"cpu", "cuda"}


def test_a_workload_is_meant_with_its_default_parameters_and_first_configuration() -> None:
    meant = resolve_subject("softmax@numpy", device_kind="cpu")
    workload = find_workload("softmax", "numpy")
    assert (meant.workload, meant.impl, meant.label) == ("softmax", "numpy", "softmax@numpy")
    assert meant.params == workload.defaults()
    assert meant.config == workload.configs(meant.params)[0]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("flash_attention_v2@numpy", "flash_attention"),
        ("flash-attention-v2@numpy", "flash_attention"),
        ("gemm_benchmark@numpy", "gemm"),
        ("gemm-benchmark@numpy", "gemm"),
    ],
)
def test_names_of_the_older_tools_mean_the_same_workloads(alias: str, name: str) -> None:
    assert resolve_subject(alias, device_kind="cpu") == resolve_subject(f"{name}@numpy", device_kind="cpu")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "sofmax",
            "Unknown workload 'sofmax'; `assay list` shows them, and file.py:function names one of yours. Did you",
        ),
        ("sofmax", "Did you mean softmax"),
        ("gem_benchmark", "gemm_benchmark"),
        ("", "Unknown workload ''"),
        ("@numpy", "Unknown workload '@numpy'"),
        ("softmax@numpi", "Unknown workload 'softmax@numpi'. Did you mean softmax@numpy"),
        ("softmx@numpy", "Did you mean softmax@numpy"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest_ones(spec: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        resolve_subject(spec, device_kind="cpu")
    assert message in str(caught.value)


def test_a_name_that_resembles_nothing_gets_no_suggestion() -> None:
    with pytest.raises(BadInput, match=r"of yours\.$"):
        resolve_subject("qqq", device_kind="cpu")


def test_an_implementation_that_does_not_run_on_the_device_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^softmax@numpy runs on cpu, not on cuda\.$") as caught:
        resolve_subject("softmax@numpy", device_kind="cuda")
    assert caught.value.exit_code == 2


def test_a_plug_in_that_only_runs_on_gpus_says_so(install: Install) -> None:
    install({"toy@odd": "assay_toy:GPU"})
    assert resolve_subject("toy@odd", device_kind="cuda").impl == "odd"
    with pytest.raises(BadInput, match=r"^toy@odd runs on cuda, not on cpu\.$"):
        resolve_subject("toy@odd", device_kind="cpu")


@pytest.mark.usefixtures("toy")
def test_an_installed_plug_in_is_found_beside_what_is_built_in() -> None:
    assert {"toy@numpy", "toy@torch", "toy@odd", "softmax@numpy"} <= set(registered_workloads())
    meant = resolve_subject("toy@odd", device_kind="cpu", explicit={"n": "8"})
    assert (meant.params["n"], meant.config) == (8, {"block": 8})
    prepared = find_workload("toy", "odd").prepare(meant.params, meant.config, device="cpu:0", seed=0)
    assert prepared.call() == (8, "odd")


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("kind", "installed", "impl"),
    [("cpu", {"torch", "numpy"}, "torch"), ("cpu", {"numpy"}, "numpy"), ("cuda", {"torch", "numpy"}, "torch")],
)
def test_without_an_implementation_the_preferred_one_that_is_installed_is_meant(
    kind: str, installed: set[str], impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: object() if name in installed else None)
    assert resolve_subject("toy", device_kind=kind).impl == impl


def test_a_plug_in_cannot_take_the_name_of_what_is_built_in(install: Install) -> None:
    install({"softmax@numpy": "assay_toy:NUMPY"})
    assert find_workload("softmax", "numpy").name == "softmax"


@pytest.mark.parametrize("target", ["assay_toy_broken:TOY", "assay_toy_missing:TOY", "assay_toy:NO_SUCH_NAME"])
def test_a_plug_in_that_cannot_be_loaded_says_what_is_missing(install: Install, target: str) -> None:
    install({"toy@odd": target})
    with pytest.raises(MachineCannot, match=r"^The workload 'toy@odd' cannot be loaded here: .*[Nn]o ") as caught:
        resolve_subject("toy@odd", device_kind="cpu")
    assert caught.value.exit_code == 3


@pytest.mark.usefixtures("toy")
def test_given_parameters_are_read_as_the_type_of_their_default() -> None:
    given_texts = {"n": "8", "scale": "2", "causal": "yes", "dtype": "8"}
    meant = resolve_subject("toy@odd", device_kind="cpu", explicit=given_texts)
    assert meant.params == {"n": 8, "scale": 2.0, "causal": True, "dtype": "8"}
    assert [type(value) for value in meant.params.values()] == [int, float, bool, str]


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m", "1", r"^toy has no parameter 'm'; it has n, scale, causal, dtype\."),
        ("scal", "1", r"Did you mean scale"),
        ("n", "8.5", r"^Parameter n must be a whole number, not '8\.5'\.$"),
        ("n", "", r"^Parameter n must be a whole number, not ''\.$"),
        ("scale", "wide", r"^Parameter scale must be a number, not 'wide'\.$"),
        ("scale", "nan", r"^Parameter scale must be a number, not 'nan'\.$"),
        ("scale", "inf", r"^Parameter scale must be a number, not 'inf'\.$"),
        ("causal", "maybe", r"^Parameter causal must be true or false, not 'maybe'\.$"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_answered_in_words(name: str, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        complete_params(find_workload("toy", "odd"), {name: text})


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("No", False), ("1", True), ("0", False), ("YES", True), ("False", False)],
)
def test_true_and_false_may_be_written_as_people_write_them(text: str, value: bool) -> None:
    assert parse_as(True, text, "p") is value


@settings(deadline=None)
@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_written_out_is_read_back_as_itself(number: float) -> None:
    assert parse_as(number, repr(number), "p") == number
    assert parse_scalar(repr(number)) == number
    assert type(parse_scalar(repr(number))) is type(number)


@pytest.mark.parametrize(
    ("text", "value"),
    [("True", True), ("false", False), ("12", 12), ("1.5", 1.5), ("1e3", 1000.0), ("fast", "fast"), ("", "")],
)
def test_a_parameter_without_a_default_is_read_as_plainly_as_it_can_be(text: str, value: Scalar) -> None:
    assert parse_scalar(text) == value
    assert type(parse_scalar(text)) is type(value)


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999"])
def test_what_no_file_could_hold_as_a_number_stays_text(text: str) -> None:
    assert parse_scalar(text) == text


def test_a_users_function_is_meant_by_its_file_and_takes_its_parameters_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def f(n, how): pass\n")
    monkeypatch.chdir(tmp_path)
    meant = resolve_subject("mine.py:f", device_kind="cuda", explicit={"n": "3", "how": "fast"})
    assert (meant.workload, meant.impl, meant.label) == ("mine.py:f", "python", "mine.py:f")
    assert meant.params == {"n": 3, "how": "fast"}
    given = {"n": "3", "how": "fast"}
    assert resolve_subject("./mine.py:f@python", device_kind="cpu", explicit=given).workload == "mine.py:f"


def test_a_users_function_has_no_other_implementation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def f(): pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"^mine\.py:f is a function of yours and has no implementation 'numpy'\.$"):
        resolve_subject("mine.py:f@numpy", device_kind="cpu")


def test_a_folder_may_have_an_at_sign_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "me@work"
    folder.mkdir()
    (folder / "mine-too.py").write_text("def f(): pass\n")
    spec = f"{folder}/mine-too.py:f"
    assert resolve_subject(spec, device_kind="cpu").workload == spec


@pytest.mark.parametrize("key", list(registry.BUILT_IN))
def test_every_built_in_workload_tells_its_parameters_also_where_it_cannot_run(key: str) -> None:
    workload = registry.registered_workloads()[key].load()
    assert f"{workload.name}@{workload.impl}" == key
    for kind in workload.device_kinds:
        params = workload.defaults(kind)
        assert params
        registry.check_params(workload, params)
        assert list(workload.configs(params)) == list(workload.configs(dict(params)))
