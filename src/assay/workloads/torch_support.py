"""Shared code of PyTorch workloads: seeded tensors, float64 references, checks against them, and the prepared call.

A reference takes the inputs and the required rows of the output (a slice or a tensor of indices) and does not change
the inputs. It is computed in float64 on the tensors' device, which makes checking a large problem on a GPU fast; where
checking everything would take long, rows spread over the whole output are checked.

Inputs of up to ``MOST_FROM_NUMPY`` elements are those of ``numpy_support``, so the same in every implementation. Larger
ones are drawn on the device, in float64 as well, by PyTorch's generator: the same for one seed, one version of PyTorch
and one GPU model, but different from those of a CPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from assay.core.errors import BadInput
from assay.core.results import Check
from assay.workloads.base import LaunchedKernels, PreparedWorkload, UntunedWorkload, shared_data
from assay.workloads.numpy_support import DISTRIBUTIONS, RELATIVE_ERROR, draw_array, tolerance_of
from assay.workloads.parameters import TensorProblem, check_choice, read_flag
from assay.workloads.torch_device import (
    Tensor,
    import_torch,
    library_of_kernels,
    list_kernels,
    open_device,
    synchronizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from assay.core.values import Params, Scalar
    from assay.workloads.numpy_support import ArrayShape

MOST_FLOP = {"cuda": 4e11, "cpu": 5e9}  # FLOP that a check may take, by kind of device: well under a second
FLOP_PER_ELEMENT = 100.0  # cost of reading and writing an element, in FLOP, beside the arithmetic
FEWEST_ROWS, MOST_ROWS = 64, 2**20  # limits of the number of rows to check where not all are
_ELEMENTS_AT_ONCE = 2**25  # 256 MiB of float64


@dataclass(frozen=True)
class TensorReference:
    """The reference of an output by rows, which are the first axis."""

    rows: int  # number of rows
    compute_rows: Callable[[RowSelection], Tensor]  # returns some of them in float64
    flop_per_row: float  # floating-point operations to compute one row
    elements_per_row: float  # float64 elements held while one row is computed
    by_rows: Callable[[Tensor], Tensor] = lambda out: out  # returns an output with the rows as its first axis

    def rows_within(self, flop: float) -> int:
        """Return the number of rows to check within this many FLOP: all, or a number within the limits."""
        cost = self.flop_per_row + FLOP_PER_ELEMENT * self.elements_per_row
        affordable = max(FEWEST_ROWS, int(flop / cost))
        return self.rows if affordable >= self.rows else min(affordable, MOST_ROWS)


def compare_with_reference(out: Tensor, reference: TensorReference, *, tolerance: float, seed: int) -> Check:
    """Return the relative error of an output, with the rows it was computed over where not all.

    A wrong shape, and a NaN or an infinity anywhere, give infinity, which no tolerance admits.
    """
    count = reference.rows_within(MOST_FLOP[out.device.type])
    if count == reference.rows:
        return Check(error=_relative_error(out, reference, None), tolerance=tolerance, measure=RELATIVE_ERROR)
    chosen = spread_rows(reference.rows, count, seed)
    of_all = f"{count} of {reference.rows} rows, one at random from each of {count} bands (seed {seed})"
    parts = out.split(max(1, _ELEMENTS_AT_ONCE // max(1, out[0].numel())))
    finite = all(bool(part.isfinite().all()) for part in parts)
    error = _relative_error(out, reference, chosen) if finite else math.inf
    return Check(error=error, tolerance=tolerance, measure=f"{RELATIVE_ERROR} over {of_all}")


def spread_rows(rows: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return one random row out of each of ``count`` equal bands of the rows, in order."""
    edges = np.arange(count + 1, dtype=np.int64) * rows // count
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


class SquaredErrors:
    """Sums of squared differences from the expected values and of squared expected values, tensor by tensor."""

    def __init__(self) -> None:
        self._difference = self._norm = 0.0

    def add(self, actual: Tensor, expected: Tensor) -> None:
        """Add a tensor and its expected values."""
        self._difference += float((actual.detach().double() - expected).square().sum())
        self._norm += float(expected.square().sum())

    @property
    def error(self) -> float:
        """‖actual − expected‖ / ‖expected‖; infinity if it is not finite, or not zero where all expected values are."""
        if self._norm == 0:
            return 0.0 if self._difference == 0 else math.inf
        error = math.sqrt(self._difference / self._norm)
        return error if math.isfinite(error) else math.inf


def _relative_error(out: Tensor, reference: TensorReference, chosen: NDArray[np.int64] | None) -> float:
    if out.shape[0] != reference.rows:
        return math.inf
    squares = SquaredErrors()
    for which in _row_chunks(reference, chosen, out.device):
        expected, values = reference.compute_rows(which), out[which]
        if values.shape != expected.shape:
            return math.inf
        squares.add(values, expected)
    return squares.error


