"""Linear layers whose weights are packed integers are dequantised while they are explained."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import whence
from tests.support import tiny


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codes, scale):
        return x @ (codes.to(x.dtype) * scale).T

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("this kernel has no backward pass")


class Packed(nn.Module):
    """A linear layer of 8-bit integers, with a kernel of its own."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.scale = layer.weight.detach().abs().max() / 127
        self.codes = (layer.weight.detach() / self.scale).round().to(torch.int8)
        self.bias = layer.bias

    def forward(self, x):
        made = Rounded.apply(x, self.codes, self.scale)
        return made if self.bias is None else made + self.bias


class Bent(Packed):
    """One that is no linear layer."""

    def forward(self, x):
        return super().forward(x).square()


def quantised(kind=Packed):
    """A model with packed layers, and the same with the numbers that they stand for."""
    model = tiny.bert()
    plain = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            packed = kind(layer)
            model.set_submodule(name, packed)
            plain.get_submodule(name).weight = nn.Parameter(packed.codes * packed.scale)
    return model.eval(), plain.eval()


@pytest.mark.parametrize("method", ["conservative-lrp", "lrp", "transformer-attribution", "rollout", "occlusion"])
def test_packed_layers_equal_the_dequantised_model_and_it_is_said(method):
    model, plain = quantised()
    given = {"input_ids": tiny.ids(2)}
    with pytest.warns(whence.WhenceWarning, match="dequantised weights"):
        found = whence.explain(model, given, method, target=1)
    expected = whence.explain(plain, given, method, target=1).scores
    assert torch.allclose(found.scores, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("fails", [False, True])
def test_the_layers_are_back_in_their_places(fails):
    model, _ = quantised()
    before = dict(model.named_modules())
    target = (lambda outputs: 1 / 0) if fails else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.WhenceWarning)
        try:
            whence.explain(model, {"input_ids": tiny.ids(1)}, target=target)
        except whence.TargetError:
            assert fails
    assert list(dict(model.named_modules()).items()) == list(before.items())


def test_explanations_of_packed_layers_are_not_captured():
    model, _ = quantised()
    explain = whence.compile(model, "attn-lrp")
    given = {"input_ids": tiny.ids(1)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.WhenceWarning)
        before = explain(given, target=1)
        for module in model.modules():
            if isinstance(module, Packed):
                module.codes.neg_()
        after = explain(given, target=1)
        assert after == whence.explain(model, given, "attn-lrp", target=1)
    assert not torch.equal(before.scores, after.scores)


def test_a_packed_layer_that_is_not_linear_is_refused():
    model, _ = quantised(Bent)
    with pytest.raises(whence.ModelError, match=r"query' \(.*Bent\).*not linear up to rounding"):
        whence.explain(model, {"input_ids": tiny.ids(1)})


@pytest.mark.filterwarnings("ignore:.*quant")
def test_dynamic_int8_of_torch_is_close_to_the_float_model():
    if "fbgemm" not in torch.backends.quantized.supported_engines and not torch.backends.quantized.supported_engines:
        pytest.skip("this build of torch has no engine for quantised layers")
    plain = tiny.bert()
    model = torch.ao.quantization.quantize_dynamic(copy.deepcopy(plain), {nn.Linear}, dtype=torch.qint8)
    given = {"input_ids": tiny.ids(1)}
    found, expected = (whence.explain(m, given, target=1).scores for m in (model, plain))
    assert float((found - expected).abs().max()) < 0.1 * float(expected.abs().max())
