"""Training steps as workloads: their models, their costs, their checks, and that they learn."""

from __future__ import annotations

import math
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.workloads import registry
from assay.workloads.training import trainer, workloads
from assay.workloads.training.trainer import Trainer
from tests.torching import checked

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.workloads.base import PreparedWorkload

TINY: dict[str, Any] = {"counts": (1, 1), "widths": (8, 16), "classes": trainer.CLASSES}
"""A network of the same parts with few weights; its stem is that of the large one."""


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.workloads.training.models import ResNet50

    tiny, find = partial(ResNet50, **TINY), workloads._resnet50_class
    monkeypatch.setattr(workloads, "_resnet50_class", lambda *, own: tiny if own else find(own=False))


def prepared(name: str, **given: Scalar) -> PreparedWorkload:
    workload = registry.find_workload(name, "torch")
    return workload.prepare({**workload.defaults(), **given}, None, device="cpu:0", seed=0)


def steps(ready: PreparedWorkload, count: int) -> list[float]:
    return [float(ready.call()) for _ in range(count)]  # type: ignore[arg-type]


def test_our_resnet50_has_the_published_number_of_weights_and_of_operations() -> None:
    import torch

    from assay.workloads.training.models import ResNet50

    model = ResNet50()
    assert sum(weight.numel() for weight in model.parameters()) == trainer.RESNET50_WEIGHTS
    strided = [each for each in model.blocks.modules() if getattr(each, "stride", 1) == (2, 2)]
    assert [each.kernel_size for each in strided] == [(3, 3), (1, 1)] * 3
    assert sum(isinstance(each, torch.nn.Conv2d) for each in model.modules()) == 53
    stem = 2 * 3 * 64 * 49 * 112 * 112
    assert (trainer.resnet_flop(1, 224) + stem) / 3 / 2 == pytest.approx(4.09e9, rel=0.001)
    assert trainer.resnet_flop(128, 224) == 128 * trainer.resnet_flop(1, 224)


def products(model: Any, inputs: Any) -> list[float]:
    """Return the operations of each product that a model makes forward, from the shapes that really pass through."""
    import torch

    made: list[float] = []

    def count(layer: Any, _: Any, out: Any) -> None:
        made.append(2.0 * out.numel() * layer.weight[0].numel())

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(count)
    model(inputs)
    return made


def test_operations_are_those_of_the_products_that_are_made() -> None:
    import torch

    from assay.workloads.training.models import GptLikeDecoder, ResNet50

    made = products(ResNet50(**TINY), torch.ones(2, 3, 65, 65))
    assert trainer.resnet_flop(2, 65, **TINY) == 3 * sum(made) - made[0]
    shape = trainer.DecoderShape(layers=2, width=32, heads=2, sequence=16, batch=3, vocabulary=50)
    made = products(GptLikeDecoder(shape), torch.zeros(3, 16, dtype=torch.int64))
    pairs = 16 * 17 // 2
    assert shape.flop == 3 * (sum(made) + 3 * 2 * 4 * 32 * pairs)


def test_a_decoder_has_the_weights_of_its_formula_which_are_those_of_gpt2() -> None:
    from assay.workloads.training.models import GptLikeDecoder

    gpt2 = trainer.DecoderShape(layers=12, width=768, heads=12, sequence=1024, batch=8, vocabulary=50257)
    assert gpt2.weights == 124_439_808
    small = trainer.DecoderShape(layers=2, width=32, heads=2, sequence=16, batch=3, vocabulary=50)
    assert sum(weight.numel() for weight in GptLikeDecoder(small).parameters()) == small.weights


