"""What was found on the families of the conformance matrix, each told again on a small model of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from torch import nn

import whence
from tests.support.checks import EXACT, relative
from tests.support.runs import traced

# -- pictures, sound, detection --------------------------------------------------------------------------------------


class Block(nn.Module):
    """A block of attention that a subclass changes in one place."""

    def __init__(self, width=8):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        return x + self.out(self.attend(*self.qkv(self.norm(x)).chunk(3, -1)))


class Picture(nn.Module):
    """Patches of 4 x 4 pixels, a block, a mean over all tokens."""

    def __init__(self, block, width=8):
        super().__init__()
        self.patch, self.block, self.head = nn.Conv2d(3, width, 4, 4), block, nn.Linear(width, 3)

    def embed(self, pixels):
        return self.patch(pixels).flatten(2).transpose(1, 2)

    def forward(self, pixels):
        return self.head(self.block(self.embed(pixels)).mean(1))


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make().double().eval()


def picture(batch=2, size=16):
    torch.manual_seed(1)
    return torch.randn(batch, 3, size, size, dtype=torch.float64)


class Biased(Block):
    """Attention scores with a bias that depends on the queries, as in SAM and in Conformers."""

    fused = True

    def attend(self, q, k, v):
        bias = q @ torch.linspace(-1, 1, q.shape[-1] * q.shape[1], dtype=q.dtype).reshape(q.shape[-1], -1)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + bias, -1) @ v


@pytest.mark.parametrize("method", ["conservative-lrp", "attn-lrp", "gradient-x-input"])
def test_a_bias_that_depends_on_the_input_is_part_of_fused_attention(method):
    model, x = seeded(lambda: Picture(Biased())), picture()
    fused = whence.explain(model, x, method, 1)
    model.block.fused = False
    written = whence.explain(model, x, method, 1)
    assert relative(fused.scores, written.scores) < EXACT


def test_the_bias_of_a_product_has_no_say_in_what_the_tokens_are():
    class Gated(Block):
        def attend(self, q, k, v):
            bias = torch.sigmoid(q[..., :1]) * torch.linspace(-1, 1, q.shape[1], dtype=q.dtype)
            return torch.baddbmm(bias, q, k.transpose(1, 2)).softmax(-1) @ v

    model = seeded(lambda: Picture(Gated()))
    _, run = traced(model, picture(), "rollout", 1)
    record = run.trace.attentions[0]
    assert record.axes[record.query] == record.axes[record.key] == run.tokens
    assert run.tokens in run.boundaries[0].node.axes


@pytest.mark.parametrize(("first", "own"), [(1, 0), (3, 0), (1, 1), (3, 3), (3, 1)])
def test_tokens_are_the_same_when_a_stretch_of_them_was_rotated(first, own):
    class Rotated(Block):
        def attend(self, q, k, v):
            angle = torch.linspace(0, 1, q.shape[1] - first, dtype=q.dtype)[:, None]
            q, k = (torch.cat([t[:, :first], t[:, first:] * angle.cos()], 1) for t in (q, k))
            return F.scaled_dot_product_attention(q, k, v)

    class Prefixed(Picture):
        def embed(self, pixels):
            return torch.cat([torch.ones(len(pixels), own, 8, dtype=pixels.dtype), super().embed(pixels)], 1)

    model, x = seeded(lambda: Prefixed(Rotated())), picture()
    _, run = traced(model, x, "rollout", 1)
    record = run.trace.attentions[0]
    assert record.axes[record.query] == record.axes[record.key] == run.tokens
    e = whence.explain(model, x, "rollout", 1)
    assert e.scores.shape == (2, 16 + own)
    assert (e.grid, e.patch_start) == ((4, 4), own)


class Windows(Block):
    """Attention inside windows of 2 x 2 tokens, of a stream [batch, rows, columns, features]."""

    def forward(self, x):
        b, h, w, c = x.shape
        y = self.norm(x).view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        y = self.attend(*self.qkv(y).chunk(3, -1))
        y = self.out(y).view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x + y


class Windowed(Picture):
    def forward(self, pixels):
        x = self.patch(pixels).permute(0, 2, 3, 1)
        return self.head(self.block(x).mean((1, 2)))


def test_tokens_of_windows_lie_where_the_picture_has_them():
    model, x = seeded(lambda: Windowed(Windows())), picture(size=24)[..., :16]  # 6 x 4 patches
    e = whence.explain(model, x, "gradient-x-input", 1)
    assert e.scores.shape == (2, 24)
    assert e.grid == (6, 4)
    x = torch.zeros_like(x)
    x[:, :, 16:20, 8:12] = picture(size=4)  # patch (4, 2): its window is no other's business
    model.patch.bias.data.zero_()
    scores = whence.explain(model, x, "gradient-x-input", 1).scores.reshape(2, 6, 4)
    assert bool((scores[:, 4, 2] != 0).all())
    assert int((scores != 0).sum()) == 2


@pytest.mark.parametrize("method", ["rollout", "generic-attention", "attention", "pa-lrp", "transformer-attribution"])
def test_windows_are_not_rolled_up(method):
    model = seeded(lambda: Windowed(Windows()))
    with pytest.raises(whence.ModelError, match=r"windows.*conservative-lrp"):
        whence.explain(model, picture(), method, 1)


class Normed(Picture):
    """Tokens that leave a batch norm permuted, so that its gradient comes back in another layout."""

    def __init__(self, block, width=8):
        super().__init__(block, width)
        self.normed = nn.BatchNorm2d(width)
        self.normed.running_var.uniform_(0.5, 2)

    def embed(self, pixels):
        return self.normed(self.patch(pixels)).flatten(2).transpose(1, 2)


def test_a_batch_norm_is_differentiated_right_for_a_batch_of_one():
    model, x = seeded(lambda: Normed(Block())), picture()
    together = whence.explain(model, x, "gradient-x-input", 1, at="pixel").scores
    alone = whence.explain(model, x[:1], "gradient-x-input", 1, at="pixel").scores
    assert relative(alone, together[:1]) < EXACT


def test_the_books_hold_values_that_are_overwritten_later():
    class Added(Normed):
        def embed(self, pixels):
            x = self.patch(pixels)
            y = self.normed(x)
            y += x
            return F.relu_(y).flatten(2).transpose(1, 2).mean(1, keepdim=True)

    class Plain(nn.Module):
        def forward(self, x):
            return x

    e = whence.explain(seeded(lambda: Added(Plain())), picture(), "conservative-lrp", 1)
    assert e.ledger is not None
    assert float(e.ledger.imbalance.abs().max()) < EXACT * float(e.ledger.sums.abs().max())


def test_the_books_leave_out_boundaries_that_a_head_looks_behind():
    class Tapped(Picture):
        def __init__(self):
            super().__init__(Block())
            self.second, self.both = Block(), nn.Linear(16, 3)

        def forward(self, pixels):
            one = self.block(self.embed(pixels))
            return self.both(torch.cat([one, self.second(one)], -1).mean(1))

    e = whence.explain(seeded(Tapped), picture(), "conservative-lrp", 1)
    assert e.ledger is not None
    assert e.ledger.sums.shape[1] == 2  # into both blocks; what leaves the second is not all that the head reads
    assert float(e.ledger.imbalance.abs().max()) < EXACT * float(e.ledger.sums.abs().max())


class Beside(Picture):
    """A convolution beside the attention, as in MobileViT."""

    def __init__(self):
        super().__init__(Block())
        self.beside = nn.Conv2d(3, 8, 4, 4)

    def forward(self, pixels):
        y = self.block(self.embed(pixels)).transpose(1, 2).unflatten(2, (4, 4))
        return self.head((self.beside(pixels).relu() * 2 + y).mean((2, 3)))


def test_what_goes_round_attention_is_read_at_the_input():
    model, x = seeded(Beside), picture()
    with pytest.warns(whence.WhenceWarning, match=r"bypasses the blocks.*at='pixel'"):
        e = whence.explain(model, x, "conservative-lrp", 1)
    assert e.scores.shape == (2, 256)
    assert e.ledger is not None
    assert float(e.ledger.imbalance.abs().max()) < EXACT * float(e.ledger.sums.abs().max())
    with pytest.raises(whence.ModelError, match=r"round its attention.*gradient-x-input"):
        whence.explain(model, x, "rollout", 1)


class Queries(Picture):
    """Learned queries that begin from zeros and are told what they ask in every layer, as in DETR."""

    def __init__(self):
        super().__init__(Block())
        self.queries = nn.Parameter(torch.randn(3, 8))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))

    def forward(self, pixels):
        x = self.block(self.embed(pixels))
        asked = self.queries[None].repeat(len(x), 1, 1)
        y = torch.zeros_like(asked)
        for q, k, r, s in (self.layers[:4], self.layers[4:]):
            y = y + F.scaled_dot_product_attention(q(y + asked), r(y + asked), y)
            y = y + F.scaled_dot_product_attention(k(y + asked), s(x), x)
        return self.head(y[:, 0])


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "rollout"])
def test_queries_that_begin_from_zeros_are_one_stream(method):
    e = whence.explain(seeded(Queries), picture(), method, 1)
    assert {name: s.shape[1] for name, s in e.streams.items()} == {"image": 16, "queries": 3}
    assert method == "conservative-lrp" or bool(e.streams["queries"].any())


class Latents(Picture):
    """Learned latents that look at the patches, which nothing else does, as in Perceiver."""

    def __init__(self):
        super().__init__(Block())
        self.latents, self.read = nn.Parameter(torch.randn(3, 8)), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, pixels):
        x, latents = self.embed(pixels), self.latents.expand(len(pixels), -1, -1)
        q, k, v = (layer(t) for layer, t in zip(self.read, (latents, x, x), strict=True))
        return self.head(self.block(latents + F.scaled_dot_product_attention(q, k, v)).mean(1))


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "rollout", "generic-attention"])
def test_what_learned_latents_look_at_is_the_main_stream(method):
    model, x = seeded(Latents), picture()
    e = whence.explain(model, x, method, 1)
    assert {name: s.shape[1] for name, s in e.streams.items()} == {"image": 16, "queries": 3}
    assert e.scores.shape == (2, 16)
    assert e.grid == (4, 4)
    assert bool(e.scores.any())
    assert relative(whence.explain(model, x[:1], method, 1).scores, e.scores[:1]) < EXACT


# -- text, language models, encoder-decoders -------------------------------------------------------------------------

ONE_PASS = [
    name
    for name, m in whence.list_methods().items()
    if m.forwards == 1 and m.backwards == 1 and name not in ("dave", "random")
]


class Words(nn.Module):
    """Embeddings, a block of attention that a subclass changes in one place, the first token's answer."""

    def __init__(self, width=8):
        super().__init__()
        self.words, self.places = nn.Embedding(20, width), nn.Embedding(9, width)
        self.q, self.k, self.v, self.up, self.down = (nn.Linear(width, width) for _ in range(5))
        self.head = nn.Linear(width, 3)

    def embed(self, ids):
        return self.words(ids) + self.places(torch.arange(ids.shape[1]))

    def keys(self, x):
        return self.k(x)

    def scores(self, x):
        return 2 * self.q(x) @ self.keys(x).mT

    def attend(self, x):
        return torch.softmax(self.scores(x), -1) @ self.v(x)

    def mlp(self, x):
        return self.down(F.gelu(self.up(x)))

    def block(self, x):
        x = x + self.attend(x)
        return x + self.mlp(x)

    def forward(self, ids):
        return self.head(self.block(self.embed(ids))[:, 0])


