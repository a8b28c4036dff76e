"""Single values of a YAML text are changed, and not one character else."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from assay.core.errors import BadInput
from assay.store.yaml_edit import edit_text, unified_diff

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.values import Scalar

M = "# Updated by benchmark"


def loaded(text: str) -> Any:
    return list(YAML(typ="safe", pure=True).load_all(io.StringIO(text)))


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("r:\n  w: 64\n  c: 16\n", {"r.w": 128}, f"r:\n  w: 128  {M}\n  c: 16\n"),
        ("r:\n  w: 64  # keep me\n", {"r.w": 128}, f"r:\n  w: 128  {M}; keep me\n"),
        ("w: 64   #keep\n", {"w": 1}, f"w: 1   {M}; keep\n"),
        ("w: 64 #\n", {"w": 1}, f"w: 1 {M}\n"),
        (f"w: 64  {M}\n", {"w": 1}, f"w: 1  {M}\n"),
        ("w: 64  # x; Updated by benchmark\n", {"w": 1}, "w: 1  # x; Updated by benchmark\n"),
        ("\ufeffr:\r\n  w: 64\r\n  c: 1", {"r.w": 2, "r.c": 3}, f"\ufeffr:\r\n  w: 2  {M}\r\n  c: 3  {M}"),
        ("w: 64\t#\ttab\ttab\n\t# and\n", {"w": 1}, f"w: 1\t{M};\ttab\ttab\n\t# and\n"),
        ("r: {w: 64, c: 16}  # both\n", {"r.w": 1, "r.c": 2}, f"r: {{w: 1, c: 2}}  {M}; both\n"),
        ("r: {\n  w: 64,  # a\n  c: 16\n}\n", {"r.w": 1}, f"r: {{\n  w: 1,  {M}; a\n  c: 16\n}}\n"),
        ("r: {w: 1, s: 'a # b\n  c'}\n", {"r.w": 2}, f"r: {{w: 2, s: 'a # b\n  c'}}  {M}\n"),
        ("w: 'a'\nv: \"b\"\n", {"w": "it's", "v": 'x "y"'}, f"w: 'it''s'  {M}\nv: \"x \\\"y\\\"\"  {M}\n"),
        ("w: cpu\n", {"w": "cuda"}, f"w: cuda  {M}\n"),
        ("w: cpu\n", {"w": "no"}, f'w: "no"  {M}\n'),
        ("w:\nv: 1\n", {"w": 5}, f"w: 5  {M}\nv: 1\n"),
        ("w: # none yet\n", {"w": 5}, f"w: 5 {M}; none yet\n"),
        ("w:\n  64\n", {"w": 5}, f"w:\n  5  {M}\n"),
        ("w: &a 64\nv: 1\n", {"w": 5}, f"w: &a 5  {M}\nv: 1\n"),
        ("a: 1\n---\nb: 2\n", {"b": 3}, f"a: 1\n---\nb: 3  {M}\n"),
        ("a.b: 1\n", {"a.b": 2}, f"a.b: 2  {M}\n"),
        ("b: &b {w: 1}\nr:\n  <<: *b\n  w: 3\n", {"r.w": 4}, f"b: &b {{w: 1}}\nr:\n  <<: *b\n  w: 4  {M}\n"),
        ("on: 1\nf: 0.5\n", {"on": True, "f": 1e-7}, f"on: true  {M}\nf: 1.0e-07  {M}\n"),
        ("? w\n: 1\n", {"w": None}, f"? w\n: null  {M}\n"),
    ],
)
def test_only_the_value_and_the_mark_change(before: str, changes: dict[str, Scalar], after: str) -> None:
    assert edit_text(before, changes) == after
    assert edit_text(after, changes) == after


@pytest.mark.parametrize("same", ["w: 64\n", "w: 0x40  # hex\n", "w: 64.0\n", "w:  64 \n"])
def test_a_value_that_is_the_same_is_left_alone(same: str) -> None:
    assert edit_text(same, {"w": 64}) == same


def test_truth_and_text_are_not_numbers() -> None:
    assert edit_text("w: true\n", {"w": 1}, None) == "w: 1\n"
    assert edit_text("w: '64'\n", {"w": 64}, None) == "w: 64\n"
    assert edit_text("w: .nan\n", {"w": math.nan}) == "w: .nan\n"


def test_without_a_mark_no_comment_is_written() -> None:
    assert edit_text("w: 64  # keep\nv: 1\n", {"w": 1, "v": 2}, None) == "w: 1  # keep\nv: 2\n"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("runtime:\n  fa2_win: 1\n", "runtime.fa2_wim", "has no key runtime.fa2_wim. Did you mean runtime.fa2_win?"),
        ("runtime:\n  fa2_win: 1\n", "fa2_win", "has no key fa2_win. Did you mean runtime.fa2_win?"),
        ("", "a", "has no key a"),
        ("- 1\n", "a", "has no key a"),
        ("a: 1\na: 2\n", "a", "lines 1 and 2: a stands there more than once; remove all but one"),
        ("a:\n b: 1\na:\n c: 2\n", "a.c", "lines 1 and 3: a, on the way to a.c, stands there more than once"),
        ("a: 1\n---\na: 2\n", "a", "lines 1 and 3: a stands there more than once, and it is not clear which"),
        ("a.b: 1\na: {b: 2}\n", "a.b", "lines 1 and 2: a.b stands there more than once"),
        ("x: &x 1\na: *x\n", "a", "line 2: a is *x, a value that stands elsewhere"),
        ("x: &x 1\na: *x\n", "x", "line 1: x is part of &x, which line 2 repeats as *x"),
        ("x: &x {w: 1}\na: *x\n", "x.w", "line 1: x.w is part of &x"),
        ("x: &x {w: 1}\na: *x\n", "a.w", "line 2: a is *x, which stands elsewhere"),
        ("x: &x {w: 1}\na:\n  <<: *x\n", "a.w", "line 3: a.w is not written there; it may come from what << merges"),
        ("x: &x {w: 1}\na:\n  <<: *x\n", "x.w", "which line 3 repeats as *x"),
        ("a: {b: 1}\n", "a", "line 1: a is a mapping"),
        ("a:\n  - 1\n", "a", "line 2: a is a list"),
        ("a:\n  - 1\n", "a.b", "line 2: a is a list, so that there is no a.b in it"),
        ("a: 3\n", "a.b", "line 1: a is a single value"),
        ("a: |\n  text\n", "a", "line 1: a is a block of text"),
        ("a: !size 3\n", "a", "line 1: a has the tag !size"),
        ("{a, b: 2}\n", "a", "line 1: a cannot be changed without changing more"),
        ("a:\n\tb: 1\n", "a.b", "line 2: it is indented by a tab, which YAML does not allow"),
        ("a:\n  \tb: 1\n", "a.b", "line 2: it is indented by a tab"),
        ("a: [1\n", "a", "line 2, column 1: not valid YAML"),
        ("a: \x00\n", "a", "line 1, column 4: not valid YAML"),
        ("a: 1\n", "a..b", "'a..b' is not a key"),
    ],
)
def test_what_cannot_be_changed_by_itself_is_refused_in_a_sentence_with_its_line(
    text: str, key: str, said: str
) -> None:
    with pytest.raises(BadInput) as refused:
        edit_text(text, {key: 64}, name="base.yaml")
    assert str(refused.value).startswith(("base.yaml", "'"))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("mark", ["", "two\nlines", " blank", "# hash"])
def test_a_mark_is_one_line_of_text(mark: str) -> None:
    with pytest.raises(BadInput, match="cannot be a comment"):
        edit_text("a: 1\n", {"a": 2}, mark)


def test_the_difference_is_shown_as_a_unified_diff() -> None:
    before = "a: 1\nb: 2"
    assert unified_diff(before, edit_text(before, {"b": 3}, None), "c.yaml") == (
        "--- c.yaml\n+++ c.yaml\n@@ -1,2 +1,2 @@\n a: 1\n-b: 2\n\\ No newline at end of file\n"
        "+b: 3\n\\ No newline at end of file\n"
    )
    assert unified_diff(before, before, "c.yaml") == ""


NAMES = st.sampled_from(["a", "b", "win", "cmp", "x-y", "'q u'", "0"])
PLAIN = ["1", "-3", "0.5", "true", "null", "''", "'it''s'", '"x # y"', "word", "a b c", "1_000", "2020-01-01"]
COMMENTS = st.sampled_from(["", "", "  # keep", " # a: 1", "\t#\tx", "   ", f"  {M}"])
VALUES = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, str, str, str]:
    """A text in three parts, the middle one a value; and the dotted key of that value."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    depth = draw(st.integers(0, 3))
    way = [draw(NAMES) for _ in range(depth + 1)]
    lines: list[str] = [*draw(st.lists(st.sampled_from(["# top", "", "%YAML 1.2\n---", "---"]), max_size=1))]
    for level, name in enumerate(way[:-1]):
        lines += _others(draw, "  " * level, name)
        lines.append(f"{'  ' * level}{name}:{draw(COMMENTS)}")
    indent, last = "  " * depth, way[-1]
    flow = draw(st.booleans()) and depth > 0
    old, comment = draw(st.sampled_from(PLAIN)), draw(COMMENTS)
    lines += [] if flow else _others(draw, indent, last)
    before = f"{indent}{{{last}: " if flow else f"{indent}{last}: "
    after = f", other: 'x'}}{comment}" if flow else comment
    tail = ["zz: {deep: [1, 2]}  # end", *draw(st.lists(st.just("# bottom"), max_size=1))]
    start = end.join([*lines, before])
    rest = after + end + end.join(tail) + draw(st.sampled_from(["", end]))
    bom = draw(st.sampled_from(["", "\ufeff"]))
    return bom + start, old, rest, ".".join(name.strip("'") for name in way)


