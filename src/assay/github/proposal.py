"""Which values of a configuration the results change; if none may change, the reason."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.threshold.answers import PARITY_PHRASES, describe_location
from assay.store import yaml_edit
from assay.store.yaml_edit import YamlTree, equal_scalars, find_value

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.github.results import VerifiedResults

BRANCH_PREFIX = "assay/thresholds-"


@dataclass(frozen=True)
class ProposedChange:
    """One threshold: the configuration's value, and the measured one.

    ``new`` is null where nothing is to be written.
    """

    answer: ThresholdAnswer
    old: object
    new: Scalar

    @property
    def differs(self) -> bool:
        """Whether the configuration changes."""
        return self.new is not None and not equal_scalars(self.old, self.new)

    @property
    def interval_text(self) -> str:
        """The interval of sizes that contains the threshold, or why there is none, in a few words."""
        threshold = self.answer.location
        if self.answer.parity != "passed":
            return f"none, as parity {PARITY_PHRASES[self.answer.parity]}"
        if threshold.decision == "threshold":
            return f"{threshold.low:g} to {threshold.high:g}"
        return describe_location(threshold)


@dataclass(frozen=True)
class Proposal:
    """The changes that the results of one device imply.

    Attributes:
        path: Of the configuration, within the repository.
        before: Its text.
        after: Its text with the new values; the same where nothing changes.
        missing_reason: Why nothing is proposed, as a sentence; null where something is.
    """

    measured: VerifiedResults
    path: str
    before: str
    after: str
    changes: tuple[ProposedChange, ...]
    missing_reason: str | None

    @property
    def diff(self) -> str:
        """The changes as a unified diff."""
        return yaml_edit.unified_diff(self.before, self.after, self.path)


def propose_changes(measured: VerifiedResults, path: str, text: str) -> Proposal:
    """Return the changes of results to the text of a configuration.

    Raises:
        BadInput: It is not YAML, or lacks a key.
    """
    tree = YamlTree(text, path)
    changes = tuple(_threshold_change(tree, answer, path) for answer in measured.answers)
    reason = _rejection_reason(measured, changes, path)
    new_values = {change.answer.key: change.new for change in changes if change.differs}
    after = text if reason else yaml_edit.edit_text(text, new_values, name=path)
    return Proposal(measured, path, text, after, changes, reason)


def _threshold_change(tree: YamlTree, answer: ThresholdAnswer, path: str) -> ProposedChange:
    last, node = find_value(tree, answer.key, path)
    return ProposedChange(answer, tree.meaning(tree.slot(last, node)), answer.value)


def _rejection_reason(measured: VerifiedResults, changes: tuple[ProposedChange, ...], path: str) -> str | None:
    """Return why nothing is proposed, the most serious reason first; null where something is."""
    failing = [change for change in changes if change.answer.judgement.measured and change.answer.parity != "passed"]
    if failing:
        parity_phrase = PARITY_PHRASES[failing[0].answer.parity]
        return (
            f"Parity {parity_phrase} for {failing[0].answer.key}: a fast path that is not known to be right is not "
            "made the rule."
        )
    if measured.is_fake:
        return "The driver calls itself a fake: what it says was not measured on any GPU."
    if all(change.new is None for change in changes):
        return "From which size on the fast path is faster cannot be told."
    if not any(change.differs for change in changes):
        return f"{path} has these values already."
    return None


def proposal_branch(device: str, path: str, base: str) -> str:
    """Return the branch of a proposal: one for each device, configuration and base, so that it is found again."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:40].strip("-") or "device"
    digest = hashlib.sha256("\0".join((device, path, base)).encode()).hexdigest()[:8]
    return f"{BRANCH_PREFIX}{name}-{digest}"


def check_config_path(path: str) -> str:
    """Return the path of a configuration within a repository.

    Raises:
        BadInput: It leads out of the repository, or is not YAML.
    """
    parts = path.split("/")
    is_plain = re.fullmatch(r"[A-Za-z0-9._/ -]{1,200}", path) is not None
    if not is_plain or any(part in {"", ".", "..", ".git"} for part in parts) or parts[0] == ".github":
        raise BadInput(f"{path!r} is no path of a configuration within the repository, such as configs/base.yaml.")
    if not path.endswith((".yaml", ".yml")):
        raise BadInput(f"{path} is not YAML by its name.")
    return path