def ids(batch=2, tokens=6):
    torch.manual_seed(1)
    return torch.randint(0, 20, (batch, tokens))


def explained_alike(one, two, method, tolerance=EXACT):
    a, b = (whence.explain(seeded(model), ids(), method, 1).scores for model in (one, two))
    assert relative(a, b) < tolerance


def balanced(model):
    e = whence.explain(seeded(model), ids(), "conservative-lrp", 1)
    assert e.ledger is not None
    assert float(e.ledger.imbalance.abs().max()) < EXACT * float(e.ledger.sums.abs().max())


class Sink(Words):
    """A score that no token has, cut off behind the softmax, as in GPT-OSS."""

    def attend(self, x):
        scores = self.scores(x)
        sink = torch.ones_like(scores[..., :1]).detach()
        return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1] @ self.v(x)


class Turned(Words):
    """Rotary positions as complex numbers, as in Llama 4."""

    def keys(self, x):
        numbers = torch.view_as_complex(self.k(x).unflatten(-1, (-1, 2)))
        angles = torch.polar(torch.ones(6, 4), torch.outer(torch.arange(6.0), torch.arange(4.0))).to(numbers.dtype)
        return torch.view_as_real(numbers * angles).flatten(2)


class Copied(Words):
    """Keys written into an empty tensor part by part, as in DeepSeek-V3."""

    def keys(self, x):
        found = self.k(x)
        keys = found.new_empty(found.shape)
        keys[..., :3].copy_(found[..., :3])
        keys[..., 3:].copy_(found[..., 3:])
        return keys


