"""A real sshd on loopback, with keys, caches and homes of its own; the system's ssh finds it under the name gpu1."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

NAME = "gpu1"
SSHD = "/usr/sbin/sshd"


def missing() -> list[str]:
    """Return the programs that are needed and not here."""
    programs = {"sshd": SSHD, "ssh": "ssh", "ssh-keygen": "ssh-keygen"}
    return [name for name, path in programs.items() if shutil.which(path) is None]


class Server:
    """An sshd that lets this user in with one key; ``there`` is what a machine elsewhere would have to itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.there = folder / "there"
        self.cache = self.there / "cache" / "assay"
        self.home = self.there / "home"
        self.bin = folder / "bin"
        self.port = 0
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the first time with fresh keys."""
        if not self.bin.exists():
            self._set_up()
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = (self.folder / "sshd.log").open("ab")
        with log:
            self._daemon = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, (self.folder / "sshd.log").read_text()
                assert self._daemon.poll() is None, (self.folder / "sshd.log").read_text()
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """End it, and every connection it serves."""
        if self._daemon is None:
            return
        self.cut()
        self._daemon.kill()
        self._daemon.wait()
        self._daemon = None

    def cut(self) -> int:
        """Cut every connection, as a network would: what was started over it is not told. Return how many."""
        return sum(_killed(pid) for pid in self.sessions())

    def sessions(self) -> list[int]:
        """Return the processes that serve connections."""
        assert self._daemon is not None
        children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children").read_text().split()
        served = [int(pid) for pid in children]
        for pid in tuple(served):
            try:
                inner = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                served += [int(each) for each in inner if Path(f"/proc/{each}/comm").read_text().startswith("sshd")]
            except OSError:
                continue
        return served

    def line_options(self) -> tuple[str, ...]:
        """Return what ssh has to be told to find it."""
        return ("-F", str(self.folder / "ssh_config"))

    def _set_up(self) -> None:
        for path in (self.bin, self.cache, self.home):
            path.mkdir(parents=True)
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)],
                check=True,
                stdin=subprocess.DEVNULL,
            )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        host_key = (self.folder / "host.pub").read_text().rsplit(" ", 1)[0]
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        (self.folder / "sshd_config").write_text(self._server_config())
        (self.folder / "ssh_config").write_text(self._client_config())
        wrapper = self.bin / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.folder}/ssh_config "$@"\n')
        wrapper.chmod(0o755)

    def _server_config(self) -> str:
        environment = f"XDG_CACHE_HOME={self.cache.parent} ASSAY_HOME={self.home}"
        return "\n".join(
            [
                f"Port {self.port}",
                "ListenAddress 127.0.0.1",
                f"HostKey {self.folder}/host",
                f"AuthorizedKeysFile {self.folder}/authorized",
                "PidFile none",
                "StrictModes no",
                "UsePAM no",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "PermitRootLogin yes",
                "MaxStartups 100",
                f"SetEnv {environment}",
                "",
            ]
        )

    def _client_config(self) -> str:
        return "\n".join(
            [
                f"Host {NAME}",
                "  HostName 127.0.0.1",
                f"  Port {self.port}",
                f"  IdentityFile {self.folder}/user",
                "Host down",
                "  HostName 127.0.0.1",
                "  Port 1",
                "Host stranger",
                "  HostName 127.0.0.1",
                f"  Port {self.port}",
                f"  IdentityFile {self.folder}/nobody",
                "Host *",
                "  IdentitiesOnly yes",
                "  IdentityAgent none",
                f"  UserKnownHostsFile {self.folder}/known",
                "  StrictHostKeyChecking yes",
                "",
            ]
        )


def _killed(pid: int) -> int:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return 0
    return 1