def _row_chunks(reference: TensorReference, chosen: NDArray[np.int64] | None, device: object) -> Iterator[RowSelection]:
    """Yield the rows to check, as many at a time as memory allows."""
    step = max(1, int(_ELEMENTS_AT_ONCE / reference.elements_per_row))
    if chosen is None:
        for start in range(0, reference.rows, step):
            yield slice(start, start + step)
    else:
        yield from import_torch().from_numpy(chosen).to(device).split(step)


TORCH_DTYPES = ("bfloat16", "float16", "float32", "float64")

EPS = 1e-5  # the epsilon that norms add to a mean square before the square root


@dataclass(frozen=True)
class TensorWork:
    """One call's work on existing tensors."""

    call: Callable[[], Tensor]  # does the work and returns its output
    reference: TensorReference  # the expected output
    tolerance: float  # the largest relative error that passes
    flop: float | None  # floating-point operations of one call; null where there are none
    bytes_moved: float  # least number of bytes one call must read and write
    out: Tensor | None = None  # the output tensor, where calls write into the same one; null: each returns its own
    backend: Callable[[tuple[str, ...]], str | None] = library_of_kernels  # returns the library of kernels

    def check(self, seed: int) -> Check:
        """Make one call, with its output buffer overwritten by NaN before, and compare; the seed selects the rows."""
        if self.out is not None:
            self.out.fill_(math.nan)
        out = self.reference.by_rows(self.call())
        return compare_with_reference(out, self.reference, tolerance=self.tolerance, seed=seed)

    def prepare(self, *, where: str, seed: int) -> PreparedWorkload:
        """Return the workload ready to be timed."""

        def launched_kernels() -> LaunchedKernels:
            kernels = list_kernels(self.call, where)
            return LaunchedKernels(kernels, self.backend(kernels))

        return PreparedWorkload(
            call=self.call,
            check=lambda: self.check(seed),
            launched_kernels=launched_kernels,
            flop=self.flop,
            bytes_moved=self.bytes_moved,
            synchronize=synchronizer(where),
        )


class TorchWorkload(UntunedWorkload):
    """Base class of workloads of PyTorch's own operators: they run on every device, and PyTorch tunes them itself."""

    impl = "torch"
    device_kinds = frozenset({"cpu", "cuda"})
    choices: Mapping[str, tuple[str, ...]] = {"dtype": TORCH_DTYPES, "distribution": DISTRIBUTIONS}


_Problem = TypeVar("_Problem", bound=TensorProblem)


class TensorOperator(UntunedWorkload, ABC, Generic[_Problem]):
    """An operator on tensors in one implementation.

    One subclass for each operator says what is computed: the problem, its default size and the reference. For each
    implementation, a subclass of that one says how.
    """

    problem_type: type[_Problem]
    dtypes: tuple[str, ...] = TORCH_DTYPES
    cpu_params: ClassVar[Params]
    gpu_params: ClassVar[Params]
    """Default parameters but for the distribution: sizes in elements and the dtype, enough to fill a GPU."""

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the sizes in elements, the dtype and the distribution of the inputs."""
        return {**(self.gpu_params if device_kind == "cuda" else self.cpu_params), "distribution": "normal"}

    def read_problem(self, params: Params) -> _Problem:
        """Return the problem, or refuse a parameter."""
        return self.problem_type.of(params, self.dtypes)

    @abstractmethod
    def reference(self, problem: _Problem, *inputs: Tensor) -> TensorReference:
        """Return the expected output."""

    def tolerance(self, params: Params, dtype: str) -> float:
        """Return the largest relative error that passes."""
        return tolerance_of("tf32" if uses_tf32(params, dtype) else dtype)

    def draw_inputs(self, params: Params, problem: _Problem, *, where: str, seed: int) -> tuple[Tensor, ...]:
        """Return the inputs, each drawn from a stream of its own."""
        return tuple(
            draw_tensor(params["distribution"], shape, problem.dtype, seed, where=where, stream=stream)
            for stream, shape in enumerate(problem.input_shapes)
        )

    def describe_work(
        self,
        params: Params,
        inputs: tuple[Tensor, ...],
        call: Callable[[], Tensor],
        out: Tensor | None,
        backend: Callable[[tuple[str, ...]], str | None],
    ) -> TensorWork:
        """Return the work of a call on these inputs; ``out`` is null where each call returns a tensor of its own."""
        problem = self.read_problem(params)
        return TensorWork(
            call=call,
            reference=self.reference(problem, *inputs),
            tolerance=self.tolerance(params, problem.dtype),
            flop=problem.flop,
            bytes_moved=problem.bytes_moved,
            out=out,
            backend=backend,
        )


class TorchOperator(TensorOperator[_Problem], TorchWorkload):
    """An operator by PyTorch."""

    @abstractmethod
    def make_call(self, params: Params, *inputs: Tensor) -> tuple[Callable[[], Tensor], Tensor | None]:
        """Return the call and the tensor that it writes into; null where each call returns a tensor of its own."""

    def backend(self, params: Params, kernels: tuple[str, ...]) -> str | None:
        """Return the library of the launched kernels; null where none were recorded."""
        return library_of_kernels(kernels)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Draw the inputs, and allocate the output."""
        problem, where = self.read_problem(params), open_device(device)
        inputs = self.draw_inputs(params, problem, where=where, seed=seed)
        call, out = self.make_call(params, *inputs)
        work = self.describe_work(params, inputs, call, out, partial(self.backend, params))
        return work.prepare(where=where, seed=seed)