class Spliced(Words):
    def keys(self, x):
        found = self.k(x)
        return torch.cat([found[..., :3], found[..., 3:]], -1)


@pytest.mark.parametrize("model", [Sink, Turned, Copied])
def test_tokens_are_followed(model):
    _, run = traced(seeded(model), {"ids": ids()}, "rollout", 1)
    (record,) = run.trace.attentions
    assert record.axes[record.query] == record.axes[record.key] == run.tokens
    assert whence.explain(seeded(model), ids(), "rollout", 1).scores.shape == (2, 6)


@pytest.mark.parametrize("method", ONE_PASS)
def test_what_is_written_into_an_empty_tensor_is_part_of_it(method):
    explained_alike(Copied, Spliced, method, 1e-8)  # LRP has a stabiliser at each operation


class Parallel(Words):
    """Attention and MLP read the same and are added one after the other, as in Cohere."""

    def block(self, x):
        return x + self.attend(x) + self.mlp(x)


class Together(Words):
    def block(self, x):
        return x + (self.attend(x) + self.mlp(x))


@pytest.mark.parametrize("method", ["conservative-lrp", "legrad", "rollout", "generic-attention"])
def test_a_parallel_block_is_one_block(method):
    explained_alike(Parallel, Together, method)
    balanced(Parallel)


