"""The trace: any way of writing a Transformer is seen for what it is."""

from __future__ import annotations

import functools
import math

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support import tiny
from tests.support.checks import close
from whence.tracing import axes, operations
from whence.tracing.operations import operation
from whence.tracing.tracer import Trace

CONSERVATIVE = "conservative-lrp"
STABILISED = ("transformer-attribution", "lrp", "partial-lrp")  # 1e-9 in each denominator


@pytest.mark.parametrize(("func", "name"), [
    (torch.add, "add"), (torch.Tensor.add_, "add"), (torch.Tensor.__radd__, "add"), (torch.Tensor.__rsub__, "rsub"),
    (torch.Tensor.__getitem__, "getitem"), (torch.Tensor.mT.__get__, "mT"), (F.gelu, "gelu"),
    (torch.softmax, "softmax"), (torch.special.ndtr, "ndtr"),
])  # fmt: skip
def test_one_operation_under_many_names(func, name):
    assert operation(func).name == name


class Block(nn.Module):
    """One model, written in different styles; the weights are the same."""

    def __init__(self, style: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.style = style
        self.embed = nn.Embedding(60, 16)
        self.mha = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down, self.head = nn.Linear(16, 20), nn.Linear(20, 16), nn.Linear(16, 3)

    def attention(self, x):
        if self.style == "mha":
            return self.mha(x, x, x, need_weights=False)[0]
        if self.style == "mha-weights":
            return self.mha(x, x, x)[0]
        w, b = self.mha.in_proj_weight, self.mha.in_proj_bias
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in F.linear(x, w, b).split(16, -1))
        if self.style == "sdpa":
            o = F.scaled_dot_product_attention(q, k, v)
        elif self.style == "eager":
            o = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), dim=-1) @ v
        elif self.style == "scaled-in-place":
            scores = torch.matmul(q, k.mT)
            scores *= 8**-0.5
            scores += torch.zeros(scores.shape[-2:], dtype=scores.dtype)
            o = F.dropout(scores.softmax(-1), 0.1, self.training) @ v
        elif self.style == "bmm":
            q, k, v = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
            scores = torch.baddbmm(torch.zeros(1, dtype=q.dtype), q, k.transpose(1, 2), alpha=8**-0.5)
            o = torch.bmm(F.softmax(scores, dim=-1), v).view(len(x), 2, -1, 8)
        else:
            a = torch.einsum("bhqd,bhkd->bqhk", q, k).mul(8**-0.5).softmax(-1)
            o = torch.einsum("bqhk,bhkd->bhqd", a, v)
        return self.mha.out_proj(o.transpose(1, 2).flatten(2))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        x = self.norm1(x + self.attention(x))
        if self.style == "scaled-in-place":
            h = self.down(F.gelu(self.up(x)))
            h += x
            x = self.norm2(h)
        else:
            x = self.norm2(x + self.down(F.gelu(self.up(x))))
        return self.head(x[:, 0])


STYLES = ["mha", "mha-weights", "sdpa", "eager", "scaled-in-place", "bmm", "einsum"]


@pytest.mark.parametrize("method", tiny.METHODS)
def test_every_style_gives_the_same_explanation(method):
    inputs = {"input_ids": tiny.ids()}
    results = {style: whence.explain(Block(style).double().eval(), inputs, method, 1) for style in STYLES}
    for e in results.values():
        close(e.scores, results["sdpa"].scores, 1e-6 if method in STABILISED else 1e-10)
        assert e.ledger is None or e.ledger.sums.shape[1] == 2


@pytest.mark.parametrize("style", STYLES)
def test_attention_is_recorded_as_batch_heads_queries_keys(style):
    model = Block(style).double().eval()
    with Trace({}, batch=3, maps=True) as trace:
        model(trace.input("input_ids", tiny.ids()))
    (record,) = trace.attentions
    maps = record.arrange(record.probabilities.detach())
    assert maps.shape == (3, 2, 7, 7)
    close(maps.sum(-1), torch.ones(3, 2, 7, dtype=torch.float64))
    want = model.mha(*[model.embed(tiny.ids())] * 3, average_attn_weights=False)[1]
    close(maps, want)


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


