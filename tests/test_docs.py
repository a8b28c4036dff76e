"""Every command that the documents show works as shown, shortened, and so does every example in Python."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import assay as package
from assay.store.run_folder import RunFolder
from tests.running import made_once

if TYPE_CHECKING:
    from tests.forking import Forking
    from tests.running import Ran

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


QUICK_TO_START = {"softmax", "gemm", "flash_attention"}
"""What has an implementation in numpy, whose workers start in a fraction of the time that PyTorch takes."""


SMALL_RINGS = (
    "--seq-lengths", "256", "--segment-lengths", "64,256", "--dilation-rates", "1,2", "--num-heads", "2",
    "--embed-dim", "16", "--ring-sizes", "2", "--isolation", "none", "--no-monitor",
)  # fmt: skip
"""A shape of two ranks that is computed in milliseconds."""


SMALL_GRID = ("--quick", "--sizes", "32,64", "--isolation", "none", "--no-monitor")
"""A few points in two processes."""


IMPORTED = {
    "contention run": ("torch",),
    "energy run": ("torch", "transformers"),
    "scaling run": ("torch",),
    "scaling test": ("torch",),
}
"""What all processes of a verb's commands import, and have imported already when they are forked."""


def commands(document: Path) -> list[str]:
    """Return the ``assay`` lines of a document's shell examples."""
    blocks = re.findall(r"^```bash\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("assay ")]


def fresh(document: Path) -> list[str]:
    """Return the commands that no document before this one has, and those whose run such a command looks at."""
    before = {line for other in DOCUMENTS[: DOCUMENTS.index(document)] for line in commands(other)}
    found: list[str] = []
    run: str | None = None
    for line in dict.fromkeys(commands(document)):
        if line not in before:
            if "runs/" in line and run is not None and run not in found:
                found.append(run)
            found.append(line)
        run = line if makes_a_run(line) else run
    return found


def makes_a_run(command: str) -> bool:
    """Return whether ``runs/latest`` is another run after this command."""
    makes = re.match(
        r"assay (run|contention run|contention matrix|scaling run|power characterize|power sweep|threshold run"
        r"|energy run)\b",
        command,
    )
    return makes is not None and "--dry-run" not in command


def shortened(command: str) -> list[str]:
    """Return a command's words, with less time to measure in."""
    import shlex

    words = shlex.split(command)[1:]
    if words[0] == "time":
        return [*words, "--budget", "0.3"]
    if "--dry-run" in words:
        return words
    if words[0] != "run":
        return [*words, *less_of(words)]
    if "concurrent" not in words:
        words = ["cpu:0" if word == "cpu" else word for word in words]
    words = [f"{word}@numpy" if word in QUICK_TO_START else word for word in words]
    quick = ["--duration", "0.3", "--repeat", "1", "--restarts", "1"]
    cut = words.index("--") if "--" in words else len(words)
    return [*words[:cut], *quick, *words[cut:]]


def less_of(words: list[str]) -> tuple[str, ...]:
    """Return options with which a verb of two words measures less."""
    if words[:2] == ["contention", "run"]:
        tuned = any(word.startswith("--tuner") for word in words)
        return ("--budget", "1", "--repeat", "1", *(() if tuned else ("--tuner", "none")))
    if words[:2] == ["threshold", "run"]:
        return SMALL_GRID if any(word.endswith(".yaml") for word in words) else ("--dry-run",)
    least = {
        ("scaling", "run"): SMALL_RINGS,
        ("power", "characterize"): ("--case", "idle", "--duration", "0.3"),
        ("energy", "run"): ("--set", "scenario.window_s=0.1", "--set", "scenario.output_tokens=4"),
    }
    return least.get((words[0], words[1] if len(words) > 1 else ""), ())


def copy_examples(folder: Path) -> None:
    """Copy the examples; what they name without an implementation is what starts quickly."""
    shutil.copytree(ROOT / "examples", folder)
    options = folder / "run.yaml"
    names = "|".join(QUICK_TO_START)
    options.write_text(re.sub(rf"\b({names})\b", r"\1@numpy", options.read_text(encoding="utf-8")), encoding="utf-8")


def shared() -> set[str]:
    """Return the one command whose run is looked at in several documents: it is made once."""
    times = Counter(command for document in DOCUMENTS for command in fresh(document))
    several = {command for command, count in times.items() if count > 1}
    assert len(several) <= 1, several
    return several


def works(command: str, forking: Forking, place: Path) -> None:
    """Run a command, shortened, in a folder."""
    words = shortened(command)
    imported = () if "--dry-run" in words else IMPORTED.get(" ".join(words[:2]), ())
    ran = forking.run(words, cwd=place, environment=os.environ, timeout_s=900, imported=imported)
    assert ran.returncode == 0, f"{command}: {ran.stderr}"


def copy_run(place: Path, workplace: Path) -> None:
    """Copy a run, as if it was measured in this folder."""
    (workplace / "runs/latest").unlink(missing_ok=True)
    shutil.copytree(place / "runs", workplace / "runs", symlinks=True, dirs_exist_ok=True)
    folder = RunFolder.open(workplace / "runs/latest")
    folder.start_in(folder.plan.cwd.replace(str(place), str(workplace)))


@pytest.mark.full
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if fresh(d)], ids=lambda path: path.name)
def test_every_command_in_the_documents_works(
    document: Path,
    forking: Forking,
    workplace: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if any("--on slurm" in command for command in fresh(document)):
        request.getfixturevalue("slurm")
    copy_examples(workplace / "examples")
    for command in fresh(document):
        if "runs/" in command and not (workplace / "runs").exists():
            request.getfixturevalue("finished")
        if command in shared():
            place = made_once(tmp_path_factory, "documented-run", partial(works, command, forking))
            copy_run(place, workplace)
        else:
            works(command, forking, workplace)


def examples(document: Path) -> list[str]:
    """Return a document's examples in Python, each a whole program."""
    return re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def missing(example: str) -> list[str]:
    """Return the modules that an example imports and that are not installed here."""
    modules = re.findall(r"^(?:import|from) (\w+)", example, re.MULTILINE)
    return [module for module in modules if importlib.util.find_spec(module) is None]


@pytest.mark.full
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if examples(d)], ids=lambda path: path.name)
def test_every_example_in_python_works(document: Path, workplace: Path, request: pytest.FixtureRequest) -> None:
    if any("runs/" in example for example in examples(document)):
        request.getfixturevalue("finished")
    for number, example in enumerate(examples(document)):
        if missing(example):
            continue
        file = workplace / f"test_example_{number}.py"
        file.write_text(example, encoding="utf-8")
        how = ("-m", "pytest", "-q", "-p", "no:cacheprovider") if "def test_" in example else ()
        ran = subprocess.run(
            [sys.executable, *how, file],
            cwd=workplace,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert ran.returncode == 0, f"{example}: {ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


@pytest.mark.full
def test_the_python_example_of_reading_a_run_works(finished: Ran) -> None:
    text = (ROOT / "docs/running.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    printed: list[object] = []
    exec(compile(example, "running.md", "exec"), {"print": lambda *words: printed.extend(words)})  # noqa: S102
    assert printed[:3] == ["repeat-1", "cpu:0", "call_us"]


def test_the_public_names_are_sorted_and_load() -> None:
    assert package.__all__ == sorted(package.__all__)
    assert dir(package) == package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = package.nonsense


def test_what_only_a_gpu_shows_is_in_the_table() -> None:
    tests = ROOT / "tests"
    marked = {path for path in tests.rglob("test_*.py") if re.search(r"pytest\.mark\.gpu\b", path.read_text("utf-8"))}
    told = re.findall(r"^\| `([^`]+)` \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(str(path.relative_to(tests)) for path in marked - {Path(__file__)})