class Gated(Words):
    """Some entries are minus infinity before a softmax that is no attention, as in a router of experts."""

    def mlp(self, x):
        gates = self.up(x).masked_fill(torch.arange(8) > 4, -torch.inf)
        return self.down(x) * torch.softmax(gates, -1).sum(-1, keepdim=True)


class Fourier(Words):
    """Tokens mixed by a Fourier transform, no attention, as in FNet."""

    def attend(self, x):
        return torch.fft.fftn(x, dim=(1, 2)).real


class Matrices(Words):
    def attend(self, x):
        numbers = [torch.arange(n, dtype=x.dtype) for n in x.shape[1:]]
        each = [torch.outer(k, k) * (2 * torch.pi / len(k)) for k in numbers]
        (c, s), (d, t) = ((torch.cos(angles), torch.sin(angles)) for angles in each)
        return c @ x @ d - s @ x @ t


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "attn-lrp"])
def test_a_fourier_transform_is_a_linear_layer(method):
    explained_alike(Fourier, Matrices, method)


@pytest.mark.parametrize("model", [Gated, Fourier, Copied, Sink])
def test_the_books_balance(model):
    balanced(model)


def test_without_attention_the_tokens_are_those_of_the_embedding():
    e = whence.explain(seeded(Fourier), ids(), "gradient-x-input", 1)
    assert list(e.streams) == ["text"]
    model = seeded(Fourier)
    x = model.embed(ids()).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.head(model.block(x)[:, 0])[:, 1].sum(), x)
    assert relative(e.scores, (x * gradient).sum(-1)) < EXACT
    with pytest.raises(whence.ModelError, match=r"no attention.*conservative-lrp"):
        whence.explain(model, ids(), "rollout", 1)


