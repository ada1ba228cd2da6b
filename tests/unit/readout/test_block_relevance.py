"""Inside a network: heads, branches, pairs; heads that are switched off; tables of them."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LongT5Config,
    LongT5EncoderModel,
    PhiConfig,
    PhiForCausalLM,
    SwinConfig,
    SwinForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
)

import whence
from tests.support import tiny
from tests.support.runs import traced
from whence.models import MODELS
from whence.tracing.axes import fresh
from whence.tracing.tensor_info import node_of, on_gradient

METHODS = ("conservative-lrp", "attn-lrp", "gradient-x-input", "res-lrp", "libragrad")
EXACT = 1e-12
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "pad_token_id": 0,
    "initializer_range": 0.3,
}  # fmt: skip
MLP = {"intermediate_size": 24, "max_position_embeddings": 40}


def bert(attention="sdpa"):
    """Three layers of four heads; biases are not nothing."""
    model = tiny.bert(layers=3, implementation=attention).double()
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.3)
    return model


def llama(attention="sdpa"):
    return tiny.llama(implementation=attention).double()


def causal(model, config, **more):
    """Blocks in parallel; biases are not nothing."""
    torch.manual_seed(0)
    made = model(config(**SIZES, **more)).double().eval()
    for name, p in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.3)
    return made


def neox():
    """(MLP + attention) + trunk."""
    return causal(GPTNeoXForCausalLM, GPTNeoXConfig, **MLP)


def phi():
    """(attention + MLP) + trunk."""
    return causal(PhiForCausalLM, PhiConfig, **MLP)


def falcon():
    """Attention is added to what the MLP wrote, in place."""
    return causal(FalconForCausalLM, FalconConfig, bias=True, parallel_attn=True)


def cohere():
    """(trunk + attention) + MLP."""
    return causal(CohereForCausalLM, CohereConfig, num_key_value_heads=2, **MLP)


def parts(model):
    """Of each block: its attention's output projection, its MLP's, and what reads (or is) its first sum."""
    if hasattr(model, "bert"):
        return [
            (b.attention.output.dense, b.output.dense, b.attention.output.LayerNorm) for b in model.bert.encoder.layer
        ]
    if hasattr(model, "gpt_neox"):
        return [(b.attention.dense, b.mlp.dense_4h_to_h, b) for b in model.gpt_neox.layers]
    if hasattr(model, "transformer"):
        return [(b.self_attention.dense, b.mlp.dense_4h_to_h, b) for b in model.transformer.h]
    blocks = model.model.layers
    if hasattr(blocks[0], "post_attention_layernorm"):
        return [(b.self_attn.o_proj, b.mlp.down_proj, b.post_attention_layernorm) for b in blocks]
    return [
        (b.self_attn.dense, b.mlp.fc2, b) if hasattr(b.self_attn, "dense") else (b.self_attn.o_proj, b.mlp.down_proj, b)
        for b in blocks
    ]


def carried(model, inputs, target):
    """By hand, gradient x value: ``[blocks, attention | MLP | sum behind the attention]``, each ``[batch, tokens]``."""
    kept = {}

    def keep(key):
        def hook(module, args, out):
            kept[key] = out[0] if isinstance(out, tuple) else out
            kept[key].retain_grad()
            copy = kept[key].clone()  # which the model may overwrite
            return (copy, *out[1:]) if isinstance(out, tuple) else copy

        return hook

    def keep_read(key):
        def hook(module, args):
            kept[key] = args[0]
            args[0].retain_grad()

        return hook

    hooks = []
    for i, (attention, mlp, total) in enumerate(parts(model)):
        norm = "Norm" in type(total).__name__
        hooks += [attention.register_forward_hook(keep((i, 0))), mlp.register_forward_hook(keep((i, 1)))]
        hooks += [
            total.register_forward_pre_hook(keep_read((i, 2))) if norm else total.register_forward_hook(keep((i, 2)))
        ]
    logits = model(**inputs).logits
    (logits[:, target] if logits.dim() == 2 else logits[:, -1, target]).sum().backward()
    for hook in hooks:
        hook.remove()
    of = {key: (t * t.grad).sum(-1).detach() for key, t in kept.items()}
    return [[of[i, kind] for kind in range(3)] for i in range(len(parts(model)))]


def tokens(batch=2, length=7):
    torch.manual_seed(1)
    return {"input_ids": torch.randint(1, 50, (batch, length))}


def by_hand(model, inputs, target, layer, heads=4):
    """Gradient x value of each head of a BERT layer, read at the input of its output projection by hooks."""
    kept = {}
    projection = model.bert.encoder.layer[layer].attention.output.dense

    def keep(module, args):
        kept["x"] = args[0]
        args[0].retain_grad()

    handle = projection.register_forward_pre_hook(keep)
    model(**inputs).logits[:, target].sum().backward()
    handle.remove()
    x = kept["x"]
    return (x * x.grad).unflatten(-1, (heads, -1)).sum((1, 3)).detach()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_heads_carry_is_gradient_x_value_before_the_output_projection(attention):
    model, inputs = bert(attention), tokens()
    e = whence.explain(model, inputs, "gradient-x-input", target=2)
    for layer in range(3):
        assert (e.heads[:, layer] - by_hand(model, inputs, 2, layer)).abs().max() < EXACT


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_heads_and_the_projections_bias_sum_to_what_the_attention_wrote(method, attention):
    model, inputs = bert(attention), tokens()
    e = whence.explain(model, inputs, method, target=2, inside=True)
    wrote = e.branches[:, :, 0].sum(-1)
    assert (e.heads.sum(-1) - wrote).abs().max() > 1e-6  # biases are not nothing
    for layer in model.bert.encoder.layer:
        torch.nn.init.zeros_(layer.attention.output.dense.bias)
    e = whence.explain(model, inputs, method, target=2, inside=True)
    assert (e.heads.sum(-1) - e.branches[:, :, 0].sum(-1)).abs().max() < EXACT


@pytest.mark.parametrize("method", METHODS)
def test_what_is_inside_changes_nothing_outside(method):
    model, inputs = llama(), tokens()
    inside, plain = (whence.explain(model, inputs, method, target=1, inside=flag) for flag in (True, False))
    assert (inside.scores - plain.scores).abs().max() < EXACT
    assert (inside.heads - plain.heads).abs().max() < EXACT
    assert (inside.ledger.sums - plain.ledger.sums).abs().max() < EXACT
    assert plain.branches is None
    assert plain.pairs is None


PARALLEL = [neox, phi, falcon, cohere]


@pytest.mark.parametrize("method", ["conservative-lrp", "libragrad"])
@pytest.mark.parametrize("make", [bert, llama, *PARALLEL])
def test_pairs_sum_over_their_columns_to_what_enters_each_block(make, method):
    """Under conservative rules and without biases, from each layer to the next nothing is lost."""
    model = tiny.no_biases(make())
    e = whence.explain(model, tokens(), method, target=1, inside=True)
    scale = e.layers.abs().max()
    assert (e.pairs.sum((-2, -1)) - e.ledger.sums[:, :-1]).abs().max() < 1e-6 * scale  # norms' epsilons
    assert (e.pairs.sum(-2) - e.layers).abs().max() < 1e-6 * scale
    if make in PARALLEL:  # the sum behind the attention is what enters the next block
        assert (e.pairs[:, :-1].sum(-1) - e.layers[:, 1:]).abs().max() < 1e-6 * scale


@pytest.mark.parametrize("make", [bert, llama, *PARALLEL])
def test_pairs_sum_over_their_rows_to_the_relevance_behind_each_attention(make):
    """By hand, by plain gradients; only the output projection's bias belongs to no pair."""
    model, inputs = make(), tokens()
    for attention, _, _ in parts(model):
        if attention.bias is not None:
            torch.nn.init.zeros_(attention.bias)
    e = whence.explain(model, inputs, "gradient-x-input", target=2, inside=True)
    for layer, (_, _, total) in enumerate(carried(model, inputs, 2)):
        assert (e.pairs[:, layer].sum(-1) - total).abs().max() < EXACT * e.pairs.abs().max()


