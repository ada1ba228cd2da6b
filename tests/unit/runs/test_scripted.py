"""Models that are TorchScript as a whole, and attention without a backward pass."""

import pytest
import torch
from torch import nn

import whence

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:Part of the model runs in code that is not seen"),
]
GRADIENTS = ["gradient-x-input", "integrated-gradients", "saliency", "smooth-grad"]
INSIDE = ["conservative-lrp", "attn-lrp", "lrp", "res-lrp", "pa-lrp", "libragrad", "rollout", "generic-attention"]


class Model(nn.Module):
    """A layer of an encoder over features, and a class."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[:, 0])


class Words(Model):
    """The same of words."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(x))[:, 0])


X = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1))


def scripts(model, x):
    traced = torch.jit.trace(model, (x,), check_trace=False)
    return [traced, torch.jit.script(model), torch.jit.freeze(traced)]


@pytest.mark.parametrize("method", INSIDE)
def test_what_reads_inside_a_script_is_refused(method):
    for script in scripts(Model().eval(), X):
        with pytest.raises(whence.ModelError, match=rf"TorchScript.*'{method}' needs rules or attention maps"):
            whence.explain(script, X, method)


@pytest.mark.parametrize("method", GRADIENTS)
def test_gradients_at_floats_are_those_of_the_model(method):
    model = Model().eval()
    expected = whence.explain(model, X, method, 1, at="pixel").scores
    for script in scripts(model, X):
        found = whence.explain(script, X, method, 1, at="pixel").scores
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_integers_of_a_script_are_refused():
    ids = torch.tensor([[1, 2, 3]])
    for script in scripts(Words().eval(), ids):
        with pytest.raises(whence.ModelError, match="'saliency' needs embeddings of integers"):
            whence.explain(script, ids, "saliency")


def test_flex_attention_without_a_backward_pass_is_named():
    flex = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention

    class Flex(nn.Module):
        def forward(self, x):
            q = x[:, None]
            return flex(q, q, q).mean((1, 2))

    with pytest.raises(whence.ModelError, match=r'FlexAttention.*attn_implementation="sdpa"'):
        whence.explain(Flex(), torch.randn(1, 5, 16))