class Pieces(Words):
    """Probabilities of a window of three, laid out along the diagonal by padding and cutting, as in Longformer."""

    def attend(self, x):
        q, k, v = self.q(x), F.pad(self.k(x), (0, 0, 1, 1)), F.pad(self.v(x), (0, 0, 1, 1))
        n = x.shape[1]
        scores = torch.stack([(q * k[:, i : i + n]).sum(-1) for i in range(3)], -1)
        inside = torch.ones(n, n + 2).triu().tril(2).bool()[:, 1:-1]
        inside = torch.stack([F.pad(inside, (1, 1)).diagonal(i) for i in range(3)], -1)
        probabilities = torch.softmax(2 * scores.masked_fill(~inside, -torch.inf), -1)
        wide = F.pad(probabilities, (0, n)).flatten(1)[:, : n * (n + 2)].unflatten(1, (n, n + 2))
        return wide @ v


class Whole(Words):
    def scores(self, x):
        n = x.shape[1]
        return (
            super()
            .scores(x)
            .masked_fill(torch.ones(n, n).triu(2).bool() | torch.ones(n, n).tril(-2).bool(), -torch.inf)
        )


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "attn-lrp"])
def test_attention_in_pieces_has_the_rule_of_attention(method):
    explained_alike(Pieces, Whole, method)


class Halves(Words):
    """One attention to a half of the values at a time, as in DiffLlama."""

    def attend(self, x):
        probabilities = torch.softmax(self.scores(x), -1)
        return torch.cat([probabilities @ half for half in self.v(x).chunk(2, -1)], -1)


@pytest.mark.parametrize("method", ["attention", "rollout", "generic-attention", "legrad", "transformer-attribution"])
def test_attention_in_pieces_is_not_rolled_up(method):
    with pytest.raises(whence.ModelError, match="conservative-lrp"):
        whence.explain(seeded(Pieces), ids(), method, 1)


@pytest.mark.parametrize("method", ["attention", "rollout", "generic-attention", "legrad", "transformer-attribution"])
def test_halves_of_the_values_are_one_attention(method):
    halves, whole = seeded(Halves), seeded(Words)
    whole.load_state_dict(halves.state_dict())
    found, expected = (whence.explain(model, ids(), method, 1).scores for model in (halves, whole))
    assert relative(found, expected) < 1e-7  # the stabiliser of LRP counts once more where a tensor is cut in two


class Dots(Words):
    def attend(self, x):
        scores = 2 * torch.einsum("...qd,...kd->...qk", self.q(x), self.keys(x))
        return torch.einsum("...qk,...kd->...qd", torch.softmax(scores, -1), self.v(x))


@pytest.mark.parametrize("method", ["conservative-lrp", "rollout", "generic-attention"])
def test_an_einsum_may_have_dots(method):
    explained_alike(Dots, Words, method)


class Late(Words):
    def embed(self, ids):
        return super().embed(ids[:, -6:])


def test_a_stretch_of_the_text_is_text():
    assert list(whence.explain(seeded(Late), {"ids": ids()}, "rollout", 1).streams) == ["text"]