@pytest.mark.parametrize("make", [bert, llama, *PARALLEL])
def test_branches_are_gradient_x_value_of_what_attention_and_mlp_write(make):
    """By hand, at the outputs of both projections of each block."""
    model, inputs = make(), tokens()
    e = whence.explain(model, inputs, "gradient-x-input", target=2, inside=True)
    for layer, of in enumerate(carried(model, inputs, 2)):
        for kind in (0, 1):
            assert (e.branches[:, layer, kind] - of[kind]).abs().max() < EXACT * of[kind].abs().max()


SPELLINGS = {
    "at once": lambda x, a, m: x + (a + m),
    "attention first": lambda x, a, m: x + a + m,
    "MLP first": lambda x, a, m: x + m + a,
    "scaled": lambda x, a, m: 0.5 * (m + a) + x,
    "three": lambda x, a, m: x + m / 2 + (a + m / 3) + m / 6,
    "in place": lambda x, a, m: m.add_(a).add_(x),
    "trunk in place": lambda x, a, m: x.add_(a).add_(m),
}


class Parallel(nn.Module):
    """Blocks that add attention and MLP to the same trunk, spelled as people do."""

    def __init__(self, spelling):
        super().__init__()
        torch.manual_seed(0)
        self.add = SPELLINGS[spelling]
        self.embed = nn.Embedding(60, 16)
        self.norm = nn.LayerNorm(16, bias=False)
        self.attention = nn.ModuleList(nn.MultiheadAttention(16, 2, bias=False, batch_first=True) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(2))
        self.head = nn.Linear(16, 3, bias=False)

    def forward(self, input_ids):
        x = self.embed(input_ids).clone()
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            h = self.norm(x)
            x = self.add(x, attention(h, h, h)[0], mlp(h).relu())
        return self.head(self.norm(x)[:, 0])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_parallel_blocks_are_the_same_however_they_are_added(spelling):
    model = Parallel(spelling).double().eval()
    e = whence.explain(model, tokens(), "conservative-lrp", target=1, inside=True)
    scale = e.layers.abs().max()
    assert (e.pairs.sum(-2) - e.layers).abs().max() < 1e-3 * scale  # norms' epsilons: embeddings are small
    assert (e.pairs[:, 0].sum(-1) - e.layers[:, 1]).abs().max() < EXACT * scale
    assert (e.heads.sum(-1) - e.branches[:, :, 0].sum(-1)).abs().max() < EXACT * scale
    if spelling != "scaled":
        same = whence.explain(Parallel("at once").double().eval(), tokens(), "conservative-lrp", target=1, inside=True)
        assert (e.branches - same.branches).abs().max() < EXACT * scale
        assert (e.pairs - same.pairs).abs().max() < EXACT * scale


