"""The same function in other torch calls: equal scores, or a note where the plain gradient is used.

Recurrent layers, kernels with several outputs, TorchScript, learned queries and memories, residual sums, and calls that
end in a WhenceError at worst. Each is held against the usual spelling or against autograd by hand.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support.checks import EXACT, close, relative

WIDTH, TOKENS, HEADS = 12, 9, 2
SCALE = (WIDTH // HEADS) ** -0.5
RELPROP = 1e-7  # LRP divides by sums near zero, which amplifies rounding
#: the rules that differ from the plain gradient
RULES = ["conservative-lrp", "attn-lrp", "res-lrp", "libragrad", "lrp"]
MAPS = ["attention", "grad-cam", "partial-lrp", "rollout", "generic-attention", "transformer-attribution"]
METHODS = ["gradient-x-input", *RULES, *MAPS]
#: those that may give an operation its plain gradient if coverage names it
RULED = [*RULES, "partial-lrp", "transformer-attribution"]
IDS = torch.randint(0, 40, (2, TOKENS), generator=torch.Generator().manual_seed(1))


def limit(method):
    return RELPROP if method in ("lrp", "partial-lrp", "transformer-attribution") else EXACT


def prepared(model):
    """Draw the weights anew; models with the same parameters, in the same order, are the same function."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model.double().eval()


def split(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def unfused(q, k, v):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def compared(model, usual, method, target=1, inputs=IDS):
    """Return ``"equal"``, ``"refused"``, ``"warned"``, or the names in ``coverage.plain`` that only the model has."""
    expected = whence.explain(usual, inputs, method, target)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            found = whence.explain(model, inputs, method, target)
        except whence.EngineError:
            raise
        except whence.WhenceError:
            return "refused"
    if relative(found.scores, expected.scores) <= limit(method):
        return "equal"
    if any(issubclass(w.category, whence.WhenceWarning) for w in seen):
        return "warned"
    return sorted(set(found.coverage.plain) - set(expected.coverage.plain))


def equal_or_named(model, usual, method, name):
    """Assert equal scores; a rule may instead give the operation its plain gradient, by its name. Nothing is silent.

    Plain gradients have no such excuse, nor have roll-ups of attention maps.
    """
    found = compared(model, usual, method)
    if method in RULED and isinstance(found, list):
        assert any(name in entry.lower() for entry in found), f"plain gradient without a note; new: {found}"
    else:
        assert found in ("equal", "refused", "warned")


class Encoder(nn.Module):
    """Two blocks of the usual kind, whose parts can be replaced by equal ones, and the first token."""

    def __init__(
        self,
        norm=lambda x: F.layer_norm(x, (WIDTH,)),
        activation=F.gelu,
        attend=F.scaled_dot_product_attention,
        add=lambda x, f: x + f,
        last=None,
    ):
        super().__init__()
        self.embed, self.position = nn.Embedding(40, WIDTH), nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.qkv, self.out, self.up, self.down = (
            nn.ModuleList(nn.Linear(a, b) for _ in range(2))
            for a, b in ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 24), (24, WIDTH))
        )
        self.head = nn.Linear(WIDTH, 3)
        self.norm, self.activation, self.attend, self.add, self.last = norm, activation, attend, add, last or attend

    def encode(self, x):
        for i in range(2):
            attend = self.last if i else self.attend
            q, k, v = map(split, self.qkv[i](self.norm(x)).chunk(3, -1))
            x = self.add(x, self.out[i](joined(attend(q, k, v))))
            x = self.add(x, self.down[i](self.activation(self.up[i](self.norm(x)))))
        return self.norm(x)

    def read(self, x):
        return self.head(self.encode(x)[:, 0])

    def forward(self, ids):
        return self.read(self.embed(ids) + self.position)


def gradient_x_input(model, target=1):
    """Gradient x input at the sum of token and position embeddings, by autograd alone."""
    x = (model.embed(IDS) + getattr(model, "position", 0)).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.read(x)[:, target].sum(), x)
    return (x * gradient).sum(-1).detach()


