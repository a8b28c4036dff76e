"""The values everyone speaks: frozen, strict, the same after a trip through JSON, and known by their content."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from assay.core import page, results, values
from assay.core.page import build_table
from assay.core.results import Check, Estimate, Finding, Findings, Record, Window
from assay.core.values import (
    SCHEMA_VERSION,
    Adaptive,
    Block,
    Command,
    Continuous,
    Counted,
    Metric,
    Paired,
    Role,
    SourceCheckout,
    Staged,
    Subject,
    Trial,
    Tuner,
    Value,
)

SUBJECT = Subject(workload="softmax", impl="numpy", params={"rows": 4})
ROLE = Role(name="timed", subjects=(SUBJECT,), devices=("cpu:0",))
MODE = Adaptive(duration_s=1.0)
TUNER = Tuner(name="pick", budget_s=1.0)
PAIR = ROLE.model_copy(update={"subjects": (SUBJECT, SUBJECT)})
TRIAL = Trial(block="b", roles=(ROLE,), mode=MODE)
PAIRED = Trial(block="b", roles=(PAIR,), mode=Paired(duration_s=1.0, rounds=4))
STAGED = Trial(block="b", roles=(ROLE,), mode=Staged(duration_s=1.0, stage_s=1.0))
ESTIMATE = Estimate(value=2.0, low=1.0, high=3.0, unit="µs", scope="run", method="median", n=9)
WINDOW = Window(host="h", boot_id="b", start_ns=1, end_ns=2, started_at="2026-11-15T09:30:00+00:00")
RECORD = Record(trial=TRIAL.id, block="b", attempt=1, window=WINDOW, status="ok")

names = st.text(min_size=1, max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), numbers, st.text(max_size=8))
params = st.dictionaries(names, scalars, max_size=3)
commands = st.builds(
    Command,
    argv=st.lists(names, min_size=1, max_size=3).map(tuple),
    metrics=st.lists(st.builds(Metric, name=names, pattern=st.text(max_size=8)), max_size=2).map(tuple),
)
subjects = st.builds(
    Subject,
    workload=names,
    impl=names,
    params=params,
    config=st.none() | params,
    command=st.none() | commands,
    source=st.none() | st.builds(SourceCheckout, checkout=names, interpreter=names),
)
durations = st.floats(min_value=1e-6, max_value=1e6)
modes = st.one_of(
    st.builds(
        Adaptive,
        duration_s=durations,
        warmup_runs=st.none() | st.integers(0, 9),
        precision=st.none() | st.floats(min_value=1e-6, max_value=0.999),
    ),
    st.builds(Counted, duration_s=durations, warmup_runs=st.none() | st.integers(0, 9), runs=st.integers(1, 9)),
    st.builds(Continuous, duration_s=durations, duty=st.floats(min_value=0.01, max_value=1.0)),
)
roles = st.builds(
    Role,
    name=names,
    subjects=st.lists(subjects, min_size=1, max_size=2).map(tuple),
    devices=st.just(("cpu:0",)),
    isolation=st.sampled_from(["none", "gpu", "cpu", "numa", "full"]),
)
trials = st.builds(
    Trial,
    block=names,
    roles=st.lists(roles, min_size=1, max_size=2, unique_by=lambda role: role.name).map(tuple),
    schedule=st.sampled_from(["alone", "together"]),
    mode=modes,
    restarts=st.integers(1, 9),
    settings=params,
    seed=st.integers(),
)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    low, high = draw(st.sampled_from([(None, None), (1.0, 3.0)]))
    value, n, unit = draw(numbers), draw(st.integers(1, 99)), draw(st.text(max_size=4))
    return Estimate(value=value, low=low, high=high, unit=unit, scope="process", method="median", n=n)


findings = st.builds(
    Findings,
    headline=st.text(max_size=8),
    findings=st.lists(
        st.builds(
            Finding,
            claim=names,
            estimate=st.none() | estimates(),
            verdict=st.sampled_from(["yes", "no", "unsure"]),
            records=st.lists(names, max_size=2).map(tuple),
            facts=params,
        ),
        max_size=2,
    ).map(tuple),
)


def every_value() -> list[type[Value]]:
    """Return every class of values that values, results and page define."""
    here = {m.__name__ for m in (values, results, page)}
    return [kind for kind in Value.__subclasses__() if kind.__module__ in here]


def changed(value: Value, field: str, to: object) -> dict[str, Any]:
    """Return a value's content with one field replaced, as a caller would give it."""
    return {**{name: getattr(value, name) for name in type(value).model_fields}, field: to}


def through_json(value: Value) -> Value:
    return type(value).model_validate_json(json.dumps(value.as_json()))