class Moody(nn.Module):
    """An encoder with as many operations as its values say, and a decoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.cross = Words(), Words(), nn.Linear(8, 8)

    def forward(self, ids):
        x = self.encoder.block(self.encoder.embed(ids))
        for _ in range(int(x.detach().abs().sum() * 1e6) % 7):
            x = x * 1.0
        y = self.decoder.embed(ids[:, :4])
        y = y + self.decoder.attend(y)
        y = y + torch.softmax(self.cross(y) @ x.mT, -1) @ x
        return self.decoder.head(y[:, -1])


def test_values_are_not_put_in_another_place():
    with pytest.raises(whence.ModelError, match="could not be run again"):
        whence.explain(seeded(Moody), ids(), "smooth-grad", 1, samples=8)


@pytest.mark.parametrize("method", ["conservative-lrp", "rollout", "generic-attention", "transformer-attribution"])
@pytest.mark.parametrize("name", ["Llama", "GPT-2", "T5"])
def test_a_cache_changes_nothing(name, method):
    import transformers

    small = {"vocab_size": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}
    made = {
        "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
            **small)),
        "GPT-2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, **small)),
        "T5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(
            d_model=16, num_layers=2, num_heads=4, d_kv=4, d_ff=24, decoder_start_token_id=1, **small)),
    }  # fmt: skip
    model, given = seeded(made[name]), {"input_ids": ids()}
    if name == "T5":
        given["decoder_input_ids"] = ids()[:, :4]
    scores = []
    for cache in (True, False):
        e = whence.explain(model, {**given, "use_cache": cache}, method, lambda o: o.logits[:, -1, 5])
        scores.append(torch.cat(list(e.streams.values()), 1))
    assert torch.equal(*scores)


# -- several inputs: text with pictures, series, decisions -------------------------------------------------------------


class Woven(nn.Module):
    """A picture is encoded, its tokens are put between words or before them, and a second block reads all."""

    def __init__(self, how="between", merge=1, positions=False):
        super().__init__()
        torch.manual_seed(0)
        self.how, self.merge, self.positions = how, merge, nn.Embedding(30, 8) if positions else None
        self.patch, self.words = nn.Conv2d(3, 8, 4, 4), nn.Embedding(20, 8)
        self.first, self.second, self.project = Block(), Block(), nn.Linear(8 * merge, 8)
        self.cls, self.head = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 3)

    def forward(self, pixels, input_ids, attention_mask=None):
        picture = self.first(self.patch(pixels).flatten(2).mT)
        picture = self.project(picture.unflatten(1, (-1, self.merge)).flatten(2))
        words = self.words(input_ids)
        if self.how == "between":
            x = words.masked_scatter((input_ids == 0)[..., None], picture)
        else:
            x = torch.cat([self.cls.expand(len(words), -1, -1), picture, words], 1)
        if self.positions is not None:
            x = x + self.positions(attention_mask.cumsum(1))
        return self.head(self.second(x)[:, -1])


def woven_inputs(samples=2, patches=4):
    torch.manual_seed(1)
    words = torch.randint(1, 20, (samples, 5))
    ids = torch.cat([words[:, :2], torch.zeros(samples, patches, dtype=torch.long), words[:, 2:]], 1)
    return {"pixels": torch.randn(samples, 3, 8, 8).double(), "input_ids": ids}


WOVEN = {
    "between": (lambda: Woven(), woven_inputs()),
    "merged": (lambda: Woven(merge=2), woven_inputs(patches=2)),
    "before": (lambda: Woven("before"), {**woven_inputs(), "input_ids": woven_inputs()["input_ids"][:, :2] + 1}),
}


@pytest.mark.parametrize("name", WOVEN)
def test_words_that_join_a_picture_have_scores_of_their_own(name):
    make, inputs = WOVEN[name]
    model = make().double().eval()
    words = inputs["input_ids"]
    for method in ("conservative-lrp", "gradient-x-input", "rollout", "generic-attention"):
        e = whence.explain(model, inputs, method, 1)
        assert {k: s.shape for k, s in e.streams.items()} == {"image": (2, 4), "text": words.shape}
        assert not e.streams["text"][words == 0].any()
        assert e.streams["text"][:, -1].all()
        for i in range(2):
            alone = whence.explain(model, {k: v[i : i + 1] for k, v in inputs.items()}, method, 1)
            assert all(torch.allclose(s[i : i + 1], alone.streams[k], atol=1e-12) for k, s in e.streams.items())
    e = whence.explain(model, inputs, "conservative-lrp", 1)
    assert float(e.ledger.imbalance.abs().max()) < 1e-10
    total = sum(s.sum(1) for s in e.streams.values())
    assert relative(total + sum(a.sum(1) for a in e.ledger.absorbed.values()), e.value) < EXACT


@pytest.mark.parametrize("name", WOVEN)
def test_relations_are_followed_where_tokens_become_others(name):
    """Rollout by hand: a token that is made of two is half of each, and the model's own token is nobody's."""
    make, inputs = WOVEN[name]
    model = make().double().eval()
    one = {k: v[:1] for k, v in inputs.items()}
    _, run = traced(model, one, "rollout", 1)
    first, second = (r.map()[0].mean(0) for r in run.trace.attentions)
    first, second = ((A + torch.eye(len(A))) / 2 for A in (first, second))
    merge, tokens = model.merge, len(second)
    start = 2 if name != "before" else 1
    made = torch.zeros(tokens, 4).double()
    for k in range(4):
        made[start + k // merge, k] = 1 / merge
    e = whence.explain(model, one, "rollout", 1)
    assert relative(e.streams["image"][0], (second @ made @ first)[-1]) < EXACT
    text = second[-1] if name != "before" else second[-1, 5:]
    assert relative(e.streams["text"][0], torch.where(one["input_ids"][0] == 0, 0.0, text)) < EXACT


class Shuffled(Woven):
    """Words and pictures are mixed before they are read."""

    def forward(self, pixels, input_ids):
        picture = self.project(self.first(self.patch(pixels).flatten(2).mT))
        mixed = torch.einsum("ts,bsd->btd", self.mix.weight, picture)
        return self.head(self.second(torch.cat([mixed, self.words(input_ids)], 1))[:, -1])


@pytest.mark.parametrize("method", ["rollout", "generic-attention", "attention", "transformer-attribution"])
def test_where_they_cannot_be_followed_it_is_said(method):
    model = Shuffled()
    model.mix = nn.Linear(4, 6)
    with pytest.raises(whence.ModelError, match="makes new tokens"):
        whence.explain(model.double().eval(), {**woven_inputs(), "input_ids": torch.ones(2, 3).long()}, method, 1)


def test_positions_that_join_on_the_way_are_in_the_books():
    inputs = woven_inputs()
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    e = whence.explain(Woven(positions=True).double().eval(), inputs, "conservative-lrp", 1)
    assert float(e.ledger.imbalance.abs().max()) < 1e-10
    assert "constant" in e.ledger.absorbed


class Towers(nn.Module):
    """A picture and a text of the same length, that meet at the end."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.words, self.head = nn.Conv2d(3, 8, 4, 4), nn.Embedding(20, 8), nn.Linear(8, 3)
        self.first, self.second = Block(), Block()

    def forward(self, pixels, input_ids, attention_mask):
        picture = self.first(self.patch(pixels).flatten(2).mT)
        text = self.second(self.words(input_ids)) * attention_mask[..., None]
        return self.head(picture.mean(1) + text.mean(1))


