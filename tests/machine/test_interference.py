"""Who else was busy: from looks that were made up, and from this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.processes import list_marked, mark_environment
from assay.machine.interference import (
    OutsideActivity,
    ProcessSnapshot,
    ProcessUsage,
    cpu_used_s,
    find_descendants,
    find_outside_activity,
    take_snapshot,
)
from assay.machine.model import GpuProcess as OnGpu
from tests.fakes.fake_nvml import GpuProcess, attached
from tests.fakes.trees import write
from tests.machine.process_trees import TICK_S, World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import StartPython
    from tests.fakes.plugin import MakeFakeNvml

OURS, WORKER, OTHER, SHELL = 100, 101, 200, 300
SPIN = "import sys\nprint('spins', flush=True)\nwhile True: pass"


def process(pid: int, own_s: float = 0.0, *, parent: int = 1, start: int = 5, children_s: float = 0.0) -> ProcessUsage:
    return ProcessUsage(pid=pid, start_ticks=start, parent=parent, name=f"p{pid}", own_s=own_s, children_s=children_s)


def look(
    at_s: float, *processes: ProcessUsage, busy_s: float = 0.0, idle_s: float = 0.0, steal_s: float = 0.0
) -> ProcessSnapshot:
    return ProcessSnapshot(at_s=at_s, busy_s=busy_s, idle_s=idle_s, steal_s=steal_s, processes=processes)


def test_a_quiet_machine_has_no_strangers() -> None:
    before, after = look(0.0, process(OURS)), look(10.0, process(OURS, 10.0), busy_s=10.0, idle_s=10.0)
    quiet = OutsideActivity(steal_share=0.0, outside_cores=0.0, kernel_cores=0.0, unseen_cores=0.0)
    assert find_outside_activity(before, after, {OURS}) == quiet


def test_load_from_outside_is_counted_in_cores_and_its_source_is_named() -> None:
    before = look(100.0, process(OURS, 3.0), process(OTHER, 50.0), process(SHELL))
    after = look(110.0, process(OURS, 12.0), process(OTHER, 65.0), process(SHELL, 0.05))
    found = find_outside_activity(before, after, {OURS})
    assert found.outside_cores == pytest.approx(1.505)
    assert [(who.pid, who.name, who.cores) for who in found.busiest] == [(OTHER, "p200", 1.5)]


def test_what_our_processes_started_is_ours_however_deep() -> None:
    before = look(0.0, process(OURS))
    family = (process(WORKER, 8.0, parent=OURS), process(150, 9.0, parent=WORKER), process(7, 1.0, parent=150))
    found = find_outside_activity(before, look(10.0, process(OURS), *family), {OURS})
    assert (found.outside_cores, found.busiest) == (0.0, ())


def test_a_process_that_ended_is_found_with_the_parent_that_waited_for_it() -> None:
    before = look(0.0, process(SHELL, 1.0), process(OTHER, 40.0, parent=SHELL), process(OURS))
    after = look(10.0, process(SHELL, 1.0, children_s=45.0), process(OURS))
    assert find_outside_activity(before, after, {OURS}).outside_cores == pytest.approx(0.5)


def test_a_process_that_came_and_went_is_found_with_its_parent_too() -> None:
    before, after = look(0.0, process(SHELL, 1.0, children_s=7.0)), look(10.0, process(SHELL, 1.0, children_s=12.0))
    assert find_outside_activity(before, after, set()).outside_cores == pytest.approx(0.5)


def test_a_worker_of_ours_that_ended_stays_ours() -> None:
    before = look(0.0, process(OURS), process(WORKER, 1.0, parent=OURS))
    after = look(10.0, process(OURS, children_s=9.0), busy_s=8.0, idle_s=12.0)
    found = find_outside_activity(before, after, {OURS})
    assert (found.outside_cores, found.unseen_cores) == (0.0, 0.0)


def test_earlier_time_of_a_child_and_a_grandchild_that_both_ended_is_charged_to_nobody() -> None:
    make, compiler = process(OTHER, 2.0, parent=SHELL), process(201, 40.0, parent=OTHER)
    before = look(0.0, process(SHELL, 1.0, children_s=3.0), make, compiler, process(OURS))
    after = look(10.0, process(SHELL, 1.0, children_s=3.0 + 2.5 + 44.5), process(OURS))
    assert find_outside_activity(before, after, {OURS}).outside_cores == pytest.approx(0.5)


def test_earlier_time_of_an_orphan_is_subtracted_where_init_waited_for_it() -> None:
    before = look(0.0, process(1), process(SHELL), process(OTHER, 2.0, parent=SHELL), process(201, 40.0, parent=OTHER))
    after = look(10.0, process(1, children_s=44.0), process(SHELL, children_s=2.0))
    assert find_outside_activity(before, after, set()).outside_cores == pytest.approx(0.4)


def test_earlier_time_of_processes_with_a_parent_out_of_sight_is_subtracted_from_init() -> None:
    before = look(0.0, process(1, parent=0), process(OTHER, 9.0, parent=0), process(201, 40.0, parent=OTHER))
    after = look(10.0, process(1, parent=0, children_s=41.0))
    assert find_outside_activity(before, after, set()).outside_cores == pytest.approx(0.0)


def test_no_more_is_counted_than_the_cpus_have_to_give() -> None:
    before = look(0.0, process(OURS), process(OTHER)).model_copy(update={"cpus": 2})
    after = look(10.0, process(OURS, 15.0), process(OTHER, 45.0), busy_s=60.0, idle_s=1.0)
    found = find_outside_activity(before, after, {OURS})
    assert found.outside_cores == pytest.approx(1.5)
    assert found.unseen_cores == pytest.approx(0.0)


def test_threads_of_the_kernel_are_told_apart_from_the_processes_of_others() -> None:
    before = look(0.0, process(OURS), process(9).model_copy(update={"kernel": True}))
    after = look(10.0, process(OURS), process(9, 4.0).model_copy(update={"kernel": True, "name": "kswapd0"}))
    found = find_outside_activity(before, after, {OURS})
    assert found.outside_cores == 0.0
    assert found.kernel_cores == pytest.approx(0.4)
    assert (found.busiest, [who.name for who in found.busiest_kernel]) == ((), ["kswapd0"])


def test_a_new_process_with_an_old_number_is_not_the_old_one() -> None:
    before, after = look(0.0, process(OTHER, 90.0, start=5)), look(10.0, process(OTHER, 4.0, start=900))
    assert find_outside_activity(before, after, set()).outside_cores == pytest.approx(0.4)


def test_load_that_no_process_explains_is_kept_apart() -> None:
    before, after = look(0.0, process(OURS)), look(10.0, process(OURS, 10.0), busy_s=25.0, idle_s=15.0)
    found = find_outside_activity(before, after, {OURS})
    assert (found.outside_cores, found.unseen_cores) == (0.0, 1.5)


def test_stolen_time_is_a_share_of_all_cpu_time() -> None:
    before = look(0.0, busy_s=100.0, idle_s=100.0, steal_s=50.0)
    after = look(10.0, busy_s=106.0, idle_s=112.0, steal_s=52.0)
    assert find_outside_activity(before, after, set()).steal_share == pytest.approx(0.1)


def test_two_looks_at_the_same_instant_tell_nothing_about_load() -> None:
    found = find_outside_activity(look(5.0, process(OTHER)), look(5.0, process(OTHER)), set())
    assert (found.steal_share, found.outside_cores, found.unseen_cores, found.busiest) == (None, None, None, ())


def test_strangers_on_a_gpu_are_named_once_and_ours_are_not() -> None:
    theirs = OnGpu(gpu="GPU-a", pid=OTHER, name="train", memory_mib=512.0)
    ours = OnGpu(gpu="GPU-a", pid=WORKER, name="python")
    before = look(0.0, process(OURS)).model_copy(update={"gpu_processes": (theirs,)})
    grown = theirs.model_copy(update={"memory_mib": 900.0})
    after = look(1.0, process(OURS), process(WORKER, parent=OURS)).model_copy(update={"gpu_processes": (ours, grown)})
    assert find_outside_activity(before, after, {OURS}).gpu_processes == (grown,)


def test_in_a_container_it_is_said_that_numbers_may_not_match() -> None:
    inside = look(0.0).model_copy(update={"pids_comparable": False})
    assert not find_outside_activity(inside, look(1.0), set()).pids_comparable


def test_in_a_container_only_who_was_on_the_gpu_before_and_after_us_is_surely_not_ours() -> None:
    there, came = OnGpu(gpu="GPU-a", pid=OURS), OnGpu(gpu="GPU-a", pid=OTHER)
    before = look(0.0, process(OURS)).model_copy(update={"pids_comparable": False, "gpu_processes": (there,)})
    after = look(1.0, process(OURS)).model_copy(update={"pids_comparable": False, "gpu_processes": (there, came)})
    assert find_outside_activity(before, after, {OURS}).gpu_processes == (there,)


KINDS = ("fork", "fork a subreaper", "end", "wait", "wait for all", "spend", "spend")
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(1, 400)), max_size=40)


def happen(world: World, several: list[tuple[str, int, int]], *, ignoring: bool) -> None:
    """Let steps happen in a world; ``ignoring``: some processes do not wait for their children."""
    for kind, which, length in several:
        who, ended = world.running[which % len(world.running)], [n for n in world.nodes.values() if n.zombie]
        if kind.startswith("fork"):
            world.fork(who, subreaper=kind != "fork", ignores_children=ignoring and length % 5 == 0)
        elif kind == "end":
            world.end(who)
        elif kind == "wait" and ended:
            world.wait(ended[which % len(ended)])
        elif kind == "wait for all":
            for each in ended:
                world.wait(each)
        elif kind == "spend":
            world.spend(0.013 * length, sorted(world.running, key=lambda node: (node.pid * which) % 17))


@pytest.mark.full
@settings(deadline=None, max_examples=400, derandomize=True)
@given(st.integers(1, 4), steps, steps, st.booleans())
def test_no_tree_of_processes_is_charged_more_than_it_used(
    cpus: int, earlier: list[tuple[str, int, int]], later: list[tuple[str, int, int]], ignoring: bool
) -> None:
    world = World(cpus)
    happen(world, earlier, ignoring=ignoring)
    before, bare_before, spent_s = world.look(), world.look(counts_cpus=False), world.spent_s
    happen(world, later, ignoring=ignoring)
    after, bare_after = world.look(), world.look(counts_cpus=False)
    rounding_s = 2 * TICK_S * (len(before.processes) + len(after.processes) + len(later))
    within, bare = cpu_used_s(before, after), cpu_used_s(bare_before, bare_after)
    assert min(within.values()) >= 0
    assert sum(within.values()) <= cpus * (after.at_s - before.at_s) * (1 + 1e-12)
    assert sum(bare.values()) <= world.spent_s - spent_s + rounding_s
    if not ignoring:
        assert sum(bare.values()) >= world.spent_s - spent_s - rounding_s
    whole = find_outside_activity(before, after, set())
    if whole.outside_cores is not None and whole.unseen_cores is not None:
        assert whole.outside_cores + whole.unseen_cores <= cpus * (1 + 1e-9)


parents = st.dictionaries(st.integers(2, 30), st.integers(1, 30), max_size=20)


@settings(deadline=None)
@given(parents, st.sets(st.integers(2, 30), max_size=5))
def test_a_family_holds_its_roots_and_is_closed_under_being_a_parent(tree: dict[int, int], roots: set[int]) -> None:
    everyone = [process(pid, parent=parent) for pid, parent in tree.items()]
    family = find_descendants(everyone, roots)
    assert roots <= family
    assert all(child.pid in family for child in everyone if child.parent in family)
    assert find_descendants(everyone, family) == family


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), max_size=8), st.integers(0, 8))
def test_what_is_ours_and_what_is_not_add_up_to_all_load(times: list[tuple[float, float]], mine: int) -> None:
    before = look(0.0, *(process(10 + n, own) for n, (own, _) in enumerate(times)))
    after = look(2.0, *(process(10 + n, own + more) for n, (own, more) in enumerate(times)))
    ours = {10 + n for n in range(min(mine, len(times)))}
    theirs = {10 + n for n in range(len(times))} - ours
    both = (find_outside_activity(before, after, who).outside_cores or 0.0 for who in (ours, theirs))
    assert sum(both) == pytest.approx(sum(more for _, more in times) / 2)


def test_a_recorded_look_is_read_from_its_tree(tmp_path: Path) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    rest = " ".join(["0"] * 9)
    write(
        tmp_path,
        {
            "proc/uptime": "1234.50 99.00",
            "proc/stat": f"cpu  {hz} {hz} {hz} {5 * hz} {hz} {hz} {hz} {2 * hz} 0 0\ncpu0 1 2 3",
            "proc/42/stat": f"42 (a (very) odd name) S 7 {rest} {3 * hz} {hz} {2 * hz} {hz} 20 0 1 0 777 0",
            "proc/43/stat": "43 (cut",
            "proc/self/stat": "44 (self) S",
        },
    )
    seen = take_snapshot(tmp_path, vendor=None)
    assert (seen.at_s, seen.busy_s, seen.idle_s, seen.steal_s) == (1234.5, 5.0, 6.0, 2.0)
    assert seen.processes == (
        ProcessUsage(pid=42, start_ticks=777, parent=7, name="a (very) odd name", own_s=4.0, children_s=3.0),
    )
    assert seen.pids_comparable


def test_an_empty_tree_is_an_empty_look(tmp_path: Path) -> None:
    assert take_snapshot(tmp_path, vendor=None).processes == ()


def test_processes_on_a_gpu_are_named_where_they_can_be_seen(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml()
    fake.set_processes(0, [GpuProcess(pid=os.getpid(), memory_bytes=2**20), GpuProcess(pid=2**22 + 1, graphics=True)])
    with attached(fake):
        seen = take_snapshot()
    assert [(p.pid, p.memory_mib) for p in seen.gpu_processes] == [(os.getpid(), 1.0), (2**22 + 1, 0.0)]
    assert seen.gpu_processes[0].name
    assert seen.gpu_processes[1].name is None
    found = find_outside_activity(seen, seen, {os.getpid()})
    assert [p.pid for p in found.gpu_processes] == [2**22 + 1]


BURN = """
import os, subprocess, sys, time
burn = "import sys, time\\nwhile time.process_time() < 1: pass\\nprint(flush=True)\\nsys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as burnt:
    burnt.stdout.readline()
    print("burnt", flush=True)
    sys.stdin.read()