def test_pairs_off_the_diagonal_are_what_attention_moved():
    """By hand, from probabilities, values and the gradient of what they make."""
    model, inputs = bert("eager"), tokens()
    kept = {}
    for i, layer in enumerate(model.bert.encoder.layer):
        own = layer.attention.self
        own.value.register_forward_hook(lambda m, a, out, i=i: kept.update({("v", i): out}))
        own.register_forward_hook(lambda m, a, out, i=i: kept.update({("o", i): out}))
    logits = model(**inputs).logits
    for i in range(3):
        kept["o", i][0].retain_grad()
    logits[:, 2].sum().backward()
    e = whence.explain(bert("eager"), inputs, "gradient-x-input", target=2, inside=True)
    for i in range(3):
        out, A = kept["o", i]
        v, g = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (kept["v", i], out.grad))
        moved = (A * (g @ v.mT)).sum(1)
        off = ~torch.eye(7, dtype=torch.bool)
        assert (e.pairs[:, i] - moved)[:, off].abs().max() < EXACT


def test_a_decoder_draws_only_on_what_came_before():
    e = whence.explain(llama(), tokens(), "conservative-lrp", target=1, inside=True)
    assert e.pairs.triu(1).abs().max() == 0
    assert e.pairs.tril().abs().max() > 0


def test_padding_draws_on_nothing_and_changes_nothing():
    model, inputs = bert(), tokens(2, 7)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    padded = whence.explain(model, inputs | {"attention_mask": mask}, target=1, inside=True)
    alone = whence.explain(model, {"input_ids": inputs["input_ids"][1:, :5]}, target=1, inside=True)
    assert (padded.heads[1] - alone.heads[0]).abs().max() < EXACT
    assert (padded.pairs[1, :, :5, :5] - alone.pairs[0]).abs().max() < EXACT
    assert padded.pairs[1, :, 5:].abs().max() == padded.pairs[1, :, :, 5:].abs().max() == 0
    assert padded.branches[1, ..., 5:].abs().max() == 0


