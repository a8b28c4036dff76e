"""What a worker says when something goes wrong, in one sentence."""

from __future__ import annotations

import pytest

from assay.core.errors import MachineCannot, TrialFailed
from assay.worker.subjects import describe_failure


def test_pytorch_out_of_gpu_memory_is_out_of_memory() -> None:
    import torch

    said = describe_failure(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has 139 GiB.")
    )
    assert said.reason == "out of memory: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 139 GiB."
    assert said.code == "out_of_memory"


def test_pytorch_out_of_host_memory_is_out_of_memory() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**56, dtype=torch.uint8)
    assert describe_failure(caught.value).code == "out_of_memory"


def test_python_out_of_memory_is_out_of_memory_with_or_without_words() -> None:
    assert describe_failure(MemoryError("cannot allocate 1 TiB")).reason == "out of memory: cannot allocate 1 TiB"
    assert describe_failure(MemoryError()).reason == "out of memory: MemoryError"


def test_a_machine_that_cannot_refuses_and_a_trial_that_failed_does_not() -> None:
    assert describe_failure(MachineCannot("no GPU")).code == "machine_cannot"
    assert describe_failure(TrialFailed("wrong")).code == "error"


def test_other_errors_are_named_and_put_on_one_line() -> None:
    assert describe_failure(ValueError("a\n  b")).reason == "ValueError: a b"
    assert describe_failure(ValueError()).reason == "ValueError"
    assert len(describe_failure(ValueError("x" * 5000)).reason) < 400


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:40511",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:454] writev [127.0.0.1]:7: Connection reset by peer",
        "NCCL error: remote process exited or there was a network error, NCCL version 2.27.3",
        "[1] is setting up NCCL communicator: Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_what_a_rank_sees_when_another_is_gone_is_told_as_such(text: str) -> None:
    said = describe_failure(RuntimeError(text))
    assert said.code == "peer_lost"
    assert said.reason == f"RuntimeError: {text}"


def test_a_failure_of_its_own_is_not_laid_at_anothers_door() -> None:
    assert describe_failure(ValueError("the moon is in the wrong phase")).code == "error"
    assert describe_failure(MemoryError("cannot allocate 1 TiB")).code == "out_of_memory"
    assert describe_failure(TrialFailed("wrong")).code == "error"


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x"])
def test_memory_that_ran_out_under_another_name_is_out_of_memory(text: str) -> None:
    assert describe_failure(RuntimeError(text)).reason == f"out of memory: {text}"
