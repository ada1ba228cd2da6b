"""Canonical names: the same function by its other names in torch, and by those of its kernels."""

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn
from torch.overrides import get_overridable_functions

import whence
from tests.support.checks import EXACT, relative
from whence.tracing import operations as ops

METHODS = ["conservative-lrp", "attn-lrp", "libragrad", "res-lrp", "generic-attention", "lrp", "rollout"]


def overridable():
    """Return every torch function that a mode can see, by the name that torch gives it."""
    found = {}
    for functions in get_overridable_functions().values():
        for function in functions:
            name = getattr(function, "__name__", "")
            found[name if name != "__get__" else getattr(function.__self__, "__name__", name)] = function
    return found


def test_every_function_has_a_name():
    assert all(ops.operation(function).name for function in overridable().values())


@pytest.mark.parametrize(("prefix", "suffix"), [("unsafe_", ""), ("special_", ""), ("linalg_", ""), ("", "_copy")])
def test_other_names_of_known_functions(prefix, suffix):
    for name, function in overridable().items():
        if not (name.startswith(prefix) and name.endswith(suffix)) or name in ops.known_names():
            continue
        short = name.removeprefix(prefix).removesuffix(suffix)
        if short in ops.known_names() and name not in ("linalg_diagonal", "linalg_matrix_norm"):
            assert ops.operation(function).name in ops.known_names(), name


def test_names_of_kernels():
    aten = torch.ops.aten
    named = {
        aten._unsafe_view.default: "view",
        aten._to_copy.default: "to",
        aten._log_softmax.default: "log_softmax",
        aten.unsafe_chunk.default: "chunk",
        aten.constant_pad_nd.default: "pad",
        aten.add_.Tensor: "add",
    }
    assert {function: ops.operation(function).name for function in named} == named


class Encoder(nn.Module):
    """Classify an image by a block with attention over its patches."""

    def __init__(self, batched=True, chunk=torch.chunk):
        super().__init__()
        torch.manual_seed(0)
        self.batched, self.chunk = batched, chunk
        self.patches, self.norm = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)
        self.qkv, self.out, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.double().eval()

    def forward(self, x):
        convolved = self.patches(x) if self.batched else self.patches(x[0])[None]
        x = convolved.flatten(2).transpose(1, 2)
        q, k, v = self.chunk(self.qkv(self.norm(x)), 3, -1)
        x = x + self.out(torch.softmax(q @ k.mT * 8**-0.5, -1) @ v)
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x.mean(1))


def image(n):
    return torch.randn(n, 3, 6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def equal(model, usual, inputs, method):
    found, expected = (whence.explain(m, inputs, method, target=1) for m in (model, usual))
    return relative(found.scores, expected.scores) <= (1e-7 if method == "lrp" else EXACT)


@pytest.mark.parametrize("method", METHODS)
def test_unsafe_chunk_is_chunk(method):
    assert equal(Encoder(chunk=torch.unsafe_chunk), Encoder(), image(2), method)


@pytest.mark.parametrize("method", METHODS)
def test_convolution_of_an_image_without_a_batch_axis(method):
    assert equal(Encoder(batched=False), Encoder(), image(1), method)


@pytest.mark.parametrize("method", METHODS)
def test_exported_model_in_kernels(method):
    usual = Encoder()
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=8)}}
    program = torch.export.export(usual, (image(2),), dynamic_shapes=shapes).run_decompositions()
    assert equal(program.module(), usual, image(2), method)