ACTIVATIONS = {  # written out, fused
    "gelu-tanh": (gelu_tanh, lambda x: F.gelu(x, approximate="tanh")),
    "quick-gelu": (lambda x: x * torch.sigmoid(1.702 * x), lambda x: F.silu(1.702 * x) / 1.702),
    "silu": (lambda x: torch.sigmoid(x) * x, F.silu),
    "squared-relu": (lambda x: torch.square(torch.relu(x)), lambda x: torch.relu(x) * torch.relu(x)),
    "gelu-erf": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), F.gelu),
    "gelu-ndtr": (lambda x: x * torch.special.ndtr(x), F.gelu),
}


class Mlp(nn.Module):
    def __init__(self, activation, norm=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.up, self.down = nn.Embedding(60, 8), nn.Linear(8, 12), nn.Linear(12, 3)
        self.activation, self.norm = activation, norm or (lambda x: x)
        self.gain, self.shift = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.rand(8))

    def forward(self, input_ids):
        return self.down(self.activation(self.up(self.norm(self.embed(input_ids))))).mean(1)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
def test_an_activation_written_out_gets_the_rule_of_the_activation(name, method):
    written, fused = ACTIVATIONS[name]
    x = {"input_ids": tiny.ids()}
    a, b = (whence.explain(Mlp(f).double(), x, method, 0, at="token") for f in (written, fused))
    close(a.scores, b.scores)
    if method == CONSERVATIVE:
        assert not a.coverage.plain


@pytest.mark.parametrize("name", ["gelu-tanh", "quick-gelu", "silu"])
def test_an_activation_passes_relevance_unchanged(name):
    """Its factor is f(x) / x: what arrives at the layer below is gradient times f(x) / x."""
    written, _ = ACTIVATIONS[name]
    model = Mlp(written).double()
    e = whence.explain(model, {"input_ids": tiny.ids(1)}, CONSERVATIVE, 0, at="token")
    h = model.up(model.embed(tiny.ids(1)))
    gradient = model.down.weight[0] / h.shape[1] * (written(h) / h)
    close(e.scores, ((gradient @ model.up.weight) * model.embed(tiny.ids(1))).sum(-1))


def rms(m, x):
    return m.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rms_division(m, x):
    return x / torch.sqrt((x * x).mean(-1, True) + 1e-6) * m.gain


def layer(m, x):
    deviation = torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
    return (x - x.mean(-1, keepdim=True)) / deviation * m.gain + m.shift


def layer_squeezed(m, x):
    return (x - x.mean(-1)[..., None]) * (x.var(-1, correction=0).unsqueeze(-1) + 1e-5).rsqrt() * m.gain + m.shift


def fused_rms(m, x):
    return F.rms_norm(x, (8,), m.gain, 1e-6)


def fused_layer(m, x):
    return F.layer_norm(x, (8,), m.gain, m.shift, 1e-5)


