"""The data of each shard of each ring, made from the seed and its place: any rank can make any of it again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from assay.workloads.torch_data import draw

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.problem import Problem
    from assay.workloads.torch_device import Tensor

TENSORS = ("q", "k", "v", "gradient")
MOST_SHARDS = 2**20
"""Of a ring, at most: rings are numbered behind their shards."""


@dataclass(frozen=True)
class Source:
    """Where the data of one ring comes from.

    Attributes:
        problem: Gives the shapes.
        seed: The same on every rank.
        ring: The number of the ring.
        where: PyTorch's name of the device.
    """

    problem: Problem
    seed: int
    ring: int
    where: str

    def shard(self, place: int) -> Shard:
        """Return a shard; subjects of one process share it while one of them holds it."""
        costs = self.problem.costs
        heads = (costs.heads.queries, costs.heads.keys)
        sizes = (costs.batch, self.problem.shard, *heads, costs.dim)
        key = (sizes, self.problem.dtype, self.seed, self.ring, place, self.where)
        shard = _KEPT.get(key)
        if shard is None:
            shard = _KEPT[key] = Shard(self, place)
        return shard

    def tensor(self, name: str, place: int) -> Tensor:
        """Return one tensor of a shard, (batch, position, heads, dim), drawn anew."""
        costs = self.problem.costs
        number = TENSORS.index(name)
        heads = costs.heads.queries if name in {"q", "gradient"} else costs.heads.keys
        shape = (costs.batch, self.problem.shard, heads, costs.dim)
        stream = (self.ring * MOST_SHARDS + place) * len(TENSORS) + number
        return draw("normal", shape, self.problem.dtype, self.seed, where=self.where, stream=stream)


@dataclass(eq=False)
class Shard:
    """Queries, keys and values of one place of a ring, and the gradient of the output; each drawn when first used."""

    source: Source
    place: int

    @cached_property
    def q(self) -> Tensor:
        """Queries."""
        return self.source.tensor("q", self.place)

    @cached_property
    def k(self) -> Tensor:
        """Keys."""
        return self.source.tensor("k", self.place)

    @cached_property
    def v(self) -> Tensor:
        """Values."""
        return self.source.tensor("v", self.place)

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient of the output."""
        return self.source.tensor("gradient", self.place)


_KEPT: WeakValueDictionary[object, Shard] = WeakValueDictionary()