@pytest.mark.filterwarnings("ignore::whence.WhenceWarning")  # it reads its padding: its attention knows no mask
@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input"])
def test_padding_of_a_text_is_none_of_a_picture(method):
    inputs = {**woven_inputs(), "input_ids": torch.ones(2, 4).long()}
    inputs["attention_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    e = whence.explain(Towers().double().eval(), inputs, method, 1)
    assert e.streams["image"][1].all()
    assert e.streams["text"][1].bool().tolist() == [True, True, False, False]


class Conditioned(nn.Module):
    """A text shifts and scales the tokens of a picture, which lie first (CLIPSeg)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.words = nn.Conv2d(3, 8, 4, 4), nn.Embedding(20, 8)
        self.block, self.head = Block(), nn.Linear(8, 3)
        self.scale, self.shift = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, pixels, input_ids):
        text = self.words(input_ids).mean(1)
        picture = self.block(self.patch(pixels).flatten(2).mT).transpose(0, 1)
        return self.head((self.scale(text) * picture + self.shift(text)).mean(0))


@pytest.mark.parametrize("method", ["lrp", "transformer-attribution", "partial-lrp", "conservative-lrp"])
def test_a_sum_with_one_that_is_the_same_for_all_tokens(method):
    model, inputs = Conditioned().double().eval(), woven_inputs()
    e = whence.explain(model, inputs, method, 1)
    alone = whence.explain(model, {k: v[1:] for k, v in inputs.items()}, method, 1)
    assert relative(e.scores[1:], alone.scores) < 1e-7


class Probed(nn.Module):
    """Patches are drawn in an order of their own; a learned query reads them (ViLT, SigLIP)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.block, self.head = nn.Conv2d(3, 8, 4, 4), Block(), nn.Linear(8, 3)
        self.probe, self.pool = nn.Parameter(torch.randn(1, 1, 8)), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, pixels):
        x = self.patch(pixels).flatten(2).mT
        samples = torch.arange(len(x)).repeat_interleave(4)
        x = self.block(x[samples, torch.tensor([2, 0, 1, 3]).repeat(len(x))].view(len(x), 4, 8))
        return self.head(self.pool(self.probe.repeat(len(x), 1, 1), x, x)[0][:, 0])


