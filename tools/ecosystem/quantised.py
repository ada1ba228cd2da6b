"""Quantised models, beside the plain model with the numbers that the quantised weights stand for.

Layers of bitsandbytes and torch's dynamic int8 round in their kernels as well, so these are compared by rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .case import Case, Pair
from .tiny_models import classifier, explained, language_model


def pair(base: Callable[[], nn.Module], model: nn.Module, weight_of: Callable[[Any], Tensor]) -> Pair:
    """Return a quantised model, beside its base with dequantised weights.

    Args:
        base: makes the base again.
        model: the quantised model.
        weight_of: dequantises the weight of a layer, by the package's own function.
    """
    plain = base()
    with torch.no_grad():
        for name, layer in plain.named_modules():
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(weight_of(model.get_submodule(name)))
    return Pair(explained(plain), explained(model))


def torchao(base: Callable[[], nn.Module], config: str, **options: Any) -> Pair:
    """Return a model quantised by torchao, beside the dequantised one."""
    from torchao import quantization

    model = base()
    quantization.quantize_(model, getattr(quantization, config)(**options))
    return pair(base, model, lambda layer: layer.weight.dequantize())


def torchao_in_groups(base: Callable[[], nn.Module], config: str) -> Pair:
    """Return a model with int4 weights, each 32 of which share a scale, beside the dequantised one."""
    from torchao.quantization.granularity import PerGroup

    names = {
        "IntxWeightOnlyConfig": ("weight_dtype", "granularity"),
        "Int8DynamicActivationIntxWeightConfig": ("weight_dtype", "weight_granularity"),
    }
    kind, groups = names[config]
    return torchao(base, config, **{kind: torch.int4, groups: PerGroup(32)})


def quanto(base: Callable[[], nn.Module], weights: str) -> Pair:
    """Return a model quantised by optimum-quanto, beside the dequantised one."""
    from optimum import quanto as package

    model = base()
    package.quantize(model, weights=getattr(package, weights))
    package.freeze(model)
    return pair(base, model, lambda layer: layer.weight.dequantize())


def bitsandbytes(base: Callable[[], nn.Module], bits: int) -> Pair:
    """Return a model with layers of bitsandbytes, beside the dequantised one."""
    from bitsandbytes import functional
    from bitsandbytes import nn as layers

    model = base()
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear):
            continue
        sizes = module.in_features, module.out_features, module.bias is not None
        weight = module.weight.detach()
        layer: Any
        if bits == 8:
            layer = layers.Linear8bitLt(*sizes, has_fp16_weights=False)
            layer.weight = layers.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        else:
            layer = layers.Linear4bit(*sizes, compute_dtype=torch.float32, quant_type="nf4")
            layer.weight = layers.Params4bit(weight, requires_grad=False, quant_type="nf4")
        layer.bias = module.bias
        model.set_submodule(name, layer.to("cpu"))

    def weight_of(layer: Any) -> Tensor:
        if bits == 8:
            found: Tensor = functional.int8_vectorwise_dequant(layer.weight.CB, layer.weight.SCB)
            return found
        return functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)

    return pair(base, model.eval(), weight_of)


def dynamic(base: Callable[[], nn.Module]) -> Pair:
    """Return a model with torch's own dynamic int8 layers, beside the dequantised one."""
    model = torch.ao.quantization.quantize_dynamic(base(), {nn.Linear}, dtype=torch.qint8)
    return pair(base, model, lambda layer: layer.weight().dequantize())


def _case(name: str, package: str, correlation: float | None, build: Callable[..., Pair], *given: Any) -> Case:
    return Case(name, package, lambda: build(*given), correlation)


INT8_INPUTS = "Int8DynamicActivationInt8WeightConfig"
INT4_INT8 = "Int8DynamicActivationIntxWeightConfig"

#: rank correlation of eight scores of a tiny random model; those of a real one are in docs/how-to
CLOSE = 0.9

CASES = [
    case
    for base, model in ((classifier, "BERT"), (language_model, "Llama"))
    for case in (
        _case(f"int8 weights, {model}", "torchao", None, torchao, base, "Int8WeightOnlyConfig"),
        _case(f"int8 weights and inputs, {model}", "torchao", None, torchao, base, INT8_INPUTS),
        _case(f"int4 weights, {model}", "torchao", None, torchao_in_groups, base, "IntxWeightOnlyConfig"),
        _case(f"int4 weights, int8 inputs, {model}", "torchao", None, torchao_in_groups, base, INT4_INT8),
        _case(f"int8, {model}", "optimum-quanto", None, quanto, base, "qint8"),
        _case(f"int4, {model}", "optimum-quanto", None, quanto, base, "qint4"),
        _case(f"8 bits, {model}", "bitsandbytes", CLOSE, bitsandbytes, base, 8),
        _case(f"4 bits, {model}", "bitsandbytes", CLOSE, bitsandbytes, base, 4),
        _case(f"dynamic int8, {model}", "torch", CLOSE, dynamic, base),
    )
]
