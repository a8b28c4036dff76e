"""Find a host by the value of ``--on``: built-in, or from an installed plug-in."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot, suggest_nearest

if TYPE_CHECKING:
    from assay.hosts.base import Host

BUILT_IN = {
    "lambda": "assay.hosts.providers.lambda_cloud:HOST",
    "modal": "assay.hosts.providers.modal:HOST",
    "runpod": "assay.hosts.providers.runpod:HOST",
    "slurm": "assay.hosts.slurm.host:HOST",
    "ssh": "assay.hosts.ssh:HOST",
}
ENTRY_POINTS = "assay.hosts"
LOCAL = "local"
AUTO = "auto"
"""The cheapest of all rental hosts."""


def known_hosts() -> dict[str, str]:
    """Return each host's name and its ``module:attribute``; this machine is not among them."""
    plugins = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {**plugins, **BUILT_IN}


def parse_host(text: str) -> tuple[str, str | None]:
    """Parse a host's name and place from ``slurm``, ``slurm:PARTITION``, ``local`` or ``auto``."""
    name, colon, host_place = text.partition(":")
    names = (LOCAL, AUTO, *sorted(known_hosts()))
    if name not in names:
        raise BadInput(f"There is no host {name!r}; --on takes {' or '.join(names)}.{suggest_nearest(name, names)}")
    if colon and (not host_place or name == LOCAL):
        raise BadInput(f"--on {text} names no place; write --on {'ssh:HOST' if name == 'ssh' else name}.")
    if colon and name == AUTO:
        raise BadInput(f"--on {text}: auto takes no place, as it asks every host; write --on auto.")
    return name, host_place or None


def find_host(name: str) -> Host:
    """Return a host that can be used from here.

    Raises:
        MachineCannot: The host is known, but something it needs is missing.
    """
    host = load_host(name)
    missing = host.available()
    if missing is not None:
        raise MachineCannot(f"--on {name} cannot be queried from here: {missing}.")
    return host


def load_host(name: str) -> Host:
    """Return a host, whether or not it can be used from here.

    Raises:
        MachineCannot: A package that it imports is not installed.
    """
    module, _, attribute = known_hosts()[name].partition(":")
    try:
        host: Host = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise MachineCannot(f"The host {name} cannot be loaded here: {error}.") from error
    return host