def _others(draw: st.DrawFn, indent: str, taken: str) -> list[str]:
    """Lines of other keys at the same depth."""
    names = draw(st.lists(NAMES.filter(lambda name: name != taken), max_size=2, unique=True))
    return [f"{indent}{name}: {draw(st.sampled_from(PLAIN))}{draw(COMMENTS)}" for name in names]


def changed(document: Any, way: list[str], value: Scalar) -> Any:
    if not way:
        return value
    return {k: changed(v, way[1:], value) if str(k) == way[0] else v for k, v in document.items()}


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@given(parts=documents(), value=VALUES)
def test_every_other_character_stays_and_the_parsed_document_differs_in_that_key_alone(
    parts: tuple[str, str, str, str], value: Scalar
) -> None:
    before, old, rest, key = parts
    text = before + old + rest
    expected = changed(_read(text), key.split("."), value)
    bare = edit_text(text, {key: value}, None)
    assert bare.startswith(before)
    assert bare.endswith(rest)
    assert _read(bare) == expected
    marked = edit_text(text, {key: value})
    assert _read(marked) == expected
    assert marked.startswith(before)
    assert edit_text(marked, {key: value}) == marked
    assert edit_text(marked, {key: value}, None) == marked
    if bare != text:
        line = rest.partition("\n")[0]
        assert marked.count(M) == text.count(M) + (M not in line)
        assert marked.endswith(rest[len(line) :])


def _read(text: str) -> Any:
    """The only document of a text, read by somebody else: tabs before comments are more than it understands."""
    read: Callable[[str], Any] = YAML(typ="safe", pure=True).load
    return read(re.sub(r"[ \t]+(?=#|\r?$)", lambda blanks: " " * len(blanks[0]), text, flags=re.MULTILINE))
