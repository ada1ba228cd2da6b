"""Inside a network: heads, branches, pairs; heads that are switched off; tables of them."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import tiny
import torch
from transformers import T5Config, T5ForConditionalGeneration

import whence
from whence.demo import MODELS

METHODS = ("conservative-lrp", "attn-lrp", "gradient-x-input", "res-lrp")
EXACT = 1e-12


def bert(attention="sdpa"):
    """Three layers of four heads; biases are not nothing."""
    model = tiny.bert(layers=3, implementation=attention).double()
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.3)
    return model


def llama(attention="sdpa"):
    return tiny.llama(implementation=attention).double()


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


@pytest.mark.parametrize("make", [bert, llama])
def test_pairs_sum_over_their_rows_to_the_relevance_behind_each_attention(make):
    """Under conservative rules and without biases, from each layer to the next nothing is lost."""
    model = make()
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(p)
    e = whence.explain(model, tokens(), "conservative-lrp", target=1, inside=True)
    assert (e.pairs.sum((-2, -1)) - e.ledger.sums[:, :-1]).abs().max() < 1e-7  # norms' epsilons
    assert (e.pairs.sum(-2) - e.layers).abs().max() < 1e-7  # columns: what enters the block


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


def test_branches_are_gradient_x_value_of_what_attention_and_mlp_write():
    """By hand, at the outputs of both projections of each layer."""
    model, inputs = bert(), tokens()
    kept = {}
    for i, layer in enumerate(model.bert.encoder.layer):
        for kind, dense in enumerate((layer.attention.output.dense, layer.output.dense)):
            dense.register_forward_hook(lambda m, a, out, key=(i, kind): kept.update({key: out}))
    logits = model(**inputs).logits
    for out in kept.values():
        out.retain_grad()
    logits[:, 2].sum().backward()
    e = whence.explain(bert(), inputs, "gradient-x-input", target=2, inside=True)
    for (layer, kind), out in kept.items():
        assert (e.branches[:, layer, kind] - (out * out.grad).sum(-1)).abs().max() < EXACT


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


def test_several_targets_have_each_their_own():
    model, inputs = bert(), tokens()
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
    for method in ("lrp", "rollout", "attention", "grad-cam", "random", "integrated-gradients", "legrad"):
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


def test_heads_that_are_not_there_are_named():
    with pytest.raises(whence.InputError, match="no head 7"):
        whence.without(bert(), tokens(), heads=[(0, 7)])
    with pytest.raises(whence.InputError, match="no layer 3"):
        whence.without(bert(), tokens(), layers=[3])


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
    with pytest.raises(whence.InputError, match="0 to 2"):
        inside.table("pairs", layer=3)


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
