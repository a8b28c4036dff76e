"""Progress in plain lines: which trial of how many, also where one is measured again."""

from __future__ import annotations

import io

from rich.console import Console

from assay.core.results import Record, Stage, Window
from assay.core.values import Adaptive, Block, Role, Subject, Trial
from assay.reports.progress import PlainProgress, describe_outcome


def trial(seed: int) -> Trial:
    role = Role(name="cpu:0", subjects=(Subject(workload="softmax", impl="numpy"),), devices=("cpu:0",))
    return Trial(block="b", roles=(role,), mode=Adaptive(duration_s=1.0), seed=seed)


def refused(of: Trial, take: int = 1) -> Record:
    window = Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="now")
    return Record(
        trial=of.id, block="b", attempt=1, take=take, window=window, status="refused", reason="it is not quiet here"
    )


def test_a_trial_that_is_measured_again_keeps_its_number_and_says_why() -> None:
    out = io.StringIO()
    progress = PlainProgress(Console(file=out, width=200))
    first, second = trial(1), trial(2)
    progress.block(Block(name="b", why="first", trials=(first, second)), again=False)
    for each, takes in ((first, 2), (second, 1)):
        for take in range(1, takes + 1):
            progress.trial(each)
            progress.record(refused(each, take))
    lines = out.getvalue().splitlines()
    assert lines[0] == "b: first, 2 trials"
    assert [line.split()[0] for line in lines[1:]] == ["1/2", "1/2", "1/2", "1/2", "2/2", "2/2"]
    assert lines[3] == "  1/2 softmax@numpy on cpu:0 again, as it was disturbed …"
    assert lines[6] == "  2/2 softmax@numpy on cpu:0: refused: it is not quiet here"


def test_stages_are_counted_and_not_listed() -> None:
    stages = tuple(
        Stage(role="model", subject=n, restart=restart, start_ns=0, end_ns=2 * 10**9, calls=3)
        for restart in (0, 1)
        for n in (0, 1)
    )
    record = refused(trial(1)).model_copy(update={"status": "ok", "reason": None, "stages": stages})
    assert describe_outcome(record) == "4 stages in 2 processes, 8.0 s measured"
    assert describe_outcome(record.model_copy(update={"stages": stages[:1]})) == "1 stage, 2.0 s measured"
