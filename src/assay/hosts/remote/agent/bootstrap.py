"""Create an environment: exactly this version, unpacked, and its missing dependencies beside it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import site
import subprocess
import sys
import time
import zipfile
from importlib.metadata import PackageNotFoundError, PathDistribution, version
from pathlib import Path
from shlex import quote

from assay.hosts.remote.agent import folder as job_folder

VERSION = "version"
UNUSED_S = 30 * 24 * 3600.0
PIP_LAST_LINES = 3


def main(base: Path, key: str, wheel: Path) -> int:
    """Create the environment unless it exists; remove others that were not used for a month."""
    environment = base / "env" / key
    try:
        with (base / "env" / f".{key}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (environment / job_folder.ENV).exists():
                _make_environment(environment, wheel)
        for marker in (base / "env").glob(f"*/{job_folder.ENV}"):
            if marker.parent != environment and time.time() - marker.stat().st_mtime > UNUSED_S:
                shutil.rmtree(marker.parent, ignore_errors=True)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}: {error.filename or environment}")
        return 1
    finally:
        wheel.unlink(missing_ok=True)
    return 0


def _make_environment(environment: Path, wheel: Path) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    contents = environment / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(contents)
    missing = missing_requirements(contents)
    python = _create_venv(missing, environment / "venv") if missing else Path(sys.executable)
    (environment / VERSION).write_text(sys.version)
    part = environment / ".env"
    part.write_text(f"python={quote(str(python))}\nPYTHONPATH={quote(str(contents))}\nexport PYTHONPATH\n")
    part.rename(environment / job_folder.ENV)


def missing_requirements(contents: Path) -> list[str]:
    """Return the requirements of an unpacked wheel that are not installed in a suitable version."""
    (dist_info,) = contents.glob("*.dist-info")
    requirements = PathDistribution(dist_info).requires or []
    return [requirement for requirement in requirements if ";" not in requirement and not _is_installed(requirement)]


def _is_installed(requirement: str) -> bool:
    name, limits = re.fullmatch(r"([\w.-]+)(?:\[.*?\])?\s*(.*)", requirement).groups()  # type: ignore[union-attr]
    try:
        installed = _numbers(version(name))
    except PackageNotFoundError:
        return False
    bounds = re.findall(r"(>=|<)\s*([\w.]+)", limits)
    return all((sign == ">=") == (installed >= _numbers(bound)) for sign, bound in bounds)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _create_venv(missing: list[str], folder: Path) -> Path:
    """Create a virtual environment with this one's packages and the missing ones; return its interpreter."""
    names = ", ".join(re.split(r"[<>=!~ \[]", requirement)[0] for requirement in missing)
    prefix = f"{names} {'is' if len(missing) == 1 else 'are'} not installed for {sys.executable}, and "
    python = folder / "bin" / "python"
    _run_checked([sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(folder)], prefix)
    (packages,) = folder.glob("lib/python*/site-packages")
    site_folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    (packages / "seen.pth").write_text("\n".join(site_folders) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    _run_checked([*pip, "install", "--quiet", "--no-input", "--disable-pip-version-check", *missing], prefix)
    return python


def _run_checked(command: list[str], prefix: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
    )
    if result.returncode != 0:
        lines = [line.strip() for line in (result.stdout + result.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise SystemExit(f"{prefix}{command[2]} could not get them: {' '.join(errors[-PIP_LAST_LINES:])[:600]}")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