def test_branches_of_two_tokens_are_no_pairs():
    """Padding is a token that is not there, not a branch."""
    model, inputs = bert(), tokens(2, 3)["input_ids"]
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    three = whence.explain(model, {"input_ids": inputs, "attention_mask": mask}, target=1, inside=True)
    two = whence.explain(model, {"input_ids": inputs[:, :2], "attention_mask": mask[:, :2]}, target=1, inside=True)
    assert two.branches[1, :, 1, 0].abs().min() > 0
    assert (two.branches - three.branches[..., :2]).abs().max() < EXACT
    assert (two.pairs - three.pairs[..., :2, :2]).abs().max() < EXACT


@pytest.mark.parametrize("make", [bert, neox, cohere])
def test_several_targets_have_each_their_own(make):
    model, inputs = make(), tokens()
    together = whence.explain(model, inputs, target=whence.every([0, 2]), inside=True)
    for e, target in zip(together, (0, 2), strict=True):
        alone = whence.explain(model, inputs, target=target, inside=True)
        for name in ("heads", "branches", "pairs"):
            assert (getattr(e, name) - getattr(alone, name)).abs().max() < EXACT


def test_methods_of_maps_have_pairs_of_their_own():
    model, inputs = bert(), tokens()
    e = whence.explain(model, inputs, "generic-attention", target=2, inside=True)
    plain = whence.explain(model, inputs, "generic-attention", target=2)
    rows = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    for pairs in e.pairs.unbind(1):
        rows = rows + pairs @ rows
    assert (rows[:, 0] - plain.scores).abs().max() < EXACT
    assert (e.pairs.sum((-2, -1)) - plain.heads.sum(-1) / 4).abs().max() < EXACT
    assert whence.explain(model, inputs, "transformer-attribution", target=2, inside=True).pairs.shape == (2, 3, 7, 7)


def test_methods_that_cannot_say_what_happened_inside_say_so():
    for method in ("lrp", "pa-lrp", "saliency", "rollout", "attention", "grad-cam", "random", "legrad"):
        with pytest.raises(whence.MethodError, match="inside"):
            whence.explain(bert(), tokens(), method, target=1, inside=True)
    with pytest.raises(whence.MethodError, match="checkpoints"):
        whence.explain(bert(), tokens(), inside=True, checkpoints=2)
    model = T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    ).eval()
    inputs = tokens() | {"decoder_input_ids": torch.zeros(2, 1, dtype=torch.long)}
    with pytest.raises(whence.ModelError, match="several streams"):
        whence.explain(model, inputs, target=whence.At(0, 4), inside=True)


class Bare(nn.Module):
    """One attention, perhaps; nothing is added to what it reads."""

    def __init__(self, attends):
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True) if attends else None

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.head((x.relu() if self.attention is None else self.attention(x, x, x)[0]).mean(1))


@pytest.mark.parametrize("attends", [True, False])
def test_a_model_that_is_not_made_of_blocks_says_so(attends):
    with pytest.raises(whence.ModelError, match="not made of blocks"):
        whence.explain(Bare(attends).eval(), tokens(), target=1, inside=True)


# -- switched off ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_head_that_is_switched_off_writes_nothing(attention):
    """The same as zeros in its columns of the output projection."""
    model, inputs = bert(attention), tokens()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    off = whence.without(model, inputs, heads=[(1, 2)]).logits
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())
    assert not off.requires_grad
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight[:, 16:24] = 0
        assert (off - model(**inputs).logits).abs().max() < EXACT


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_layer_that_is_switched_off_and_nothing_switched_off(attention):
    model, inputs = llama(attention), tokens()
    with torch.no_grad():
        plain = model(**inputs).logits
        assert (whence.without(model, inputs).logits - plain).abs().max() < EXACT
        off = whence.without(model, inputs, layers=[0]).logits
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        assert (off - model(**inputs).logits).abs().max() < EXACT


def test_packed_heads_are_switched_off_too():
    model, inputs = tiny.gpt2().double(), tokens()
    off = whence.without(model, inputs, heads=[(0, 3)]).logits
    with torch.no_grad():
        model.transformer.h[0].attn.c_proj.weight[24:] = 0
        assert (off - model(**inputs).logits).abs().max() < EXACT


def swin(attention, heads=(2, 4)):
    """Windows of 2 x 2 patches, of which every second block's are shifted: 16 of them, then 4."""
    torch.manual_seed(0)
    config = SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=list(heads), window_size=2, num_labels=3,
        initializer_range=0.3, attn_implementation=attention,
    )  # fmt: skip
    return SwinForImageClassification(config).double().eval()


