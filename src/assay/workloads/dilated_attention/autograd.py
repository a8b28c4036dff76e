"""Dilated attention to PyTorch's autograd. This module imports PyTorch as it is loaded: only functions import it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import Function
from torch.autograd.function import once_differentiable

from assay.workloads.dilated_attention import job as work
from assay.workloads.dilated_attention.merge import Merged

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.job import Job
    from assay.workloads.torch_device import Tensor


class Attend(Function):  # type: ignore[misc]  # PyTorch is not there for the type checker
    """A job's output, and its gradients: exact, or with the weights of branches held constant."""

    @staticmethod
    def forward(ctx: Any, job: Job, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute the output; tensors are (batch, position, key head, query head of it, dim)."""
        first, *branches = work.forward(job, q, k, v)
        out = first.out.to(q.dtype)
        ctx.job = job
        ctx.save_for_backward(q, k, v, out, first.sums, *(tensor for merged in branches for tensor in merged))
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients."""
        q, k, v, *saved = ctx.saved_tensors
        merged = [Merged(*saved[at : at + 2]) for at in range(0, len(saved), 2)]
        gradients = work.backward(ctx.job, gradient.contiguous(), (q, k, v), merged)
        return None, *(of_x.to(x.dtype) for of_x, x in zip(gradients, (q, k, v), strict=True))
