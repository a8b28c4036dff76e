"""Is a rented machine ever left running? Random faults over whole errands at stand-ins of the providers.

python benchmarks/rentals.py run       play every schedule (minutes), keep every outcome, print the tables
python benchmarks/rentals.py kill      only the clients that are really killed, anew
python benchmarks/rentals.py modal     only Modal's schedules, anew: its SDK waits by the real clock, so they are fewer
python benchmarks/rentals.py verify    compute the tables again from the kept outcomes

A schedule is drawn by its seed: requests that are cut or answered with 503, 429 or garbage, before or after they took
effect; machines that are listed late, never come up, are taken away, come twice, do not hear that they are to end; a
client that is stopped by a signal or killed at any of its steps; an account that may not rent. The real provider speaks
HTTP to the stand-in, which holds each request and each answer against an OpenAPI description; time is virtual. Then
`reap` runs as another process would run it. The kills of the last table are real processes and the real clock, over
loopback. Nothing here says anything about the providers themselves: all records of it are fake.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

RESULTS = Path(__file__).parent / "results" / "rentals.json"
SCHEDULES, WITHOUT_A_RULE = 1000, 200
KILLS, STOPS, AT_MODAL = 50, 20, 100
PROVIDERS = ("runpod", "lambda")
FIELDS = (
    "ends",
    "hopeless",
    "faults",
    "late",
    "machines",
    "twice",
    "left_at_end",
    "left_after_reap",
    "keys_left",
    "could",
    "did",
)
Kept = dict[str, Any]


def played(provider: str, seed: int) -> list[Any]:
    """Return what one schedule came to, as `FIELDS` has it."""
    from tests.hosts.standins.schedules import LATE_S, draw, play

    schedule = draw(provider, seed)
    home = tempfile.mkdtemp(prefix="assay-rentals-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)  # noqa: S108
    os.environ["ASSAY_HOME"] = home
    try:
        outcome = play(schedule)
    finally:
        shutil.rmtree(home)
    faults = len(schedule.launches) + schedule.bad_machines
    late = any(fate.listed_s > LATE_S for fate in schedule.fates)
    left = (outcome.left_at_end, outcome.left_after_reap, outcome.keys_left)
    finished = (schedule.could_finish, outcome.finished)
    return [schedule.ends, schedule.hopeless, faults, late, outcome.machines, outcome.twice, *left, *finished]


def run() -> Kept:
    """Return every outcome."""
    from assay.core.guardian import Guardian
    from tests.hosts.standins.broken_rules import RULES, without

    os.environ["RUNPOD_API_KEY"] = os.environ["LAMBDA_API_KEY"] = "a-key"
    saved: Kept = {"fields": FIELDS, "schedules": {}, "without": {}, "took_s": {}}
    with Guardian():
        for provider in PROVIDERS:
            began = time.monotonic()
            saved["schedules"][provider] = [played(provider, seed) for seed in range(SCHEDULES)]
            saved["took_s"][provider] = round(time.monotonic() - began, 1)
        for rule in (None, *RULES):
            with without(rule) if rule else nullcontext():
                saved["without"][rule or "none"] = [
                    played(provider, seed) for provider in PROVIDERS for seed in range(WITHOUT_A_RULE)
                ]
    return saved


def killed() -> list[Kept]:
    """Return what became of clients that were killed, half of them with their guardians, or stopped."""
    from tests.hosts.standins.killing import kills
    from tests.hosts.standins.victims import WITH_GUARDIAN

    hows = ["kill -9", WITH_GUARDIAN] * (KILLS // 2) + ["SIGTERM", "SIGINT"] * (STOPS // 2)
    return [asdict(how) for how in kills(hows, seed=0)]


def at_modal() -> list[Kept]:
    """Return what each of Modal's schedules came to; the real SDK talks to a server on loopback."""
    import modal

    from tests.hosts.standins.modal.schedules import carried_out, planned
    from tests.hosts.standins.modal.server import TOKEN_ID, TOKEN_SECRET, ModalStandIn

    results: list[Kept] = []
    for seed in range(AT_MODAL):
        with tempfile.TemporaryDirectory() as folder:
            server = ModalStandIn(Path(folder) / "modal")
            os.environ |= {
                "ASSAY_HOME": f"{folder}/home",
                "MODAL_SERVER_URL": server.url,
                "MODAL_DISABLE_API_PROXY": "1",
                "MODAL_TOKEN_ID": TOKEN_ID,
                "MODAL_TOKEN_SECRET": TOKEN_SECRET,
                "MODAL_CONFIG_PATH": f"{folder}/modal.toml",
            }
            modal.Client.set_env_client(None)
            try:
                schedule = planned(seed, server)
                outcome = carried_out(schedule, server, Path(folder))
            finally:
                modal.Client.set_env_client(None)
                server.stop()
        results.append(
            {
                "killed": schedule.killed,
                "refused": schedule.refused,
                "taken_away": schedule.taken_away,
                "finished": outcome.finished,
                "left": outcome.left,
                "at_once": outcome.at_once,
            }
        )
    return results