def pictures(batch):
    return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()}


def projections(model):
    return [block.attention.o_proj for stage in model.swin.encoder.layers for block in stage.blocks]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 0), (2, 3), (3, 2)])
def test_a_head_of_windows_is_switched_off_in_all_of_them(attention, batch, layer, head):
    model, inputs = swin(attention), pictures(batch)
    off = whence.without(model, inputs, heads=[(layer, head)]).logits
    with torch.no_grad():
        plain = model(**inputs).logits
        projections(model)[layer].weight[:, 4 * head : 4 * head + 4] = 0
        assert (off - model(**inputs).logits).abs().max() < EXACT < (off - plain).abs().max()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_heads_of_windows_are_counted_once(attention):
    model, inputs = swin(attention, (2, 2)), pictures(2)
    kept = {}

    def keep(i):
        def hook(module, args):
            kept[i] = args[0]
            args[0].retain_grad()

        return hook

    hooks = [p.register_forward_pre_hook(keep(i)) for i, p in enumerate(projections(model))]
    model(**inputs).logits[:, 1].sum().backward()
    for hook in hooks:
        hook.remove()
    e = whence.explain(model, inputs, "gradient-x-input", target=1)
    assert e.heads.shape == (2, 4, 2)
    for i, x in kept.items():
        expected = (x * x.grad).reshape(2, -1, 2, x.shape[-1] // 2).sum((1, 3))
        assert (e.heads[:, i] - expected).abs().max() < EXACT
    with pytest.raises(whence.InputError, match="no head 2: its heads are 0 to 1"):
        whence.without(model, inputs, heads=[(0, 2)])


def test_a_head_of_blocks_that_are_cut_behind_the_projection_is_switched_off_in_all_of_them():
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2, "local_radius": 3}
    model, inputs = LongT5EncoderModel(LongT5Config(**sizes)).double().eval(), tokens(2, 10)
    off = whence.without(model, inputs, heads=[(1, 0)]).last_hidden_state
    with torch.no_grad():
        model.encoder.block[1].layer[0].LocalSelfAttention.o.weight[:, :8] = 0
        assert (off - model(**inputs).last_hidden_state).abs().max() < EXACT


def test_heads_that_are_not_there_are_named():
    with pytest.raises(whence.InputError, match="no head 7"):
        whence.without(bert(), tokens(), heads=[(0, 7)])
    with pytest.raises(whence.InputError, match="no layer 3"):
        whence.without(bert(), tokens(), layers=[3])
    with pytest.raises(whence.ModelError, match="has no attention"):
        whence.without(Bare(attends=False), tokens(), layers=[0])


@pytest.mark.parametrize(
    ("match", "given"),
    [
        (r"pairs \(layer, head\).*not \[3\]", {"heads": [3]}),
        (r"pairs \(layer, head\).*not \(0, 1\)", {"heads": (0, 1)}),
        (r"pairs \(layer, head\).*not 3", {"heads": 3}),
        (r"pairs \(layer, head\)", {"heads": [("a", 1)]}),
        ("a list of numbers.*not 1", {"layers": 1}),
        ("a list of numbers.*not 'all'", {"layers": "all"}),
        ("The model is str", {"model": "bert-base-uncased"}),
    ],
)
def test_what_cannot_be_switched_off_is_named(match, given):
    with pytest.raises(whence.InputError, match=match):
        whence.without(**{"model": bert(), "inputs": tokens()} | given)


def test_numbers_of_tensors_and_arrays_are_numbers():
    model, inputs = bert(), tokens()
    plain = whence.without(model, inputs, heads=[(1, 2)], layers=[0]).logits
    for pairs, layers in ((torch.tensor([[1, 2]]), torch.tensor([0])), (np.array([[1, 2]]), np.array([0]))):
        assert torch.equal(whence.without(model, inputs, heads=pairs, layers=layers).logits, plain)


