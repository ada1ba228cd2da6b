"""Transformers written in unusual ways: no code of ours knows any of them, and each is explained."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import close
from tests.support.unusual import HEADS, SIZE, WIDTH, Attention, joined, probabilities, split
from whence.tracing.tracer import Trace

READING_MAPS = ["attention", "generic-attention", "rollout", "transformer-attribution", "attention-flow", "grad-cam"]
METHODS = ["conservative-lrp", "gradient-x-input", "attn-lrp", *READING_MAPS]


class Einsum(Attention):
    def mix(self, q, k, v):
        a = torch.einsum("bhid,bhjd->bhij", q, k).div(math.sqrt(q.shape[-1])).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", a, v)


class KeysFirst(Attention):
    """Softmax over the first of the two axes."""

    def mix(self, q, k, v):
        a = torch.einsum("bhid,bhjd->bhji", q, k).div(math.sqrt(q.shape[-1])).softmax(-2)
        return torch.einsum("bhji,bhjd->bhid", a, v)


class HighPrecision(Attention):
    def mix(self, q, k, v):
        a = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1, dtype=torch.float64)
        return a.to(v.dtype) @ v


class Masked(Attention):
    """Looks back only, with a large number for what is hidden."""

    def mix(self, q, k, v):
        hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -1e9), -1) @ v


class Functional(Attention):
    """``F.multi_head_attention_forward``, sequence first."""

    def forward(self, x):
        x = x.transpose(0, 1)
        out, _ = F.multi_head_attention_forward(
            x, x, x, WIDTH, HEADS, self.qkv.weight, self.qkv.bias, None, None, False, 0.0, self.out.weight,
            self.out.bias, training=False, need_weights=False,
        )  # fmt: skip
        return out.transpose(0, 1)


class MultiQuery(Attention):
    """One head of keys and values for all queries."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH + 2 * SIZE)

    def forward(self, x):
        q, k, v = self.qkv(x).split([WIDTH, SIZE, SIZE], -1)
        return self.out(joined(self.mix(split(q), k[:, None], v[:, None])))