def uses_tf32(params: Params, dtype: str) -> bool:
    """Return whether TF32 is requested for float32 products; refuse it for other dtypes."""
    requested = "tf32" in params and read_flag(params, "tf32")
    if requested and dtype != "float32":
        raise BadInput(f"tf32 is a way to multiply float32, not {dtype}.")
    return requested


RowSelection: TypeAlias = "slice | Tensor"  # rows of an output: a slice, or a tensor of row indices


def reference_matmul_rows(a: Tensor, b: Tensor, which: RowSelection) -> Tensor:
    """Return rows of a·b, as two products of half the depth, so that float64 is not checked against the same call."""
    rows, half = a[which].double(), b.shape[0] // 2
    return rows[:, :half] @ b[:half].double() + rows[:, half:] @ b[half:].double()


def reference_softmax_rows(x: Tensor, which: RowSelection) -> Tensor:
    """Return rows of the softmax along the last axis."""
    return _softmax_float64(x[which].double())


def reference_rms_norm_rows(x: Tensor, weight: Tensor, eps: float, which: RowSelection) -> Tensor:
    """Return rows of x divided by the root of their mean square plus eps, times the weights."""
    rows = x[which].double()
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


def reference_layer_norm_rows(x: Tensor, weight: Tensor, bias: Tensor, eps: float, which: RowSelection) -> Tensor:
    """Return rows of x normalized to mean 0 and variance 1 (up to eps), times the weights, plus the biases."""
    rows = x[which].double()
    rows = rows - rows.mean(-1, keepdim=True)
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double() + bias.double()


def reference_attention_rows(q: Tensor, k: Tensor, v: Tensor, which: RowSelection, *, causal: bool) -> Tensor:
    """Return the attention of some queries of every head, as (query, batch, head, dim).

    The inputs are (batch, head, position, dim). With ``causal`` a query sees its own position and those before it.
    """
    scores = q[:, :, which].double() @ k.double().mT / math.sqrt(q.shape[3])
    if causal:
        positions = import_torch().arange(q.shape[2], device=q.device)
        scores.masked_fill_(positions > positions[which][:, None], -math.inf)
    return (_softmax_float64(scores) @ v.double()).permute(2, 0, 1, 3)


def _softmax_float64(x: Tensor) -> Tensor:
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


MOST_FROM_NUMPY = 2**22  # elements; numpy draws this many in about a tenth of a second
_ELEMENTS_PER_DRAW = 2**24  # elements; 128 MiB of float64 are held beside the tensor while it is filled


def draw_tensor(
    distribution: Scalar, shape: ArrayShape, dtype: str, seed: int, *, where: str, stream: int = 0
) -> Tensor:
    """Return a tensor on a device; each input of a call uses its own stream."""
    make = partial(_draw_new, distribution, shape, dtype, seed, where=where, stream=stream)
    return shared_data(("torch", distribution, shape, dtype, seed, where, stream), make)


def empty_output(like: Tensor, shape: ArrayShape) -> Tensor:
    """Return an uninitialized output tensor with the device and dtype of another."""
    return shared_data(("output", shape, like.dtype, like.device), lambda: like.new_empty(shape))


def _draw_new(distribution: Scalar, shape: ArrayShape, dtype: str, seed: int, *, where: str, stream: int) -> Tensor:
    torch = import_torch()
    if math.prod(shape) <= MOST_FROM_NUMPY:
        values = draw_array(distribution, shape, "float64", seed, stream=stream)
        return torch.from_numpy(values).to(where, getattr(torch, dtype))
    name = check_choice("distribution", distribution, DISTRIBUTIONS)
    out = torch.zeros(shape, dtype=getattr(torch, dtype), device=where)
    if name == "zeros":
        return out
    if seed < 0:
        raise BadInput(f"The seed is zero or more, not {seed}.")
    generator = torch.Generator(device=out.device)
    generator.manual_seed(int(np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]))
    for part in out.view(-1).split(_ELEMENTS_PER_DRAW):
        draw = torch.empty_like(part, dtype=torch.float64)
        part.copy_(draw.normal_(generator=generator) if name == "normal" else draw.uniform_(-1, 1, generator=generator))
    return out