@pytest.mark.parametrize("name", ["resnet50", "transformer_step"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_is_right_and_the_loss_falls_on_a_fixed_batch(name: str, dtype: str) -> None:
    ready = prepared(name, dtype=dtype, batch=4)
    check = checked(ready)
    assert check.passed, check
    assert check.error > 1e-9
    losses = steps(ready, 12)
    assert losses[-1] < losses[0] - 0.2
    assert checked(ready).passed
    assert ready.measured is not None
    seen = ready.measured()
    assert seen["weights"] > 10_000
    assert math.isfinite(seen["loss"])


def test_the_layout_of_images_changes_nothing_but_the_rounding() -> None:
    first, last = (steps(prepared("resnet50", channels_last=last), 3) for last in (False, True))
    assert first == pytest.approx(last, rel=1e-4)


def test_one_seed_gives_one_network_and_leaves_other_random_numbers_alone() -> None:
    import torch

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    ones = [steps(prepared("transformer_step"), 2) for _ in range(2)]
    assert ones[0] == ones[1]
    assert torch.rand(3).equal(expected)


def wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    right = torch.nn.functional.layer_norm

    def half(*given: Any, **named: Any) -> Any:
        out = right(*given, **named)
        return out if out.dtype == torch.float64 else (out + out.detach()) / 2

    monkeypatch.setattr(torch.nn.functional, "layer_norm", half)


def wrong_output(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    right = torch.nn.functional.scaled_dot_product_attention
    bad = lambda q, k, v, **named: right(q, k, v, **(named if q.dtype == torch.float64 else {}))  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", bad)


def no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    right = torch.optim.AdamW.step

    def step(self: Any) -> None:
        if self.param_groups[0]["params"][0].dtype == torch.float64:
            right(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)


@pytest.mark.parametrize("spoil", [wrong_gradient, wrong_output, no_update])
def test_a_step_that_is_wrong_fails_its_check(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = prepared("transformer_step")
    spoil(monkeypatch)
    check = checked(ready)
    assert not check.passed
    assert check.error > 0.1


def test_tf32_is_on_only_for_the_step_that_wants_it() -> None:
    import torch

    seen: list[tuple[str, str]] = []
    backends = torch.backends

    class Model(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            seen.append((backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision))
            return super().forward(x)

    for precision in ("tf32", "float32", "bfloat16"):
        trainer = Trainer(Model(2, 2), partial(torch.optim.SGD, lr=0.1), lambda out, _: out.sum(), precision)
        trainer.step(torch.ones(1, 2), torch.ones(1))
        assert (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision) == ("ieee", "ieee")
    assert seen == [("tf32", "tf32"), ("ieee", "ieee"), ("ieee", "ieee")]


def test_what_was_launched_is_named_once_each() -> None:
    ready = prepared("transformer_step", layers=3)
    assert ready.launched_kernels is not None
    kernels = ready.launched_kernels().kernels
    assert len(kernels) == len(set(kernels))
    assert "aten::scaled_dot_product_attention" in kernels


def test_a_loss_that_is_no_number_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    ready = prepared("transformer_step")
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda said, *_: said.sum() * math.nan)
    assert ready.measured is not None
    with pytest.raises(TrialFailed, match=r"^the loss of the step is nan$"):
        ready.measured()


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("resnet50", {"dtype": "tf32"}, r"^dtype tf32 is for GPUs; a CPU has no such products\.$"),
        ("resnet50", {"dtype": "float16"}, r"^resnet50 has no dtype 'float16'; there are float32, tf32, bfloat16\."),
        ("resnet50", {"model": "vgg"}, r"^resnet50 has no model 'vgg'; there are own, torchvision\."),
        ("resnet50", {"size": "31"}, r"^size is at least 32 pixels for ResNet-50, not 31\.$"),
        (
            "resnet50",
            {"batch": "1"},
            r"^One image of 32 pixels leaves batch normalisation one value: give 2 or more\.$",
        ),
        (
            "resnet50",
            {"folder": "no/such"},
            r"^folder is a folder of images with a subfolder .*, and no/such is none\.$",
        ),
        ("transformer_step", {"heads": "5"}, r"^width is a multiple of heads, and 64 is none of 5\.$"),
        ("transformer_step", {"layers": "0"}, r"^transformer_step: layers is a size of at least 1"),
    ],
)
def test_bad_parameters_of_a_step_are_refused_in_one_sentence(name: str, given: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        registry.resolve_subject(name, device_kind="cpu", explicit=given)


def test_torchvisions_definition_is_taken_where_it_is_and_refused_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(MachineCannot, match=r"^torchvision cannot be imported here \(.*\); model=own needs none\.$"):
        prepared("resnet50", model="torchvision")

    from assay.workloads.training.models import ResNet50

    models = SimpleNamespace(resnet50=lambda weights: ResNet50(**TINY))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    assert checked(prepared("resnet50", model="torchvision")).passed