class Cosine(Attention):
    """Normed queries and keys, with a temperature that is learned (Swin v2)."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.full((HEADS, 1, 1), 1.5))

    def mix(self, q, k, v):
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        return torch.softmax(scores * self.temperature.clamp(max=math.log(100)).exp(), -1) @ v


class TalkingHeads(Attention):
    """Heads are mixed before the softmax and after it (Shazeer et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = (nn.Parameter(torch.randn(HEADS, HEADS)) for _ in range(2))

    def mix(self, q, k, v):
        scores = torch.einsum("bhij,hg->bgij", q @ k.mT / math.sqrt(q.shape[-1]), self.before)
        return torch.einsum("bhij,hg->bgij", scores.softmax(-1), self.after) @ v


class SinkScore(Attention):
    """A learned score beside those of the keys takes what no key deserves (GPT-OSS)."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.randn(HEADS))

    def mix(self, q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        sink = self.sink.view(1, -1, 1, 1).expand(len(q), -1, q.shape[-2], 1)
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1] @ v


class SinkToken(Attention):
    """A learned key and value beside those of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = (nn.Parameter(torch.randn(1, HEADS, 1, SIZE)) for _ in range(2))

    def mix(self, q, k, v):
        k, v = (torch.cat([t.expand(len(q), -1, -1, -1), x], 2) for t, x in ((self.key, k), (self.value, v)))
        return probabilities(q, k) @ v


class Twice(Attention):
    """One module, two attentions: to the tokens and to what was read."""

    def forward(self, x):
        return super().forward(super().forward(x))


class Linear(Attention):
    """No softmax: a kernel (Katharopoulos et al., 2020)."""

    def mix(self, q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


def pre_norm(m, i, x):
    x = x + m.attention[i](m.norms[0](x))
    return x + m.mlp(m.norms[1](x))


def post_norm(m, i, x):
    x = m.norms[0](x + m.attention[i](x))
    return m.norms[1](x + m.mlp(x))


def mixed_norms(m, i, x):
    return pre_norm(m, i, x) if i else post_norm(m, i, x)


def sandwich(m, i, x):
    x = x + m.norms[1](m.attention[i](m.norms[0](x)))
    return x + m.norms[1](m.mlp(m.norms[0](x)))


def parallel(m, i, x):
    n = m.norms[0](x)
    return x + (m.attention[i](n) + m.mlp(n))


def one_after_the_other(m, i, x):
    n = m.norms[0](x)
    return (x + m.attention[i](n)) + m.mlp(n)


def the_other_first(m, i, x):
    n = m.norms[0](x)
    return (x + m.mlp(n)) + m.attention[i](n)


class Model(nn.Module):
    """Two blocks; the weights of attentions are those of the same seed."""

    def __init__(self, attention=Attention, block=pre_norm, shared=False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.block = nn.Embedding(60, WIDTH), nn.Linear(WIDTH, 3), block
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))
        first = attention()
        self.attention = nn.ModuleList([first, first if shared else attention()])
        for p in self.parameters():
            nn.init.normal_(p, 0, 0.4) if p.dim() > 1 else None
        self.double().eval()

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for i in range(2):
            x = self.block(self, i, x)
        return self.head(x[:, -1])


ATTENTIONS = [
    Attention, Einsum, KeysFirst, HighPrecision, Masked, Functional, MultiQuery, Cosine, TalkingHeads, SinkScore,
]  # fmt: skip
BLOCKS = [pre_norm, post_norm, mixed_norms, sandwich, parallel, one_after_the_other, the_other_first]
MODELS = {
    **{cls.__name__: lambda cls=cls: Model(cls) for cls in ATTENTIONS},
    **{block.__name__: lambda block=block: Model(block=block) for block in BLOCKS},
    "shared weights": lambda: Model(shared=True),
}
INPUTS = {"input_ids": tiny.ids(2)}


def records(model):
    with Trace({}, batch=2, maps=True) as trace:
        model(trace.input("input_ids", INPUTS["input_ids"]))
    return trace


@pytest.mark.parametrize("name", MODELS)
def test_attentions_and_residual_sums_are_found(name):
    trace = records(MODELS[name]())
    assert [r.shape for r in trace.attentions] == [(HEADS, 7, 7)] * 2
    assert [r.attentions for r in trace.residuals if r.attentions] == [[0], [1]]
    trunks = [r.trunk for r in trace.residuals if r.attentions]
    assert all(t.shape == (2, 7, WIDTH) for t in trunks)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_explains_it_alike_alone_and_in_a_batch(name, method):
    model = MODELS[name]()
    e = whence.explain(model, INPUTS, method, 1)
    close(e.value, model(**INPUTS)[:, 1].detach(), 1e-12)
    for i in range(2):
        alone = whence.explain(model, {"input_ids": INPUTS["input_ids"][i : i + 1]}, method, 1)
        close(e.scores[i : i + 1], alone.scores)


@pytest.mark.parametrize("name", MODELS)
def test_the_books_balance(name):
    e = whence.explain(MODELS[name](), INPUTS, "conservative-lrp", 1)
    assert e.ledger.sums.shape[1] == 3
    assert float(e.ledger.imbalance.abs().max()) < 1e-9
    assert not e.coverage.plain


@pytest.mark.parametrize("style", [Einsum, KeysFirst, HighPrecision, Functional])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_attention_written_otherwise(style, method):
    a, b = (whence.explain(Model(cls), INPUTS, method, 1).scores for cls in (style, Attention))
    close(a, b, 1e-6 if method == "transformer-attribution" else 1e-9)


@pytest.mark.parametrize("block", [one_after_the_other, the_other_first])
@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "generic-attention", "rollout"])
def test_attention_and_mlp_side_by_side_in_any_order(block, method):
    a, b = (whence.explain(Model(block=x), INPUTS, method, 1) for x in (block, parallel))
    close(a.scores, b.scores)
    if a.ledger is not None:
        close(a.ledger.sums, b.ledger.sums)


def test_one_module_with_two_attentions():
    trace = records(Model(Twice))
    assert [r.shape for r in trace.attentions] == [(HEADS, 7, 7)] * 4
    assert [r.attentions for r in trace.residuals if r.attentions] == [[0, 1], [2, 3]]
    assert whence.explain(Model(Twice), INPUTS, "conservative-lrp", 1).ledger.sums.shape[1] == 3


def test_a_learned_key_is_not_a_token():
    """The map has a column more than there are tokens."""
    model = Model(SinkToken)
    assert [r.shape for r in records(model).attentions] == [(HEADS, 7, 8)] * 2
    assert whence.explain(model, INPUTS, "conservative-lrp", 1).scores.shape == (2, 7)
    for method in READING_MAPS:
        with pytest.raises(whence.ModelError, match="conservative-lrp"):
            whence.explain(model, INPUTS, method, 1)


