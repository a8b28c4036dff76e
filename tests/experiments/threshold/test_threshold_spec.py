"""Files of thresholds: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.core.errors import BadInput
from assay.experiments.threshold.spec import DEFAULT_SPEC_FILE, build_threshold, load_thresholds, parse_margin
from assay.workloads.nsa.branches import COMPRESSED, GRIDS, SLIDING

GOOD = """
thresholds:
  - name: sums
    reference: ways.py:slow
    fast: ways.py:fast
    axes: {n: [4, 1, 2], twice: [true, false]}
    size: n
    key: sums.min
    never: -1
"""
WAYS = "def slow(n, twice):\n    return n\n\ndef fast(n, twice):\n    return n\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of thresholds in a folder of its own, beside the functions that it names."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ways.py").write_text(WAYS)
    monkeypatch.chdir(tmp_path)
    path = Path("mine/thresholds.yaml")
    path.write_text(GOOD)
    return path


def test_the_packaged_file_has_the_grids_of_both_branches() -> None:
    for grid, older in (("small", "older"), ("large", "long")):
        for wanted, name in zip(load_thresholds(DEFAULT_SPEC_FILE), (SLIDING, COMPRESSED), strict=True):
            points = build_threshold(wanted, kind="cpu", grid=grid, margin=None).points
            cells = [sorted(params.items()) for params in GRIDS[older][name]]
            assert sorted(sorted(point.params.items()) for point in points) == sorted(cells)


def test_all_axes_make_the_grid_and_points_of_one_size_make_a_cell(file: Path) -> None:
    (wanted,) = load_thresholds(file)
    found = build_threshold(wanted, kind="cpu", grid=None, margin=1.5)
    assert found.sizes == (1, 2, 4)
    assert len(found.points) == 6
    assert (found.margin, found.never, found.axes) == (1.5, -1, ("n", "twice"))
    assert found.points[0].params == {"n": 1, "twice": False}
    assert found.points[0].fast.workload == "mine/ways.py:fast"


def test_only_some_sizes_can_be_asked_for(file: Path) -> None:
    (wanted,) = load_thresholds(file)
    assert build_threshold(wanted, kind="cpu", grid=None, margin=None, sizes=[2, 4]).sizes == (2, 4)
    with pytest.raises(BadInput, match=r"has no size 3; it has 1, 2, 4"):
        build_threshold(wanted, kind="cpu", grid=None, margin=None, sizes=[3])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("axes:", "axis:", r"thresholds\[0\] \(sums\), line 6: unknown key 'axis'. Did you mean axes"),
        ("thresholds:", "threshold:", "holds no thresholds"),
        ("    never: -1\n", "", "never is missing"),
        ("size: n", "size: m", "its size 'm' is none of its parameters"),
        ("[4, 1, 2]", "[4, 0]", "a size is a number above zero, and n is 0"),
        ("[4, 1, 2]", "[]", "nothing on n"),
        ("    axes: {n: [4, 1, 2], twice: [true, false]}\n", "", "needs either axes, or several grids"),
        ("size: n", "size: n\n    margin: 0.2", r"A safety margin is above 1, .* Did you mean 1.2"),
        ("size: n", "size: n\n    margin: fast", "conservative"),
        ("size: n", "size: n\n    params: {n: 3}", "n stands both among the params and on an axis"),
        ("ways.py:fast", "ways.py:faster", "defines no 'faster'. Did you mean fast"),
        ("ways.py:fast", "soft_max@numpy", "Unknown workload"),
        ("twice", "thrice", "takes no 'thrice'|needs twice"),
        ("size: n", "size: sliding", "needs a sequence and a window"),
        ("- name", "name", "not valid YAML|needs a list"),
    ],
)
def test_a_file_that_means_nothing_is_refused_with_the_place_and_the_nearest_name(
    file: Path, old: str, new: str, said: str
) -> None:
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(BadInput, match=said):
        build_threshold(load_thresholds(file)[0], kind="cpu", grid=None, margin=None)


def test_a_grid_that_is_not_there_is_said(file: Path) -> None:
    with pytest.raises(BadInput, match="has one grid"):
        build_threshold(load_thresholds(file)[0], kind="cpu", grid="large", margin=None)
    with pytest.raises(BadInput, match=r"has no grid 'lrge'; it has small, large. Did you mean large"):
        build_threshold(load_thresholds(DEFAULT_SPEC_FILE)[0], kind="cpu", grid="lrge", margin=None)


def test_two_thresholds_are_not_written_to_one_key(file: Path) -> None:
    file.write_text(GOOD + GOOD.removeprefix("\nthresholds:\n").replace("name: sums", "name: others"))
    with pytest.raises(BadInput, match=r"two thresholds have the key 'sums.min'"):
        load_thresholds(file)


@pytest.mark.parametrize(("text", "margin"), [("1.2", 1.2), ("conservative", 1.5), ("aggressive", 1.1)])
def test_margins_have_names(text: str, margin: float) -> None:
    assert parse_margin(text) == margin


@pytest.mark.parametrize("text", ["1", "1.0", "0", "-2", "nan", "inf", "much"])
def test_a_margin_that_is_not_above_one_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="safety margin"):
        parse_margin(text)


def test_what_is_merged_from_another_threshold_counts_as_its_own(file: Path) -> None:
    file.write_text(
        GOOD.replace("  - name: sums", "  - &sums\n    name: sums") + "  - <<: *sums\n    name: more\n    key: b\n"
    )
    assert [wanted.fast for wanted in load_thresholds(file)] == ["mine/ways.py:fast"] * 2
    file.write_text(file.read_text() + "    fastt: x\n")
    with pytest.raises(BadInput, match=r"line 14: unknown key 'fastt'"):
        load_thresholds(file)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("never: -1", "never: 2", "is a size of its grid"), ("fast: ways.py:fast", "fast: ways.py:slow", "are the same")],
)
def test_a_threshold_that_could_only_mislead_is_refused(file: Path, old: str, new: str, said: str) -> None:
    file.write_text(GOOD.replace(old, new))
    (wanted,) = load_thresholds(file)
    with pytest.raises(BadInput, match=said):
        build_threshold(wanted, kind="cpu", grid=None, margin=None)