NORMS = {
    "rms": (rms, fused_rms), "rms-division": (rms_division, fused_rms), "layer": (layer, fused_layer),
    "layer-squeezed": (layer_squeezed, fused_layer),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
def test_a_norm_written_out_gets_the_rule_of_the_norm(name, method):
    written, fused = NORMS[name]
    results = []
    for make in (written, fused):
        model = Mlp(F.relu).double()
        model.norm = functools.partial(make, model)
        results.append(whence.explain(model, {"input_ids": tiny.ids()}, method, 0, at="token"))
    # gradient x input of a scale-invariant function is nearly nothing, so compare on the gradient's scale
    assert float((results[0].scores - results[1].scores).abs().max()) < 1e-12
    if method == CONSERVATIVE:
        assert not results[0].coverage.plain


class Gated(nn.Module):
    """A gated unit in the block of a Transformer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.gate, self.up, self.down = (
            nn.Embedding(60, 8),
            nn.Linear(8, 12),
            nn.Linear(8, 12),
            nn.Linear(12, 3),
        )

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.down(F.silu(self.gate(x)) * self.up(x)).mean(1)


def test_a_gate_is_a_constant_for_what_it_gates():
    model = Gated().double()
    x = model.embed(tiny.ids(1))
    gradient = (model.down.weight[1] / x.shape[1] * F.silu(model.gate(x))) @ model.up.weight
    e = whence.explain(model, {"input_ids": tiny.ids(1)}, CONSERVATIVE, 1, at="token")
    close(e.scores, (x * gradient).sum(-1))


class Writes(nn.Module):
    """Overwrites the outputs of attention scores, norms and activations, or does not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv, self.norm, self.in_place = (
            nn.Embedding(60, 8),
            nn.Linear(8, 24),
            nn.LayerNorm(8),
            in_place,
        )
        self.up, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        s, h = q @ k.mT, None
        if self.in_place:
            s *= 0.3
            s += torch.eye(s.shape[-1], dtype=s.dtype)
            p = torch.softmax(s, -1)
            y = (p * 0.9) @ v
            y += x
            h = self.up(self.norm(y))
            h.add_(y).mul_(2.0)
        else:
            p = torch.softmax(s * 0.3 + torch.eye(s.shape[-1], dtype=s.dtype), -1)
            y = (p * 0.9) @ v + x
            h = (self.up(self.norm(y)) + y) * 2.0
        return self.head(h)[:, 0]


@pytest.mark.parametrize("method", sorted({*tiny.METHODS} - {"token-tm", "legrad"}))  # which refuse such a stream
def test_in_place_operations_are_the_same_as_their_copies(method):
    a, b = (whence.explain(Writes(w).double(), {"input_ids": tiny.ids()}, method, 1) for w in (True, False))
    close(a.scores, b.scores, 1e-7 if method in STABILISED else 1e-12)


class Hyper(nn.Module):
    """A layer whose weight, not whose input, depends on the tokens."""

    def __init__(self, by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.query, self.head, self.by = (
            nn.Embedding(60, 8),
            nn.Parameter(torch.rand(5, 8)),
            nn.Linear(5, 3),
            by,
        )
        self.inner = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, input_ids):
        w = self.inner(self.embed(input_ids))[:, 0]
        y = F.linear(self.query, w) if self.by == "linear" else self.query @ w.mT
        return self.head(y.mT)


@pytest.mark.parametrize("method", tiny.METHODS)
def test_a_weight_that_depends_on_the_input_is_not_taken_for_a_constant(method):
    a, b = (whence.explain(Hyper(by).double().eval(), tiny.ids(1), method, 1).scores for by in ("linear", "matmul"))
    if method in STABILISED:  # eq. 1 for the one, eq. 3 for the other: the same tokens, other shares
        assert a.shape == b.shape
    else:
        close(a, b)


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 3).round(decimals=9)  # without a derivative, so that it cannot be looked into

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Odd(nn.Module):
    def __init__(self, operation) -> None:
        super().__init__()
        self.inner, self.operation = tiny.Encoder(), operation

    def forward(self, input_ids):
        return self.operation(self.inner(input_ids))


def test_what_has_no_rule_is_never_passed_over_in_silence():
    inputs = {"input_ids": tiny.ids()}
    e = whence.explain(Odd(Custom.apply).eval(), inputs)
    assert e.coverage.plain["CustomBackward"] == 1
    e = whence.explain(Odd(lambda x: torch.logcumsumexp(x, -1)).eval(), inputs)
    assert e.coverage.plain["logcumsumexp"] == 1
    e = whence.explain(Odd(torch.tanh).eval(), inputs)
    assert e.coverage.plain == {"tanh": 1}
    assert set(e.coverage.seen) >= {"linear", "layer_norm", "gelu", "add", "scaled_dot_product_attention", "tanh"}
    assert e.coverage.ruled["scaled_dot_product_attention"] == "detach_heads"