def test_without_the_heads_that_carried_it_a_prediction_changes_more():
    """Of the shipped sentiment model, on real sentences: the three strongest heads against the three weakest."""
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    texts = [
        "The acting is superb, but the story goes nowhere.", "A warm and funny film.", "I was bored to tears.",
        "One of the best films of the year.", "A dull, lifeless mess.", "Not bad at all.", "It never finds its rhythm.",
        "Charming from beginning to end.",
    ]  # fmt: skip
    change = {"strongest": 0.0, "weakest": 0.0}
    for text in texts:
        e, inputs = explainer(text), explainer.read(text).tensors
        order = e.heads[0].flatten().argsort(descending=True).tolist()
        places = [divmod(i, e.heads.shape[2]) for i in order]
        for name, chosen in (("strongest", places[:3]), ("weakest", places[-3:])):
            after = whence.without(explainer.model, inputs, heads=chosen).logits[0, int(e.target)]
            change[name] += float(e.value[0] - after) / len(texts)
    assert change["strongest"] > 0.3 + change["weakest"]


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tables_have_names_and_files(tmp_path, capsys):
    explainer = whence.Explainer.from_pretrained(MODELS / "sentiment")
    e = explainer("a gripping film", inside=True)
    heads = e.table("heads")
    assert heads.values.shape == (4, 4)
    assert np.allclose(heads.values, e.heads[0])
    assert e.table("layers").columns == ("[CLS]", "a", "gripping", "film", "[SEP]")
    assert e.table("branches").rows[:2] == ("0 attention", "0 rest")
    pairs = e.table("pairs", layer=-1)
    assert pairs.rows == pairs.columns == e.table("layers").columns
    assert "layer 3" in pairs.title
    row, column, value = heads.strongest(1)[0]
    assert abs(value) == heads.limit == abs(heads.values[heads.rows.index(row), heads.columns.index(column)])
    for ending in ("png", "svg", "pdf", "html", "csv"):
        assert heads.save(tmp_path / f"heads.{ending}").stat().st_size > 100
    with (tmp_path / "heads.csv").open() as file:
        read = list(csv.reader(file))
    assert read[0][1:] == list(heads.columns)
    assert np.array_equal(np.array([[float(v) for v in line[1:]] for line in read[1:]]), heads.values)
    heads.show()
    assert "layer 3" in capsys.readouterr().out
    assert "<svg" in heads._repr_html_()


def test_tables_that_are_not_there_say_why(tmp_path):
    e = whence.explain(bert(), tokens())
    with pytest.raises(whence.WhenceError, match="inside=True"):
        e.table("pairs", layer=0)
    with pytest.raises(whence.InputError, match="no table of 'tails'"):
        e.table("tails")
    with pytest.raises(whence.WhenceError, match="does not say what each head carried"):
        whence.explain(bert(), tokens(), "random").table("heads")
    with pytest.raises(whence.InputError, match=r"heads\.txt"):
        e.table("heads").save(tmp_path / "heads.txt")
    inside = whence.explain(bert(), tokens(), inside=True)
    for layer in (3, -4, None, "a", 0.5):
        with pytest.raises(whence.InputError, match=f"0 to 2: layer {layer!r} is none"):
            inside.table("pairs", layer=layer)


def test_names_from_the_user_cannot_act_in_a_table(tmp_path):
    table = whence.Table("<script>", np.ones((1, 1)), ("\x1b[31m<b>",), ("\u202e",))
    page = table.save(tmp_path / "t.html").read_text()
    assert "<b>" not in page.split("<main>")[1].replace("</b>", "")
    assert "&lt;b&gt;" in page
    assert "\u202e" not in page


def test_what_is_inside_is_kept_with_the_rest(tmp_path):
    e = whence.explain(bert(), tokens(), target=1, inside=True)
    for name in ("e.json", "e.safetensors"):
        assert whence.load(e.save(tmp_path / name)) == e
    one = e[1]
    assert torch.equal(one.pairs[0], e.pairs[1])
    assert torch.equal(one.branches[0], e.branches[1])
    assert (e - e).pairs is None


def test_at_a_constant_no_gradient_arrives():
    """As at an attention that no input reaches: the first one of a decoder's learned queries."""
    on_gradient(torch.ones(2), lambda _: pytest.fail("arrived")).remove()


def test_heads_that_cannot_be_told_apart_are_known_to_be_so_before_anything_passes():
    """Of targets that go back together, only the first sees what passes."""
    _, run = traced(tiny.bert(), {"input_ids": tiny.ids(2)}, "conservative-lrp", 1)
    run.watch_heads()
    assert run.heads().abs().sum() == 0  # nothing has passed
    node = node_of(run.trace.attentions[-1].output)
    node.axes = (*node.axes[:2], *(fresh(atom.size) for atom in node.axes[2]), *node.axes[3:])  # other tokens
    assert run.heads() is None