def _at_modal(results: Kept) -> list[str]:
    titles = (
        "stand-in",
        "schedules",
        "client killed",
        "machine taken away",
        "most machines at once",
        "left after reap",
    )
    lines = _head(*titles, "could finish", "did")
    rows = results["modal"]
    could = [row for row in rows if not row["killed"] and not row["refused"]]
    summary = (
        len(rows),
        sum(row["killed"] for row in rows),
        sum(row["taken_away"] > 0 for row in rows),
        max(row["at_once"] for row in rows),
        sum(row["left"] for row in rows),
        len(could),
        sum(row["finished"] for row in could),
    )
    return [*lines, f"| modal | {' | '.join(map(str, summary))} |"]


def _rows(results: Kept, result: list[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(results["fields"], row, strict=True)) for row in result]


def table(results: Kept) -> list[str]:
    """Return the tables as Markdown."""
    return [
        *_schedules(results), "", *_at_modal(results), "", *_endings(results),
        "", *_without(results), "", *_kills(results),
    ]  # fmt: skip


def _head(*titles: str) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]


def _schedules(results: Kept) -> list[str]:
    titles = (
        "stand-in",
        "schedules",
        "machines made",
        "of them twice",
        "left after reap",
        "twice and left",
        "keys left",
    )
    lines = _head(*titles, "could finish", "did")
    for provider, result in results["schedules"].items():
        rows = _rows(results, result)
        total = Counter[str]()
        for row in rows:
            for name in ("machines", "twice", "left_after_reap", "keys_left", "could"):
                total[name] += row[name]
            total["twice and left"] += row["left_after_reap"] if row["twice"] else 0
            total["did"] += row["could"] and row["did"]
        names = ("machines", "twice", "left_after_reap", "twice and left", "keys_left", "could", "did")
        lines.append(f"| {provider} | {len(rows)} | {' | '.join(str(total[name]) for name in names)} |")
    return lines


def _endings(results: Kept) -> list[str]:
    lines = _head("the client ends", "schedules", "left a machine", "one that was listed too late", "left after reap")
    rows = [row for result in results["schedules"].values() for row in _rows(results, result)]
    for ends in ("by itself", "signal", "kill -9"):
        mine = [row for row in rows if row["ends"] == ends]
        left = [row for row in mine if row["left_at_end"]]
        late = "–" if ends == "kill -9" else str(sum(row["late"] for row in left))
        after = sum(row["left_after_reap"] > 0 for row in mine)
        lines.append(f"| {ends} | {len(mine)} | {len(left)} | {late} | {after} |")
    return lines


def _without(results: Kept) -> list[str]:
    lines = _head("the rule that is taken out", "made twice", "left by a client that was not killed", "left after reap")
    for rule, result in results["without"].items():
        rows = _rows(results, result)
        twice, left = sum(row["twice"] for row in rows), sum(row["left_after_reap"] for row in rows)
        ended = sum(row["left_at_end"] for row in rows if row["ends"] != "kill -9" and not row["late"])
        lines.append(f"| {rule} | {twice} | {ended} | {left} |")
    return lines


def _kills(results: Kept) -> list[str]:
    titles = ("the client ends by", "times", "with a machine then", "left before reap", "reaps that failed")
    lines = _head(*titles, "left after reap")
    for how in dict.fromkeys(kill["how"] for kill in results["kills"]):
        mine = [kill for kill in results["kills"] if kill["how"] == how]
        running = sum(kill["running_at_kill"] > 0 for kill in mine)
        output = [kill["left_before_reap"] for kill in mine if kill["left_before_reap"] is not None]
        failed = sum(kill["reap_code"] != 0 for kill in mine)
        left = sum(kill["left_after_reap"] + kill["leases_left"] for kill in mine)
        lines.append(f"| {how} | {len(mine)} | {running} | {sum(output) if output else '–'} | {failed} | {left} |")
    return lines


def check(results: Kept) -> None:
    """Make sure of what the text says."""
    for result in results["schedules"].values():
        for row in _rows(results, result):
            assert not row["left_after_reap"]
            assert not row["keys_left"]
            assert row["did"] or not row["could"]
            assert row["ends"] == "kill -9" or not row["left_at_end"] or row["late"]
    for row in results["modal"]:
        assert not row["left"]
        assert row["finished"] or row["killed"] or row["refused"]
    for kill in results["kills"]:
        assert (kill["left_after_reap"], kill["leases_left"], kill["reap_code"]) == (0, 0, 0)


def _keep(result: Kept) -> None:
    RESULTS.write_text(json.dumps(result, separators=(",", ":")).replace("],[", "],\n[") + "\n")


def main(arguments: list[str]) -> int:
    """Do what was asked for."""
    if arguments not in (["run"], ["kill"], ["modal"], ["verify"]):
        print(__doc__)
        return 2
    (what,) = arguments
    if what == "run":
        _keep({**run(), "kills": [], "modal": []})
    if what in {"run", "kill"}:
        _keep({**json.loads(RESULTS.read_text()), "kills": killed()})
    if what in {"run", "modal"}:
        _keep({**json.loads(RESULTS.read_text()), "modal": at_modal()})
    saved = json.loads(RESULTS.read_text())
    check(saved)
    print("\n".join(table(saved)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