class Frozen(nn.Module):
    """A backbone under no_grad, as people freeze them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.head = tiny.Encoder(), nn.Linear(3, 3)

    def forward(self, input_ids):
        with torch.no_grad():
            x = self.backbone(input_ids)
        return self.head(x)


@pytest.mark.parametrize("method", tiny.METHODS)
def test_a_frozen_backbone_is_explained_all_the_same(method):
    frozen = Frozen().eval()
    free = nn.Sequential(frozen.backbone, frozen.head)
    a = whence.explain(frozen, {"input_ids": tiny.ids()}, method, 0)
    b = whence.explain(free, tiny.ids(), method, 0)
    close(a.scores, b.scores, 1e-6)


class Remembers(nn.Module):
    """Writes its hidden state into a buffer, as some models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny.Encoder()
        self.register_buffer("last", torch.zeros(3, 3))

    def forward(self, input_ids):
        y = self.inner(input_ids)
        self.last.copy_(y)
        return y


@pytest.mark.parametrize("method", tiny.METHODS)
def test_a_buffer_that_the_model_writes_stays_a_plain_tensor(method):
    model = Remembers().eval()
    e = whence.explain(model, {"input_ids": tiny.ids()}, method)
    assert not model.last.requires_grad
    assert not model.last.__dict__
    close(model.last, e.logits, 1e-5)


def test_a_compiled_model_is_explained_through_its_original():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids()}
    want = whence.explain(model, inputs).scores
    assert torch.equal(whence.explain(torch.compile(model), inputs).scores, want)
    model.bert.encoder.layer[1] = torch.compile(model.bert.encoder.layer[1])
    model.classifier.compile()
    assert torch.equal(whence.explain(model, inputs).scores, want)


def test_checkpointing_switched_on_in_a_training_model_is_off_in_evaluation():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids()}
    want = whence.explain(model, inputs).scores
    model.gradient_checkpointing_enable()
    assert torch.equal(whence.explain(model.train(), inputs).scores, want)


def test_dropout_of_a_model_in_training_mode_does_not_show():
    model, inputs = tiny.bert(), {"input_ids": tiny.ids()}
    want = whence.explain(model, inputs).scores
    assert torch.equal(whence.explain(model.train(), inputs).scores, want)


@pytest.mark.parametrize("at", ["position", "token", "pixel"])
def test_where_to_read(at):
    model = tiny.vit().double()
    x = tiny.pixels().double()
    if at == "token":
        with pytest.raises(whence.InputError, match="nowhere to go: no embedding"):
            whence.explain(model, {"pixel_values": x}, "gradient-x-input", at=at)
        return
    e = whence.explain(model, {"pixel_values": x}, "gradient-x-input", 0, at=at)
    leaf = x.clone().requires_grad_()
    if at == "pixel":
        (g,) = torch.autograd.grad(model(leaf).logits[:, 0].sum(), leaf)
        close(e.patches, (g * leaf.detach()).sum(1))
        assert e.grid == (12, 12)
    else:
        h = model.vit.embeddings(x).detach().requires_grad_()
        model.vit.embeddings.forward = lambda *a, **k: h
        (g,) = torch.autograd.grad(model(x).logits[:, 0].sum(), h)
        close(e.scores, (g * h.detach()).sum(-1))


def test_token_relevance_is_the_words_own_embedding():
    model = tiny.bert().double()
    ids = tiny.ids()
    e = whence.explain(model, {"input_ids": ids}, "gradient-x-input", 0, at="token")
    embeds = model.bert.embeddings.word_embeddings(ids).detach().requires_grad_()
    (g,) = torch.autograd.grad(model(inputs_embeds=embeds).logits[:, 0].sum(), embeds)
    close(e.scores, (g * embeds.detach()).sum(-1))


def test_positional_inputs_and_per_sample_targets_and_functions():
    torch.manual_seed(0)
    model, ids = tiny.Encoder().double().eval(), tiny.ids()
    e = whence.explain(model, ids, CONSERVATIVE, [0, 1, 2])
    for i in range(3):
        close(e.scores[i], whence.explain(model, (ids[i : i + 1],), CONSERVATIVE, i).scores[0])
    f = whence.explain(model, ids, CONSERVATIVE, lambda out: out[torch.arange(3), torch.arange(3)])
    close(f.scores, e.scores)
    assert f.target is None
    assert e.target.tolist() == [0, 1, 2]