def test_there_are_values_to_look_at() -> None:
    assert {Subject, Trial, Record, Finding, page.Page} <= set(every_value())


@pytest.mark.parametrize("kind", every_value(), ids=lambda kind: kind.__name__)
def test_every_value_refuses_keys_it_does_not_know(kind: type[Value]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"no_such_key": 1})
    assert ("no_such_key",) in [problem["loc"] for problem in caught.value.errors()]


@pytest.mark.parametrize("kind", every_value(), ids=lambda kind: kind.__name__)
def test_every_value_is_frozen(kind: type[Value]) -> None:
    value = kind.model_construct()
    for name in kind.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(value, name, None)


def test_a_misspelt_key_is_named_in_the_error() -> None:
    with pytest.raises(ValidationError, match="warmup_run\n"):
        Adaptive.model_validate({"duration_s": 1.0, "warmup_run": 3})


@settings(deadline=None, max_examples=60)
@given(trials)
def test_a_trial_is_the_same_after_a_trip_through_json(trial: Trial) -> None:
    back = through_json(trial)
    assert back == trial
    assert isinstance(back, Trial)
    assert back.id == trial.id
    assert Trial.model_validate_json(trial.model_dump_json()).id == trial.id


@settings(deadline=None, max_examples=30)
@given(params)
def test_a_parameter_keeps_its_type_on_a_trip_through_json(given_params: dict[str, Any]) -> None:
    back = through_json(Subject(workload="w", impl="i", params=given_params))
    assert isinstance(back, Subject)
    assert [(k, type(v), v) for k, v in back.params.items()] == [(k, type(v), v) for k, v in given_params.items()]


@settings(deadline=None, max_examples=30)
@given(findings)
def test_findings_are_the_same_after_a_trip_through_json(found: Findings) -> None:
    assert through_json(found) == found


@settings(deadline=None, max_examples=30)
@given(st.lists(estimates(), max_size=2))
def test_a_record_is_the_same_after_a_trip_through_json(energies: list[Estimate]) -> None:
    record = RECORD.model_copy(update={"energy": energies[0] if energies else None})
    assert through_json(record) == record
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_a_page_with_every_kind_of_element_is_the_same_after_a_trip_through_json() -> None:
    line = page.PlotLine(label="l", x=(1.0, 2.0), y=(1.0, None), low=(0.5, None), high=(1.5, None))
    elements = (
        page.Text(text="t", tone="bad"),
        page.Table(title="t", columns=(page.Column(title="c", numeric=True),), rows=((1,), (1.5,), ("x",), (None,))),
        page.StripPlot(
            title="s", name="s_1", axis="time", unit="µs", strips=(page.StripRow(label="a", samples=(1.0,)),)
        ),
        page.LinePlot(title="l", name="l_1", x_axis="x", y_axis="y", lines=(line,)),
        page.HeatMap(title="h", name="h_1", rows=("r",), columns=("c",), cells=((None,),), unit="%"),
        page.Timeline(title="t", name="t_1", bars=(page.TimelineBar(lane="a", label="b", start_s=0.0, end_s=1.0),)),
    )
    whole = page.Page(title="p", lead="Yes.", sections=(page.Section(title="s", elements=elements),))
    back = through_json(whole)
    assert back == whole
    assert isinstance(back, page.Page)
    assert [figure.kind for figure in back.figures] == ["strips", "lines", "heatmap", "timeline"]


def test_findings_say_their_schema_under_that_name() -> None:
    written = Findings(headline="Nothing.").as_json()
    assert written["schema"] == SCHEMA_VERSION
    assert "schema_version" not in written


@settings(deadline=None, max_examples=40)
@given(params)
def test_the_order_in_which_parameters_are_given_does_not_change_the_identity(given_params: dict[str, Any]) -> None:
    backwards = dict(reversed(given_params.items()))
    one, other = (TRIAL.model_copy(update={"settings": p}) for p in (given_params, backwards))
    assert one.id == other.id


def test_an_identity_is_the_same_in_another_process() -> None:
    program = "import sys; from assay.core.values import Trial; print(Trial.model_validate_json(sys.argv[1]).id)"
    told = [sys.executable, "-c", program, TRIAL.model_dump_json()]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == TRIAL.id


