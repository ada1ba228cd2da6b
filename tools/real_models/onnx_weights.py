"""The weights of a quantised ONNX model, dequantised, under the names of the modules that they were exported from.

A quantised model keeps ``weight_quantized``, ``weight_scale`` and ``weight_zero_point`` for each weight; the
weight is ``(quantized - zero_point) * scale``. A matrix product has lost the name of its weight, but its node is called
after the module: ``/layers.0/self_attn/q_proj/MatMul_quant``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PRODUCTS = ("MatMulInteger", "DynamicQuantizeMatMul", "MatMul")


def weights_of(file: Path) -> dict[str, Tensor]:
    """Return the weights of an ONNX file by the names of PyTorch's parameters; those of products transposed."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(file)).graph
    arrays: dict[str, Any] = {}
    for inner in _graphs(graph):
        arrays |= {i.name: numpy_helper.to_array(i) for i in inner.initializer}
    known = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    found = {_plain(name): _value(known, name) for name in known if name.endswith((".weight", ".bias"))}
    found |= {_plain(name): t for name, t in known.items() if _plain(name).endswith((".weight", ".bias"))}
    for name in known:
        if name.endswith("_quantized"):
            found[_plain(name.removesuffix("_quantized"))] = _value(known, name.removesuffix("_quantized"))
    for node in (n for inner in _graphs(graph) for n in inner.node if n.op_type in PRODUCTS):
        bases = (i.removesuffix("_quantized").removesuffix("_DequantizeLinear_Output") for i in node.input)
        weight = next((base for base in bases if f"{base}_quantized" in known), None)
        if weight is not None and "/" in node.name:
            module = ".".join(node.name.strip("/").split("/")[:-1])
            found[f"{module}.weight"] = _value(known, weight).T.contiguous()
    return found


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those inside its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _plain(name: str) -> str:
    return name.removesuffix("_merged_0")


def _value(known: dict[str, Tensor], name: str) -> Tensor:
    """Return a weight by its name, dequantised if it is quantised."""
    if f"{name}_quantized" not in known:
        return known[name].float()
    scale, zero = known[f"{name}_scale"].float(), known[f"{name}_zero_point"].float()
    return (known[f"{name}_quantized"].float() - zero) * scale