def test_an_explanation_of_a_batch_is_its_samples():
    e = whence.explain(tiny.vit(), {"pixel_values": tiny.pixels()}, CONSERVATIVE)
    assert len(e) == 3
    one = e[1]
    assert torch.equal(one.scores, e.scores[1:2])
    assert torch.equal(one.ledger.sums, e.ledger.sums[1:2])
    assert one.layers.shape == (1, 2, 10)
    assert [torch.equal(x.scores[0], s) for x, s in zip(e, e.scores, strict=True)] == [True] * 3
    assert e.patches.shape == (3, 3, 3)
    assert e.heatmap().shape == (3, 12, 12)
    assert e.special.tolist() == [[True] + [False] * 9] * 3
    assert "conservative-lrp" in repr(e)
    with pytest.raises(IndexError):
        e[3]
    with pytest.raises(whence.WhenceError, match="no patches"):
        whence.explain(tiny.bert(), {"input_ids": tiny.ids()}).patches  # noqa: B018  # the property is the test


class Stream(nn.Module):
    """Adds to its residual stream in place, or does not."""

    def __init__(self, in_place: bool, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place, self.into_branch = in_place, False
        self.embed, self.head = nn.Embedding(60, 16), nn.Linear(16, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2 * layers))
        self.qkv, self.out = (nn.ModuleList(nn.Linear(16, n) for _ in range(layers)) for n in (48, 16))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(layers))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for i, mlp in enumerate(self.mlp):
            q, k, v = self.qkv[i](self.norms[2 * i](x)).unflatten(-1, (2, 24)).transpose(1, 2).chunk(3, -1)
            y = self.out[i](nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            x = self.sum(x, y)
            x = self.sum(x, mlp(self.norms[2 * i + 1](x)))
        return self.head(x[:, 0])

    def sum(self, x, y):
        if self.into_branch:
            return y.add_(x)
        return x.add_(y) if self.in_place else x + y


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "res-lrp", "pa-lrp", "libragrad"])
def test_a_stream_that_is_overwritten_is_read_as_it_was(method):
    """Norms under these rules need no value that is gone; torch itself could not train such a model."""
    written, plain = (whence.explain(Stream(w).double().eval(), tiny.ids(), method, 1) for w in (True, False))
    close(written.scores, plain.scores, 1e-12)
    close(written.layers, plain.layers, 1e-12)
    if written.ledger is not None:
        close(written.ledger.sums, plain.ledger.sums, 1e-12)
        assert float(written.ledger.imbalance.abs().max()) < 1e-8


@pytest.mark.parametrize("method", sorted(set(whence.list_methods()) - {"dave"}))
def test_a_branch_that_is_overwritten_by_its_sum(method):
    """As ``y += x; x = y``: torch can train it, and so every method explains it."""
    options = {"variant": "token"} if method == "bi-attention" else whence.list_methods()[method].quick
    results = []
    for into_branch in (True, False):
        model = Stream(in_place=False).double().eval()
        model.into_branch = into_branch
        results.append(whence.explain(model, tiny.ids(2), method, 1, **options).scores)
    close(*results, 1e-10)


@pytest.mark.parametrize("method", ["gradient-x-input", "generic-attention", "token-tm", "lrp"])
def test_where_torch_needs_the_value_that_is_gone_it_is_said(method):
    with pytest.raises(whence.ModelError, match="in place"):
        whence.explain(Stream(in_place=True).eval(), tiny.ids(), method, 1)


def test_the_ledger_keeps_sight_of_what_is_overwritten():
    e = whence.explain(Writes(in_place=True).double().eval(), tiny.ids(), "conservative-lrp", 1)
    assert float(e.ledger.imbalance.abs().max()) < 1e-10


def test_every_operation_stands_in_one_row_of_the_table():
    names = [name for *_, row in operations._ROWS for name in row.split()]
    assert sorted(names) == sorted(operations.OPERATIONS)
    assert {row.axes for row in operations.OPERATIONS.values()} <= {*axes._RULES, "created", "split"}