# -- recurrent layers behind an encoder --------------------------------------------------------------------------------


class Recurrent(Encoder):
    """A recurrent layer reads the tokens; its last state is classified."""

    def __init__(self, kind, by_hand=False):
        super().__init__()
        self.kind, self.by_hand = kind, by_hand
        self.cell = getattr(nn, kind)(WIDTH, WIDTH, batch_first=True)

    def step(self, x, h, c):
        a = F.linear(x, self.cell.weight_ih_l0, self.cell.bias_ih_l0)
        b = F.linear(h, self.cell.weight_hh_l0, self.cell.bias_hh_l0)
        if self.kind == "RNN":
            return torch.tanh(a + b), c
        if self.kind == "LSTM":
            i, f, g, o = (a + b).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c
        (ar, az, an), (br, bz, bn) = a.chunk(3, -1), b.chunk(3, -1)
        z = torch.sigmoid(az + bz)
        return (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h, c

    def read(self, x):
        x = self.encode(x)
        if not self.by_hand:
            return self.head(self.cell(x)[0][:, -1])
        h = c = x.new_zeros(len(x), WIDTH)
        for t in range(x.shape[1]):
            h, c = self.step(x[:, t], h, c)
        return self.head(h)


CELLS = ["LSTM", "GRU", "RNN"]


@pytest.mark.parametrize("kind", CELLS)
def test_gradients_of_a_recurrent_layer_are_those_of_its_equations(kind):
    fused, by_hand = prepared(Recurrent(kind)), prepared(Recurrent(kind, by_hand=True))
    close(fused(IDS), by_hand(IDS), EXACT)
    found = whence.explain(fused, IDS, "gradient-x-input", 1)
    close(found.scores, gradient_x_input(by_hand), EXACT)
    for method in ("saliency", "integrated-gradients"):
        assert compared(fused, by_hand, method) == "equal"


@pytest.mark.parametrize("method", [m for m in METHODS if m != "gradient-x-input"])
@pytest.mark.parametrize("kind", CELLS)
def test_a_recurrent_layer_is_equal_or_named(kind, method):
    equal_or_named(prepared(Recurrent(kind)), prepared(Recurrent(kind, by_hand=True)), method, kind.lower())


@pytest.mark.parametrize("method", ["gradient-x-input", "attn-lrp"])
@pytest.mark.parametrize("kind", CELLS)
def test_coverage_counts_a_recurrent_layer(kind, method):
    """It has several outputs, of which one is read."""
    coverage = whence.explain(prepared(Recurrent(kind)), IDS, method, 1).coverage
    by_hand = whence.explain(prepared(Recurrent(kind, by_hand=True)), IDS, method, 1).coverage
    own = [name for name in coverage.seen if kind.lower() in name.lower()]
    gates = [name for name in coverage.seen if name in ("sigmoid", "tanh")]
    assert own or gates, f"the layer is in none of {sorted(coverage.seen)}"
    if method == "gradient-x-input":
        assert set(coverage.plain) & {*own, *gates}
        assert coverage.share < 1
    assert {"sigmoid", "tanh"} & set(by_hand.seen)


# -- norms and kernels with several outputs ----------------------------------------------------------------------------


def var_mean(x):
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5)


def std_mean(x):
    deviation, mean = torch.std_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) / (deviation * deviation + 1e-5).sqrt()