def test_a_trial_that_differs_in_anything_has_another_identity() -> None:
    other: dict[type[Value], dict[str, object]] = {
        Trial: {
            "block": "c",
            "roles": (ROLE, ROLE.model_copy(update={"name": "second"})),
            "schedule": "together",
            "mode": Counted(duration_s=1.0, runs=1),
            "restarts": 2,
            "settings": {"power_limit_w": 300},
            "placed_with": ("cpu:0", "cpu:1"),
            "cpu_groups": 2,
            "on_interference": "refuse",
            "cooldown_s": 1.0,
            "retakes": 1,
            "seed": 1,
            "profile": True,
        },
        Adaptive: {
            "duration_s": 3.0,
            "warmup_runs": 0,
            "precision": 0.02,
            "cache": "warm",
            "timeout_s": 1.0,
            "settle_s": 30.0,
        },
        Role: {
            "name": "x",
            "subjects": (SUBJECT, SUBJECT),
            "duty": "load",
            "ranks": 2,
            "devices": ("cpu:1",),
            "isolation": "cpu",
            "worker": 1,
            "tuner": TUNER,
            "metered": ("cuda:0",),
        },
        Subject: {
            "workload": "gemm",
            "impl": "torch",
            "params": {"rows": 4.0},
            "config": {},
            "command": Command(argv=("true",)),
            "digest": "abc",
            "source": SourceCheckout(checkout="a", interpreter="b"),
        },
    }
    ids = [TRIAL.id]
    for kind, changes in other.items():
        assert set(changes) == set(kind.model_fields) - {"kind"}, f"a field of {kind.__name__} is not looked at"
        for field, to in changes.items():
            ids.append(_trial_with(kind, field, to).id)
    assert len(set(ids)) == len(ids)


def _trial_with(kind: type[Value], field: str, to: object) -> Trial:
    """Return the trial with one field changed, however deep it lies."""
    subject = SUBJECT.model_copy(update={field: to}) if kind is Subject else SUBJECT
    role = ROLE.model_copy(update={"subjects": (subject,), **({field: to} if kind is Role else {})})
    mode = MODE.model_copy(update={field: to}) if kind is Adaptive else MODE
    return TRIAL.model_copy(update={"roles": (role,), "mode": mode, **({field: to} if kind is Trial else {})})


def test_one_and_true_and_one_point_zero_are_different_parameters() -> None:
    ids = {TRIAL.model_copy(update={"settings": {"x": x}}).id for x in (1, True, 1.0, "1", None)}
    assert len(ids) == 5


LOAD = ROLE.model_copy(update={"name": "noise", "duty": "load"})
TWO_RANKS = ROLE.model_copy(update={"ranks": 2})


