"""Notes of many trials, told once with the trials they are of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.core.page import Table
from assay.core.results import Note, Record, Window
from assay.experiments.reporting import NoteGroup, group_notes, merge_sentences, notes_table

WINDOW = Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="now")


def record(trial: str, *messages: str) -> Record:
    notes = tuple(Note.remark("any", message) for message in messages)
    return Record(trial=trial, block="block-1", attempt=1, window=WINDOW, status="ok", notes=notes)


def test_the_same_note_is_told_once_with_a_count_and_its_trials() -> None:
    same = "no core is left for the parent"
    records = [record(f"t{number}", same) for number in range(5)] + [record("t5", "a note of one"), record("t6")]
    (table,) = notes_table(records, {f"t{number}": f"block {number}, alone" for number in range(6)})
    assert isinstance(table, Table)
    assert table.rows == (
        (same, 5, "block 0, alone; block 1, alone; block 2, alone; and 2 more"),
        ("a note of one", 1, "block 5, alone"),
    )
    assert table.note is not None
    assert table.note.startswith("Of 7 trials.")


def test_a_note_of_all_trials_names_none() -> None:
    names = {f"t{number}": f"block {number}" for number in range(5)}
    (table,) = notes_table([record(trial, "noted") for trial in names], names)
    assert isinstance(table, Table)
    assert table.rows == (("noted", 5, "all"),)


def test_notes_that_differ_only_in_their_numbers_are_one_with_the_range() -> None:
    said = [f"starting takes {s} s, most of the 6.5 s asked for" for s in ("6.3", "10.1", "7")]
    assert merge_sentences(said) == "starting takes 6.3–10.1 s, most of the 6.5 s asked for"


def test_names_versions_and_devices_are_no_numbers() -> None:
    pairs = [(f"meanwhile {who} used cpu:{n} for 3 s", "t") for n, who in enumerate(("python3.11", "python3.12"))]
    assert [noted.text for noted in group_notes(pairs)] == [said for said, _ in pairs]


def test_a_trial_with_a_name_of_nobody_s_is_told_by_its_block() -> None:
    (table,) = notes_table([record("t", "noted")], {})
    assert isinstance(table, Table)
    assert table.rows == (("noted", 1, "block-1"),)


def test_without_notes_there_is_no_table() -> None:
    assert notes_table([record("t")], {}) == []


@given(st.lists(st.tuples(st.sampled_from(["took 1 s", "took 2.5 s", "is lost"]), st.text(max_size=2)), max_size=12))
def test_every_trial_that_was_noted_is_in_a_group(pairs: list[tuple[str, str]]) -> None:
    found: list[NoteGroup] = group_notes(pairs)
    assert {trial for noted in found for trial in noted.trials} == {trial for _, trial in pairs}
    assert len(found) == len({said[:4] for said, _ in pairs})