def squared_magnitude(x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (((x - mean).abs() ** 2).mean(-1, keepdim=True) + 1e-5).sqrt()


def native(x):
    return torch.native_layer_norm(x, (WIDTH,), None, None, 1e-5)[0]


def batch_statistics(x):
    return F.batch_norm(x.reshape(1, -1, WIDTH), None, None, training=True).reshape(x.shape)


def layer_norm_parts(x):
    scale = (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    return (x - x.mean(-1, keepdim=True)) * scale, scale


def layer_norm_gradient(ctx, gradient, _):
    y, scale = ctx.saved_tensors
    return scale * (gradient - gradient.mean(-1, keepdim=True) - y * (gradient * y).mean(-1, keepdim=True))


class NormFunction(torch.autograd.Function):
    """A custom function that returns a norm and its scale."""

    @staticmethod
    def forward(ctx, x):
        y, scale = layer_norm_parts(x)
        ctx.save_for_backward(y, scale)
        ctx.mark_non_differentiable(scale)
        return y, scale

    backward = staticmethod(layer_norm_gradient)


@torch.library.custom_op("whence_tests::norm_and_scale", mutates_args=())
def norm_and_scale(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return layer_norm_parts(x)


norm_and_scale.register_autograd(
    layer_norm_gradient, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*output)
)

EQUAL = {
    "var_mean": {"norm": var_mean},
    "std_mean": {"norm": std_mean},
    "(x - mean).abs() ** 2": {"norm": squared_magnitude},
    "gelu(input=x)": {"activation": lambda x: F.gelu(input=x)},
}
#: with a part of the name under which coverage tells of their plain gradient
NAMED = {
    "native_layer_norm": ({"norm": native}, "layer_norm"),
    "batch_norm(training=True)": ({"norm": batch_statistics}, "batch_norm"),
    "function with an auxiliary output": ({"norm": lambda x: NormFunction.apply(x)[0]}, "normfunction"),
    "custom operator with an auxiliary output": ({"norm": lambda x: norm_and_scale(x)[0]}, "norm_and_scale"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spelling", EQUAL)
def test_a_spelling_has_the_scores_of_the_usual_one(spelling, method):
    model = prepared(Encoder(**EQUAL[spelling]))
    close(model(IDS), prepared(Encoder())(IDS), EXACT)
    assert compared(model, prepared(Encoder()), method) == "equal"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spelling", NAMED)
def test_a_kernel_with_several_outputs_is_equal_or_named(spelling, method):
    parts, name = NAMED[spelling]
    model = prepared(Encoder(**parts))
    close(model(IDS), prepared(Encoder())(IDS), EXACT)
    equal_or_named(model, prepared(Encoder()), method, name)


# -- TorchScript -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A pre-norm block that TorchScript can compile."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(12), nn.LayerNorm(12)
        self.qkv, self.out, self.up, self.down = (
            nn.Linear(12, 36),
            nn.Linear(12, 12),
            nn.Linear(12, 24),
            nn.Linear(24, 12),
        )

    def forward(self, x):
        qkv = self.qkv(self.before(x)).view(x.shape[0], x.shape[1], 3, 2, 6).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        a = (q @ k.transpose(-2, -1) * 0.40824829046386302).softmax(-1)
        x = x + self.out((a @ v).transpose(1, 2).reshape(x.shape[0], x.shape[1], 12))
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Blocks(nn.Module):
    """Three blocks, some of them compiled."""

    def __init__(self, compiled=()):
        super().__init__()
        self.embed, self.position = nn.Embedding(40, WIDTH), nn.Parameter(torch.zeros(TOKENS, WIDTH))
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(WIDTH, 3)
        prepared(self)
        for i in compiled:
            self.blocks[i] = torch.jit.script(self.blocks[i])

    def read(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])

    def forward(self, ids):
        return self.read(self.embed(ids) + self.position)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("compiled", [(1,), (2,), (0, 1, 2)], ids=["one", "last", "all"])
def test_scripted_blocks_are_equal_or_named(compiled, method):
    """Not as one operation by the name of a C++ class: as the script, its module, or the operations inside."""
    model, usual = Blocks(compiled).eval(), Blocks().eval()
    close(model(IDS), usual(IDS), EXACT)
    found = compared(model, usual, method)
    if method in RULES and isinstance(found, list):
        assert any(word in name.lower() for name in found for word in ("script", "block")), found
    else:
        assert found in ("equal", "refused", "warned")


# -- the last attention, in a spelling that is hard to see -------------------------------------------------------------


def exponential_over_sum(q, k, v):
    e = (q @ k.mT * SCALE).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def divided_at_the_end(q, k, v):
    e = (q @ k.mT * SCALE).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def log_softmax(q, k, v):
    return (q @ k.mT * SCALE).log_softmax(-1).exp() @ v


def logsumexp(q, k, v):
    scores = q @ k.mT * SCALE
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


def sum_of_products(q, k, v):
    return ((q @ k.mT * SCALE).softmax(-1)[..., None] * v[:, :, None]).sum(-2)


def head_by_head(q, k, v):
    return torch.stack([unfused(q[:, i], k[:, i], v[:, i]) for i in range(HEADS)], 1)


LAST = [exponential_over_sum, divided_at_the_end, log_softmax, logsumexp, sum_of_products, head_by_head]


@pytest.mark.parametrize("method", ["attention", "grad-cam", "partial-lrp"])
@pytest.mark.parametrize("last", LAST)
def test_the_last_layer_is_the_last(last, method):
    """An attention that is not seen must not make the one before it the last."""
    model, usual = prepared(Encoder(last=last)), prepared(Encoder())
    close(model(IDS), usual(IDS), EXACT)
    assert float(whence.explain(usual, IDS, method, 1).scores.abs().max()) > 0
    assert compared(model, usual, method) in ("equal", "refused", "warned")


# -- residual sums -----------------------------------------------------------------------------------------------------

RESIDUALS = {
    "clone": lambda x, f: x.clone() + f,
    "contiguous copy": lambda x, f: torch.empty_like(x).copy_(x) + f,
    "view": lambda x, f: x.view(x.shape) + f,
    "view of rows": lambda x, f: (x.reshape(-1, WIDTH) + f.reshape(-1, WIDTH)).view(x.shape),
    "slice": lambda x, f: x[:, :] + f,
    "transposed": lambda x, f: (x.mT + f.mT).mT,
    "sequence first": lambda x, f: (x.transpose(0, 1) + f.transpose(0, 1)).transpose(0, 1),
    "features first": lambda x, f: (x.permute(2, 0, 1) + f.permute(2, 0, 1)).permute(1, 2, 0),
    "(2 x + 2 f) / 2": lambda x, f: (2 * x + 2 * f) / 2,
    "2 (x / 2 + f / 2)": lambda x, f: 2 * (x / 2 + f / 2),
    "1.0 x": lambda x, f: x * 1.0 + f,
    "alpha": lambda x, f: torch.add(x, f, alpha=1),
    "minus minus": lambda x, f: x - (-f),
    "branch first": lambda x, f: f + x,
    "in place": lambda x, f: f.add_(x),
}
#: sums that need not be known as residual ones: refused, or announced by a warning, is right as well
RARE_RESIDUALS = {
    "stacked": lambda x, f: torch.stack([x, f]).sum(0),
    "mean of twice": lambda x, f: torch.stack([2 * x, 2 * f]).mean(0),
    "einsum": lambda x, f: torch.einsum("nbtd->btd", torch.stack([x, f])),
    "lerp": lambda x, f: 2 * torch.lerp(x, f, 0.5),
}


@pytest.mark.parametrize("residual", RESIDUALS)
def test_position_level_stays_at_the_position(residual):
    """The default reads token and position embeddings together, however the residual stream is written."""
    model = prepared(Encoder(add=RESIDUALS[residual]))
    expected = gradient_x_input(prepared(Encoder()))
    close(whence.explain(model, IDS, "gradient-x-input", 1).scores, expected, EXACT)
    token = whence.explain(model, IDS, "gradient-x-input", 1, at="token").scores
    assert relative(token, expected) > 0.1


@pytest.mark.parametrize("method", [*RULES, "rollout", "generic-attention"])
@pytest.mark.parametrize("residual", RESIDUALS)
def test_a_residual_sum_has_the_scores_of_the_usual_one(residual, method):
    assert compared(prepared(Encoder(add=RESIDUALS[residual])), prepared(Encoder()), method) == "equal"


@pytest.mark.parametrize("method", ["gradient-x-input", *RULES, "rollout", "generic-attention"])
@pytest.mark.parametrize("residual", RARE_RESIDUALS)
def test_a_rare_residual_sum_does_not_change_the_read_out_in_silence(residual, method):
    found = compared(prepared(Encoder(add=RARE_RESIDUALS[residual])), prepared(Encoder()), method)
    assert found in ("equal", "refused", "warned")


# -- a learned query ---------------------------------------------------------------------------------------------------


class AttentionPooling(nn.Module):
    """A learned query reads the tokens; keys and values are projected together, or each by its half of the weights."""

    def __init__(self, attend, packed=True):
        super().__init__()
        self.embed, self.query = nn.Embedding(40, WIDTH), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.q, self.kv, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 3)
        self.attend, self.packed = attend, packed

    def read(self, x):
        if self.packed:
            k, v = self.kv(x).chunk(2, -1)
        else:
            k, v = (F.linear(x, *half) for half in zip(self.kv.weight.chunk(2), self.kv.bias.chunk(2), strict=True))
        q = self.q(self.query).expand(len(x), -1, -1)
        return self.head(joined(self.attend(split(q), split(k), split(v)))[:, 0])

    def forward(self, ids):
        return self.read(self.embed(ids))


ATTENTIONS = {"fused": F.scaled_dot_product_attention, "unfused": unfused}


@pytest.mark.parametrize("method", ["gradient-x-input", "conservative-lrp", "attn-lrp"])
@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("packed", [True, False])
def test_the_ledger_of_a_learned_query_balances(packed, attend, method):
    found = whence.explain(prepared(AttentionPooling(ATTENTIONS[attend], packed)), IDS, method, 1)
    assert float(found.ledger.imbalance.abs().max()) < EXACT * float(found.ledger.total.abs().max())


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("packed", [True, False])
def test_a_pooling_is_read_at_its_tokens(packed, attend):
    """Not at the output of the projection, where the model packs keys and values."""
    model = prepared(AttentionPooling(ATTENTIONS[attend], packed))
    close(whence.explain(model, IDS, "gradient-x-input", 1).scores, gradient_x_input(model), EXACT)


# -- a learned memory: keys and values that no token is part of --------------------------------------------------------


class Memory(nn.Module):
    """Attentions to the tokens (``"t"``), to learned keys and values (``"m"``), to learned values (``"v"``)."""

    def __init__(self, layers, attend, detached=False):
        super().__init__()
        self.embed = nn.Embedding(40, WIDTH)
        self.keys, self.values = (nn.Parameter(torch.zeros(HEADS, 5, WIDTH // HEADS)) for _ in range(2))
        self.constant = nn.Parameter(torch.zeros(HEADS, TOKENS, WIDTH // HEADS))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in layers)
        self.out, self.head = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in layers), nn.Linear(WIDTH, 3)
        self.layers, self.attend, self.detached = layers, attend, detached

    def read(self, x, maps=()):
        maps = iter(maps)
        for kind, qkv, out in zip(self.layers, self.qkv, self.out, strict=True):
            q, k, v = map(split, qkv(x).chunk(3, -1))
            k = self.keys.expand(len(x), -1, -1, -1) if kind == "m" else k
            v = self.values.expand(len(x), -1, -1, -1) if kind == "m" else v
            v = self.constant.expand(len(x), -1, -1, -1) if kind == "v" else v
            if self.detached:
                y = torch.softmax(q @ k.mT * SCALE, -1).detach() @ v
            elif kind == "t" and (A := next(maps, None)) is not None:
                y = A @ v
            else:
                y = self.attend(q, k, v)
            x = x + out(joined(y))
        return self.head(x[:, 0])

    def forward(self, ids):
        return self.read(self.embed(ids))


MEMORIES = ["m", "tm", "mt", "tmt", "v", "tv", "vt"]
#: where the first block with attention between tokens is the first block, or there is none
READ_BEFORE = ["m", "tm", "tmt", "v", "tv"]


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("layers", READ_BEFORE)
def test_gradients_past_a_learned_memory(layers, attend):
    model = prepared(Memory(layers, ATTENTIONS[attend]))
    close(whence.explain(model, IDS, "gradient-x-input", 1).scores, gradient_x_input(model), EXACT)


@pytest.mark.parametrize("method", ["attn-lrp", "res-lrp", "libragrad", "lrp", "saliency", "occlusion"])
@pytest.mark.parametrize("layers", MEMORIES)
def test_a_learned_memory_is_the_same_fused_and_unfused(layers, method):
    fused, usual = (prepared(Memory(layers, attend)) for attend in (F.scaled_dot_product_attention, unfused))
    try:
        expected = whence.explain(usual, IDS, method, 1)
    except whence.EngineError:
        raise
    except whence.WhenceError:
        with pytest.raises(whence.WhenceError):
            whence.explain(fused, IDS, method, 1)
        return
    close(whence.explain(fused, IDS, method, 1).scores, expected.scores, limit(method))


@pytest.mark.parametrize("method", ["attention", "rollout", "generic-attention", "grad-cam"])
@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("layers", ["tm", "mt"])
def test_maps_beside_a_learned_memory(layers, attend, method):
    """A memory holds no tokens: maps are those of the attention between tokens alone."""
    model = prepared(Memory(layers, ATTENTIONS[attend]))
    x = model.embed(IDS)
    i = layers.index("t")
    if i:
        before = prepared(Memory(layers, unfused))
        k, v = (t.expand(len(x), -1, -1, -1) for t in (before.keys, before.values))
        x = x + before.out[0](joined(unfused(split(before.qkv[0](x).chunk(3, -1)[0]), k, v)))
    q, k, _ = map(split, model.qkv[i](x).chunk(3, -1))
    A = torch.softmax(q @ k.mT * SCALE, -1).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.read(model.embed(IDS), [A])[:, 1].sum(), A)
    first = torch.eye(TOKENS)[0]
    weights = gradient[:, :, 0, 1:].mean(-1, keepdim=True)
    expected = {
        "attention": A[:, :, 0].mean(1),
        "rollout": (A[:, :, 0].mean(1) + first) / 2,
        "generic-attention": (A * gradient).clamp(min=0).mean(1)[:, 0] + first,
        "grad-cam": (A[:, :, 0] * weights).mean(1).clamp(min=0),
    }[method]
    close(whence.explain(model, IDS, method, 1).scores, expected.detach(), EXACT)


# -- several streams in float64 ----------------------------------------------------------------------------------------


class CrossAttention(nn.Module):
    """Three queries read five tokens twice, and are averaged."""

    def __init__(self, attend):
        super().__init__()
        self.embed, self.other = nn.Embedding(40, WIDTH), nn.Embedding(40, WIDTH)
        self.qkv, self.q, self.kv = nn.Linear(WIDTH, 36), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 24)
        self.out, self.mix, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.attend = attend

    def maps(self, read, query):
        x, y = self.embed(read), self.other(query)
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        inner = torch.softmax(q @ k.mT * SCALE, -1)
        x = x + self.mix(joined(inner @ v))
        k, _ = map(split, self.kv(x).chunk(2, -1))
        return inner.mean(1), torch.softmax(split(self.q(y)) @ k.mT * SCALE, -1).mean(1)

    def forward(self, read, query):
        x, y = self.embed(read), self.other(query)
        x = x + self.mix(joined(self.attend(*map(split, self.qkv(x).chunk(3, -1)))))
        k, v = map(split, self.kv(x).chunk(2, -1))
        return self.head((y + self.out(joined(self.attend(split(self.q(y)), k, v)))).mean(1))


@pytest.mark.parametrize("attend", ATTENTIONS)
@pytest.mark.parametrize("method", ["attention", "rollout"])
def test_row_weights_have_the_precision_of_the_model(method, attend):
    """The mean of three rows has weights of 1/3, which float32 does not hold to nine digits."""
    model = prepared(CrossAttention(ATTENTIONS[attend]))
    inputs = {"read": IDS[:, :5], "query": IDS[:, 5:8]}
    inner, cross = (A.detach() for A in model.maps(**inputs))
    expected = cross if method == "attention" else cross @ (inner + torch.eye(5)) / 4
    found = whence.explain(model, inputs, method, 1)
    streams = {s.shape[1]: s for s in found.streams.values()}
    close(streams[5], expected.mean(1), EXACT)
    if method == "rollout":
        close(streams[3], torch.full((2, 3), 1 / 6, dtype=torch.float64), EXACT)


# -- calls that may be refused, but only by a WhenceError --------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attend", ATTENTIONS)
def test_autocast_inside_the_forward_pass(attend, method):
    """Scores in bfloat16 are near those in float32; of LRP, which amplifies rounding, the direction is compared."""

    class Autocast(Encoder):
        def forward(self, ids):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(ids).float()

    model, usual = (prepared(kind(attend=ATTENTIONS[attend])).float() for kind in (Autocast, Encoder))
    expected = whence.explain(usual, IDS, method, 1).scores
    try:
        found = whence.explain(model, IDS, method, 1).scores.float()
    except whence.EngineError:
        raise
    except whence.WhenceError:
        return
    if limit(method) == RELPROP:
        assert float(F.cosine_similarity(found, expected).min()) > 0.8
    else:
        close(found, expected, 0.1)


class Jagged(nn.Module):
    """Texts of different lengths as one nested tensor, or padded."""

    def __init__(self, nested):
        super().__init__()
        self.nested, self.embed = nested, nn.Embedding(40, 16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 3)

    def forward(self, ids, lengths):
        x = self.embed(ids)
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        if self.nested:
            x = torch.nested.as_nested_tensor(
                [row[:n] for row, n in zip(x, lengths.tolist(), strict=True)], layout=torch.jagged
            )
        q, k, v = (f(x).unflatten(-1, [2, 8]).transpose(1, 2) for f in (self.q, self.k, self.v))
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=None if self.nested else mask[:, None, None])
        x = x + self.out(read.transpose(1, 2).flatten(-2))
        if self.nested:
            return self.head(torch.stack([row.mean(0) for row in x.unbind()]))
        return self.head((x * mask[..., None]).sum(1) / lengths[:, None])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("method", METHODS)
def test_jagged_tensors_are_equal_to_padded_ones_or_refused(method):
    inputs = {"ids": IDS, "lengths": torch.tensor([9, 6])}
    nested, padded = (prepared(Jagged(n)) for n in (True, False))
    close(nested(**inputs), padded(**inputs), EXACT)
    assert compared(nested, padded, method, inputs=inputs) in ("equal", "refused")


@pytest.fixture(scope="module")
def exported():
    return torch.export.export(prepared(Encoder()), (IDS,)).module()


@pytest.mark.parametrize("method", METHODS)
def test_an_exported_model_with_a_static_batch_is_equal_or_refused(exported, method):
    assert compared(exported, prepared(Encoder()), method) in ("equal", "refused")


def test_an_exported_model_with_another_batch_is_refused(exported):
    """The model itself refuses it: its batch is two."""
    with pytest.raises(whence.WhenceError):
        whence.explain(exported, IDS[:1], "gradient-x-input", 1)


class MoreSamples(Encoder):
    """An encoder whose blocks work on more samples than it is given."""

    def __init__(self, more, fewer):
        super().__init__()
        self.more, self.fewer = more, fewer

    def encode(self, x):
        return self.fewer(super().encode(self.more(x)), len(x))


MORE_SAMPLES = {
    "joined": (lambda x: torch.cat([x, x]), lambda x, n: x[:n]),
    "repeated": (lambda x: x.repeat(2, 1, 1), lambda x, n: x[n:]),
    "interleaved": (lambda x: x.repeat_interleave(2, 0), lambda x, n: x[::2]),
    "expanded": (lambda x: x[:, None].expand(-1, 2, -1, -1).flatten(0, 1), lambda x, n: x.unflatten(0, (n, 2))[:, 0]),
    "padded": (lambda x: F.pad(x, (0, 0, 0, 0, 0, 1)), lambda x, n: x[:-1]),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MORE_SAMPLES)
def test_samples_that_a_model_adds_are_no_heads(name, method):
    found = compared(prepared(MoreSamples(*MORE_SAMPLES[name])), prepared(Encoder()), method)
    assert found == ("refused" if method in MAPS else "equal")