@pytest.mark.parametrize("method", READING_MAPS)
def test_attention_without_a_softmax_has_no_map(method):
    with pytest.raises(whence.ModelError, match="no attention that could be seen"):
        whence.explain(Model(Linear), INPUTS, method, 1)


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
def test_attention_without_a_softmax_is_explained_at_the_input(method):
    model = Model(Linear)
    e = whence.explain(model, INPUTS, method, 1)
    assert e.scores.shape == (2, 7)
    alone = whence.explain(model, {"input_ids": INPUTS["input_ids"][:1]}, method, 1)
    close(e.scores[:1], alone.scores)


class Kernel(torch.autograd.Function):
    """As the flash-attn package: forward and backward are its own."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return torch.from_numpy((probabilities(q, k) @ v).detach().numpy())

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            q, k, v = inputs
            return torch.autograd.grad(probabilities(q, k) @ v, inputs, g)


@torch.library.custom_op("whence_tests::fused_attention", mutates_args=())
def library_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return probabilities(q, k) @ v


library_attention.register_autograd(
    lambda ctx, g: Kernel.backward(ctx, g), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


class OwnKernel(Attention):
    def mix(self, q, k, v):
        return Kernel.apply(q, k, v)


class OwnOperation(Attention):
    def mix(self, q, k, v):
        return torch.ops.whence_tests.fused_attention(q, k, v)


@pytest.mark.parametrize("kernel", [OwnKernel, OwnOperation])
@pytest.mark.parametrize("method", READING_MAPS)
def test_attention_inside_a_kernel_is_named_with_the_way_round_it(kernel, method):
    name = "Kernel" if kernel is OwnKernel else "fused_attention"
    with pytest.raises(whence.ModelError, match=rf"{name}.*attn_implementation"):
        whence.explain(Model(kernel), INPUTS, method, 1)


@pytest.mark.parametrize("kernel", [OwnKernel, OwnOperation])
@pytest.mark.filterwarnings("ignore:Part of 'input_ids' bypasses:whence.WhenceWarning")  # its attention is not seen
def test_gradients_pass_a_kernel_and_rules_do_not(kernel):
    a, b = (whence.explain(Model(cls), INPUTS, "gradient-x-input", 1).scores for cls in (kernel, Attention))
    close(a, b)
    with pytest.warns(whence.WhenceWarning, match="differentiated plainly"):
        e = whence.explain(Model(kernel), INPUTS, "conservative-lrp", 1)
    assert sum(e.coverage.plain.values()) == 2
    close(e.scores, whence.explain(Model(), INPUTS, "conservative-lrp", 1, heads=False).scores)


class Fused(torch.autograd.Function):
    """A norm of somebody's own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(F.layer_norm(x, (WIDTH,)).detach().numpy())

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(F.layer_norm(x, (WIDTH,)), x, g)[0]


def test_a_kernel_that_is_no_attention_hides_none():
    model = Model()
    model.norms[0].forward = Fused.apply
    a, b = (whence.explain(m, INPUTS, "generic-attention", 1).scores for m in (model, Model()))
    close(a, b)


class StateSpace(nn.Module):
    """A diagonal state space, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.into, self.out = (
            nn.Parameter(torch.rand(WIDTH)),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x):
        state, states = torch.zeros_like(x[:, 0]), []
        for step in self.into(x).unbind(1):
            state = state * self.decay.sigmoid() + step
            states.append(state)
        return self.out(torch.stack(states, 1))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return self.inner(x.mT).mT


@pytest.mark.parametrize("mixer", [StateSpace, Convolution])
def test_models_without_attention(mixer):
    model = Model(mixer)
    for method in READING_MAPS:
        with pytest.raises(whence.ModelError, match="no attention that could be seen"):
            whence.explain(model, INPUTS, method, 1)
    for method in ("conservative-lrp", "gradient-x-input"):
        e = whence.explain(model, INPUTS, method, 1)
        alone = whence.explain(model, {"input_ids": INPUTS["input_ids"][:1]}, method, 1)
        assert e.scores.shape == (2, 7)
        close(e.scores[:1], alone.scores)
    e = whence.explain(model, INPUTS, "conservative-lrp", 1)
    assert not e.coverage.plain
    assert float(e.ledger.imbalance.abs().max()) < 1e-9