@pytest.mark.parametrize(
    ("value", "field", "to", "message"),
    [
        (ROLE, "ranks", 0, "greater than or equal to 1"),
        (ROLE, "subjects", (), "at least 1 item"),
        (ROLE, "devices", (), "at least 1 item"),
        (ROLE, "devices", ("cpu:0", "cpu:1"), "role 'timed' has 1 ranks on 2 devices"),
        (ROLE, "isolation", "strict", "'none', 'gpu', 'cpu', 'numa' or 'full'"),
        (MODE, "duration_s", 0.0, "greater than 0"),
        (MODE, "warmup_runs", -1, "greater than or equal to 0"),
        (MODE, "precision", 1.0, "less than 1"),
        (Counted(duration_s=1.0, runs=1), "runs", 0, "greater than or equal to 1"),
        (PAIRED, "roles", (ROLE,), "subjects are functions or workloads, in pairs"),
        (PAIRED, "roles", (PAIR.model_copy(update={"ranks": 2}),), "roles of one rank"),
        (PAIRED, "schedule", "together", "prepared one after another"),
        (PAIRED, "profile", True, "prepared one after another"),
        (STAGED, "schedule", "together", "prepared one after another"),
        (STAGED, "profile", True, "prepared one after another"),
        (STAGED, "roles", (ROLE.model_copy(update={"tuner": TUNER}),), "prepared one after another"),
        (STAGED, "roles", (ROLE, ROLE.model_copy(update={"name": "second"})), "a staged trial has one timed role"),
        (TRIAL, "roles", (), "at least 1 item"),
        (TRIAL, "roles", (ROLE, ROLE), r"two roles of one trial share a name: \['timed', 'timed'\]"),
        (TRIAL, "roles", (LOAD,), "a trial needs a role whose time is taken"),
        (TRIAL, "schedule", "turns", "turns alternate between exactly two timed roles of one rank each"),
        (TRIAL, "schedule", "later", "'alone', 'together' or 'turns'"),
        (TRIAL, "roles", (ROLE, LOAD.model_copy(update={"ranks": 2})), "cannot be held as a load"),
        (TRIAL, "restarts", 0, "greater than or equal to 1"),
        (ESTIMATE, "low", None, "an interval has both ends or none"),
        (ESTIMATE, "high", None, "an interval has both ends or none"),
        (ESTIMATE, "n", 0, "greater than or equal to 1"),
        (RECORD, "status", "failed", "a record that is failed says why"),
        (RECORD, "status", "refused", "a record that is refused says why"),
        (RECORD, "attempt", 0, "greater than or equal to 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(value: Value, field: str, to: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        type(value)(**changed(value, field, to))


def test_turns_are_taken_by_two_timed_roles_and_loads_may_run_beside_them() -> None:
    second = ROLE.model_copy(update={"name": "second"})
    trial = Trial(**changed(TRIAL, "roles", (ROLE, second, LOAD)) | {"schedule": "turns"})
    assert trial.devices == ("cpu:0",)


def test_ranks_have_a_device_each_or_share_one() -> None:
    each = Role(name="r", subjects=(SUBJECT,), ranks=2, devices=("cuda:0", "cuda:1"))
    assert [each.device_of(rank) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert [TWO_RANKS.device_of(rank) for rank in range(2)] == ["cpu:0", "cpu:0"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: page.PlotLine(label="l", x=(1.0,), y=(1.0, 2.0)), "line 'l': y has 2 points, x has 1"),
        (lambda: page.PlotLine(label="l", x=(1.0,), y=(1.0,), low=()), "line 'l': low has 0 points, x has 1"),
        (
            lambda: page.Table(title="t", columns=(page.Column(title="c"),), rows=((1, 2),)),
            "table 't' has a row that does not fit its columns",
        ),
        (
            lambda: page.Table(title="t", columns=(page.Column(title="c"),), rows=((1,),), tones=()),
            "table 't' has tones for other rows",
        ),
        (
            lambda: page.HeatMap(title="h", name="h", rows=("a", "b"), columns=("c",), cells=((1.0,),), unit=""),
            "heat map 'h': its cells do not fill 2×1",
        ),
        (
            lambda: page.LinePlot(title="l", name="a b", x_axis="", y_axis="", lines=()),
            "String should match pattern",
        ),
        (
            lambda: page.ScatterPlot(
                title="s", name="s", x_axis="", y_axis="", dots=(page.ScatterPoint(label="a", x=1.0, y=1.0),), path=(1,)
            ),
            "scatter 's': its path leads to a dot that is not there",
        ),
        (
            lambda: page.Section.model_validate({"title": "s", "elements": [{"kind": "pie"}]}),
            "'text', 'table', 'strips', 'lines', 'scatter', 'heatmap', 'timeline'",
        ),
    ],
)
def test_an_element_that_cannot_be_drawn_is_refused_in_words(build: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        build()


def test_an_estimate_says_how_wide_its_interval_is_where_it_has_one() -> None:
    assert ESTIMATE.relative_half_width == pytest.approx(0.5)
    assert ESTIMATE.model_copy(update={"value": -2.0}).relative_half_width == pytest.approx(0.5)
    assert ESTIMATE.model_copy(update={"low": None, "high": None}).relative_half_width is None
    assert ESTIMATE.model_copy(update={"value": 0.0}).relative_half_width is None


@pytest.mark.parametrize(("error", "passed"), [(0.0, True), (1e-6, True), (2e-6, False), (float("nan"), False)])
def test_an_output_is_right_when_its_error_is_within_the_tolerance(error: float, *, passed: bool) -> None:
    assert Check(error=error, tolerance=1e-6, measure="largest error").passed is passed


@pytest.mark.parametrize(
    ("workload", "impl", "label"),
    [
        ("w", "numpy", "w@numpy"),
        ("w", "triton", "w@triton"),
        ("cpu_hog", "python", "cpu_hog@python"),
        ("a/b/c.py:f", "python", "b/c.py:f"),
        ("w", "command", "w"),
    ],
)
def test_a_subject_is_shown_with_its_implementation_unless_it_is_the_users_own(
    workload: str, impl: str, label: str
) -> None:
    assert Subject(workload=workload, impl=impl).label == label


def test_a_block_has_trials_and_says_why() -> None:
    assert Block(name="b", why="first", trials=(TRIAL,)).left_s is None
    with pytest.raises(ValidationError, match="at least 1 item"):
        Block(name="b", why="nothing", trials=())


def test_a_table_is_built_from_functions_of_its_rows() -> None:
    table = build_table(
        "Times",
        [("add", 1.5), ("mul", None)],
        {"name": lambda row: row[0], "us": lambda row: row[1]},
        numeric={"us"},
        tone=lambda row: "plain" if row[1] else "unsure",
    )
    assert table.rows == (("add", 1.5), ("mul", None))
    assert [(column.title, column.numeric) for column in table.columns] == [("name", False), ("us", True)]
    assert table.tones == ("plain", "unsure")
    with pytest.raises(ValueError, match="no column ms"):
        build_table("Times", [1], {"us": lambda row: row}, numeric={"ms"})