@pytest.mark.parametrize("method", ["conservative-lrp", "rollout", "generic-attention", "attention"])
def test_samples_are_known_where_places_are_picked_and_queries_repeated(method):
    model, pixels = Probed().double().eval(), woven_inputs(3)["pixels"]
    with traced(model, {"pixels": pixels}, "rollout", 1)[1].trace as trace:
        assert all(r.map().shape[0] == 3 for r in trace.attentions)
    e = whence.explain(model, {"pixels": pixels}, method, 1)
    for i in range(3):
        alone = whence.explain(model, {"pixels": pixels[i : i + 1]}, method, 1)
        assert relative(e.scores[i : i + 1], alone.scores) < EXACT


class Steps(nn.Module):
    """Each step of a series is two tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.state, self.action, self.block, self.head = nn.Linear(3, 8), nn.Linear(2, 8), Block(), nn.Linear(8, 3)

    def forward(self, states, actions):
        both = torch.stack([self.state(states), self.action(actions)], 2)
        return self.head(self.block(both.flatten(1, 2))[:, -1])


def test_tokens_of_two_axes_are_no_picture_where_none_was_given():
    torch.manual_seed(1)
    inputs = {"states": torch.randn(2, 4, 3), "actions": torch.randn(2, 4, 2)}
    e = whence.explain(Steps().eval(), inputs, "conservative-lrp", 1)
    assert {k: s.shape for k, s in e.streams.items()} == {"input": (2, 8)}
    assert e.grid is None


class Own(torch.autograd.Function):
    """GELU with a backward of its own, as in BLOOM."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.tanh(x))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        t = torch.tanh(x)
        return gradient * 0.5 * (1 + t + x * (1 - t * t))


class Rounded(torch.autograd.Function):
    """Rounding that is differentiated as if it were none, as in quantised models."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 8) / 8

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Custom(Words):
    def mlp(self, x):
        return self.down(Own.apply(self.up(x)))


class Written(Words):
    def mlp(self, x):
        y = self.up(x)
        return self.down(y * 0.5 * (1 + torch.tanh(y)))


class Quantised(Words):
    def mlp(self, x):
        return self.down(Rounded.apply(self.up(x)))


@pytest.mark.parametrize("method", ["conservative-lrp", "gradient-x-input", "attn-lrp", "transformer-attribution"])
def test_a_custom_function_is_looked_into(method):
    explained_alike(Custom, Written, method)
    balanced(Custom)


def test_a_custom_function_that_rounds_keeps_its_own_backward():
    model = seeded(Quantised)
    e = whence.explain(model, ids(), "gradient-x-input", 1)
    x = model.embed(ids()).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.head(model.block(x)[:, 0])[:, 1].sum(), x)
    assert relative(e.scores, (x * gradient).sum(-1)) < EXACT
    assert "RoundedBackward" in e.coverage.plain