"""


def test_a_real_child_and_its_child_that_end_together_leave_us_only_what_they_used_since() -> None:
    child = subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    before = take_snapshot(vendor=None)
    child.communicate()
    after = take_snapshot(vendor=None)
    (gained,) = [
        late.children_s - early.children_s
        for early in before.processes
        for late in after.processes
        if early.key == late.key and late.pid == os.getpid()
    ]
    used = {process.pid: seconds for process, seconds in cpu_used_s(before, after).items()}
    assert gained >= 1.0
    assert used[os.getpid()] < 1.0


def test_this_machine_agrees_with_psutil_about_this_process() -> None:
    seen = {p.pid: p for p in take_snapshot(vendor=None).processes}[os.getpid()]
    times = psutil.Process().cpu_times()
    assert seen.parent == os.getppid()
    assert seen.own_s == pytest.approx(times.user + times.system, abs=0.5)


def test_a_real_hog_is_a_stranger_unless_it_carries_our_mark(start_python: StartPython) -> None:
    hog = start_python(SPIN, env={**os.environ, **mark_environment("strangers-test")})
    assert hog.stdout is not None
    hog.stdout.readline()
    before = take_snapshot(vendor=None)
    begun_s = {p.pid: p.own_s for p in before.processes}[hog.pid]
    used, after = 0.0, before
    while used < 0.3:
        time.sleep(0.1)
        after = take_snapshot(vendor=None)
        used = {p.pid: p.own_s for p in after.processes}[hog.pid] - begun_s
    ours = set(list_marked("strangers-test"))
    hog.kill()
    assert ours == {hog.pid}
    alone = find_outside_activity(before, after, set())
    assert alone.outside_cores is not None
    assert alone.outside_cores >= used / (after.at_s - before.at_s) * 0.99
    busier = [who for who in alone.busiest if who.cores >= used / (after.at_s - before.at_s)]
    assert hog.pid in {who.pid for who in alone.busiest} or len(busier) == len(alone.busiest) > 1
    with_mark = find_outside_activity(before, after, ours)
    assert with_mark.outside_cores is not None
    assert with_mark.outside_cores < alone.outside_cores
    assert hog.pid not in {who.pid for who in with_mark.busiest}
    assert (
        find_outside_activity(before, after, {os.getpid()}).busiest
        == find_outside_activity(before, after, {os.getpid(), hog.pid}).busiest
    )
