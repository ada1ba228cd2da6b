"""What was found on the families of the conformance matrix, each told again on a small model of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # as everywhere in torch code
from helpers import EXACT, relative, traced
from torch import nn

import whence

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
    assert record.axes[record.query] == record.axes[record.key] == run.tokens()
    assert run.tokens() in run.boundaries[0].node.axes


@pytest.mark.parametrize("first", [1, 3])
def test_tokens_are_the_same_when_a_stretch_of_them_was_rotated(first):
    class Rotated(Block):
        def attend(self, q, k, v):
            angle = torch.linspace(0, 1, q.shape[1] - first, dtype=q.dtype)[:, None]
            q, k = (torch.cat([t[:, :first], t[:, first:] * angle.cos()], 1) for t in (q, k))
            return F.scaled_dot_product_attention(q, k, v)

    model, x = seeded(lambda: Picture(Rotated())), picture()
    _, run = traced(model, x, "rollout", 1)
    record = run.trace.attentions[0]
    assert record.axes[record.query] == record.axes[record.key] == run.tokens()
    e = whence.explain(model, x, "rollout", 1)
    assert e.scores.shape == (2, 16)
    assert e.grid == (4, 4)


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
