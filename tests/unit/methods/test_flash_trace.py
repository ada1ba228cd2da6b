"""FlashTrace: a second way to its numbers, and what must always hold. Published numbers: test_golden_flashtrace.py."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.runs import traced
from tests.support.snapshot import snapshot
from whence.methods import flash_trace as module
from whence.methods.flash_trace import proximity
from whence.methods.registry import create
from whence.readout.head_routes import routes
from whence.runs.forward import forwarded
from whence.runs.model_inputs import prepare
from whence.tracing import fused_attention

METHOD = "flash-trace"
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip


def gemma(implementation="sdpa", seed=0):
    """Norms behind the output projection, and heads of another width than the stream has."""
    torch.manual_seed(seed)
    more = {"num_key_value_heads": 2, "head_dim": 6, "sliding_window": 4, "attn_implementation": implementation}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **more)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight"):
                p.normal_(0.0, 0.5)
    return model


def biased(model, seed=0):
    """Biases that are not zero, as HuggingFace makes them."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_()
    return model


# -- a second way ----------------------------------------------------------------------------------------------------


def seen(model, modules, **inputs):
    """What some modules were given and returned, in order, and the attention maps of a plain forward."""
    found = {name: [] for name in modules}
    hooks = [
        m.register_forward_hook(lambda _, x, out, name=name: found[name].append((x[0][0].detach(), out[0].detach())))
        for name, chosen in modules.items()
        for m in chosen
    ]
    maps = model(**inputs, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    return found, [A[0].detach() for A in maps]


def llama_parts(model, ids):
    """Of each layer: the stream before and behind, the map, values [N, H, d] and projections [H, d, D]."""
    layers = model.model.layers
    found, maps = seen(
        model,
        {"in": [x.input_layernorm for x in layers], "mid": [x.post_attention_layernorm for x in layers]},
        input_ids=ids,
    )
    heads = len(maps[0])
    for layer, A, (x, n), (mid, _) in zip(layers, maps, found["in"], found["mid"], strict=True):
        v = (n @ layer.self_attn.v_proj.weight.T).unflatten(-1, (heads // 2, -1)).repeat_interleave(2, 1)
        yield x, mid, A, v.detach(), layer.self_attn.o_proj.weight.T.detach().unflatten(0, (heads, -1))


def gpt2_parts(model, ids):
    layers = model.transformer.h
    found, maps = seen(model, {"in": [x.ln_1 for x in layers], "mid": [x.ln_2 for x in layers]}, input_ids=ids)
    heads = len(maps[0])
    for layer, A, (x, n), (mid, _) in zip(layers, maps, found["in"], found["mid"], strict=True):
        W = layer.attn.c_attn.weight[:, -x.shape[-1] :]
        v = ((n - layer.ln_1.bias) @ W).unflatten(-1, (heads, -1))
        yield x, mid, A, v.detach(), layer.attn.c_proj.weight.detach().unflatten(0, (heads, -1))


def near(a, y):
    return max(0.0, float(y.abs().sum() - (y - a).abs().sum()))


def flow(parts, weights):
    """The shares of all tokens, by loops over layers, tokens and heads, as the definition is written."""
    total = torch.zeros(len(weights), dtype=torch.float64)
    weights = [w / sum(weights) for w in weights]
    for x, mid, A, v, W in parts:
        y = sum(w * row for w, row in zip(weights, mid, strict=True))
        r = sum(w * row for w, row in zip(weights, x, strict=True))
        e = torch.zeros_like(total)
        for j in range(len(e)):
            for h in range(len(A)):
                looked = sum(w * A[h, i, j] for i, w in enumerate(weights))
                e[j] += near(looked * (v[j, h] @ W[h]), y)
        total += e / (e.sum() + near(r, y) + 1e-12)
    return total


def looped(parts, span, prompt, hops, stopped):
    """FlashTrace of one sample, on the prompt."""
    parts, keep = list(parts), [float(not s) for s in stopped]
    inside = [float(span[0] <= i < span[1]) * k for i, k in enumerate(keep)]
    e = flow(parts, inside) * torch.tensor(keep)
    scores, ratio = e.clone(), 1.0
    for _ in range(hops):
        written = [float(e[i]) if prompt <= i < span[1] else 0.0 for i in range(len(e))]
        ratio *= sum(written) / float(e.sum())
        e = flow(parts, written) * torch.tensor(keep)
        scores += ratio * e
    return scores[:prompt]


PARTS = {"llama": (tiny.llama, llama_parts), "gpt2": (lambda **o: biased(tiny.gpt2(**o)), gpt2_parts)}


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("hops", [0, 1, 3])
@given(st.integers(0, 99), st.integers(1, 6), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=6)
def test_loops_over_tokens_and_heads_give_the_same(family, hops, seed, prompt, reasoning, outputs):
    make, parts = PARTS[family]
    model = make(seed=seed, implementation="eager").double()
    ids = tiny.ids(1, prompt + reasoning + outputs + 1, seed)
    stop = ids[0, [0, -2]].unique().tolist()
    if all(int(i) in stop for i in ids[0, -1 - outputs : -1]):
        stop = []
    span = (prompt + reasoning, prompt + reasoning + outputs)
    e = whence.explain(model, {"input_ids": ids}, METHOD, span=span, prompt=prompt, hops=hops, stop=stop)
    expected = looped(parts(model, ids), span, prompt, hops, [int(i) in stop for i in ids[0]])
    assert (e.scores[0, :prompt] - expected).abs().max() < EXACT
    assert not e.scores[0, prompt:].any()


@pytest.mark.parametrize("family", PARTS)
def test_loops_over_each_token_of_the_span_give_the_matrix(family):
    make, parts = PARTS[family]
    model, ids = make(implementation="eager").double(), tiny.ids(1, 9)
    found = list(parts(model, ids))
    rows = [flow(found, [float(i == at) for i in range(9)]) for at in (5, 6, 7)]
    e = whence.explain(model, {"input_ids": ids}, METHOD, span=(5, 8), variant="matrix")
    assert (e.scores[0, :5] - (sum(rows) / 3)[:5]).abs().max() < EXACT
    one = whence.explain(model, {"input_ids": ids}, METHOD, span=(5, 8), variant="span")
    assert (one.scores[0, :5] - flow(found, [float(5 <= i < 8) for i in range(9)])[:5]).abs().max() < EXACT
    assert relative(one.scores, e.scores) > 1e-2


# -- routes ----------------------------------------------------------------------------------------------------------


class Bare(nn.Module):
    """Attention that is added as it is, without an output projection, and scaled."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(60, 8), nn.Linear(8, 24), nn.Linear(8, 3)

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def branch(self, x):
        return 0.5 * self.attend(x)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        return self.head((x + self.branch(x))[:, -1])


class Scaled(Bare):
    """LayerScale behind the projection, which is a product with a matrix; a sequence that comes first."""

    def __init__(self):
        super().__init__()
        self.out, self.scale = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def branch(self, x):
        return ((self.attend(x).transpose(0, 1) @ self.out) * self.scale).transpose(0, 1)


MODELS = {
    "llama": tiny.llama, "gpt2": tiny.gpt2, "gemma": gemma, "bert": tiny.bert, "handwritten": tiny.Handwritten,
    "encoder": tiny.Encoder, "tokens first": lambda: tiny.Encoder(batch_first=False, norm_first=True),
    "eager": lambda: tiny.llama(implementation="eager"), "bare": Bare, "scaled": Scaled,
}  # fmt: skip


def made(name):
    torch.manual_seed(0)
    return biased(MODELS[name]()).double().eval()


@pytest.mark.parametrize("name", MODELS)
def test_routes_sum_to_what_attention_adds_but_for_the_bias_of_its_projection(name):
    """Which is the same at every token; where a norm multiplies rows behind the projection, before that."""
    model = made(name)
    chosen, run = traced(model, {"input_ids": tiny.ids()}, METHOD, biases=True)
    for route in routes(run, run.rulebook.recorder, METHOD):
        A = route.attention(slice(0, 7))(slice(0, 7)) * route.rows[:, None, :, None]
        brought = (chosen.values(route) @ route.weight) * route.features[:, None, None]
        added = (route.after() - route.before()) / route.rows[..., None]
        rest = added - (A @ brought).sum(1) / route.rows[..., None]
        assert (rest - rest[:, :1]).abs().max() < 1e-6 * added.abs().max()
        assert (route.rows.std() > 0.1) == (name == "gemma")
        assert (route.features.std() > 0.01) == (name in ("gemma", "scaled"))


@pytest.mark.parametrize("name", ["gpt2", "bert", "encoder", "handwritten", "bare"])
def test_biases_count_only_if_they_are_to(name):
    """What is left out is the same at every token: what values are of a stream that is zero."""
    model = made(name)
    chosen, run = traced(model, {"input_ids": tiny.ids()}, METHOD)
    found = routes(run, run.rulebook.recorder, METHOD)
    without = [chosen.values(route) for route in found]
    chosen.biases = True
    for route, v in zip(found, without, strict=True):
        bias = chosen.values(route) - v
        assert bias.abs().max() > 0.1
        assert relative(bias, bias[:, :, :1].expand_as(bias)) < 1e-9


@pytest.mark.parametrize("name", MODELS)
@given(start=st.integers(0, 6), count=st.integers(1, 7))
@settings(max_examples=5)
def test_rows_of_a_map_are_those_of_the_whole_map(name, start, count):
    _, run = traced(made(name), {"input_ids": tiny.ids()}, METHOD)
    for route in routes(run, run.rulebook.recorder, METHOD):
        rows = slice(start, min(7, start + count))
        some = route.attention(rows)
        pieces = torch.cat([some(slice(i, i + 2)) for i in range(0, rows.stop - rows.start, 2)], 2)
        assert relative(pieces, route.record.map()[:, :, rows]) < 1e-12


def test_a_block_that_adds_all_at_once_is_compared_with_all_of_it():
    torch.manual_seed(0)
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, use_parallel_residual=True)).double().eval()
    _, run = traced(model, {"input_ids": tiny.ids()}, METHOD)
    (first, second) = routes(run, run.rulebook.recorder, METHOD)
    assert relative(first.after(), second.before()) < 1e-12


# -- what must always hold -------------------------------------------------------------------------------------------

VARIANTS = [{"hops": 0}, {"hops": 2}, {"variant": "span"}, {"variant": "matrix"}, {"hops": 1, "biases": True}]
variants = pytest.mark.parametrize("options", VARIANTS, ids=str)
decoders = pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2, gemma])


@variants
@decoders
@given(seed=st.integers(0, 99), n=st.integers(3, 9), data=st.data())
@settings(max_examples=5)
def test_scores_are_shares_of_the_prompt(make, options, seed, n, data):
    """None is negative, those of a layer do not exceed 1 for each hop, and layers and heads sum to them."""
    end = data.draw(st.integers(2, n))
    start = data.draw(st.integers(1, end - 1))
    prompt = data.draw(st.integers(1, start))
    e = whence.explain(
        make(seed=seed).double(), tiny.ids(2, n, seed), METHOD, span=(start, end), prompt=prompt, **options
    )
    assert (e.scores >= 0).all()
    assert not e.scores[:, prompt:].any()
    assert e.layers.sum(-1).max() <= 1 + options.get("hops", 0)
    assert relative(e.layers.sum(1), e.scores) < 1e-12
    assert relative(e.heads.sum(-1), e.layers.sum(-1)) < 1e-12


@variants
@pytest.mark.parametrize("left", [True, False])
@decoders
@given(seed=st.integers(0, 99), lengths=st.lists(st.integers(4, 9), min_size=2, max_size=4))
@settings(max_examples=3)
def test_a_padded_batch_is_its_samples_one_by_one(make, left, options, seed, lengths):
    """Positions are counted without padding, and each sample has a span of its own."""
    model, batch = make(seed=seed).double(), tiny.padded(lengths, left, seed)
    spans, prompts = [(n - 2, n) for n in lengths], [n - 3 for n in lengths]
    e = whence.explain(model, batch, METHOD, span=spans, prompt=prompts, **options)
    for i, n in enumerate(lengths):
        real = slice(max(lengths) - n, None) if left else slice(n)
        alone = {k: v[i : i + 1, real] for k, v in batch.items()}
        one = whence.explain(model, alone, METHOD, span=spans[i], prompt=prompts[i], **options)
        assert relative(e.scores[i, real], one.scores[0]) < 1e-6  # Gemma's norms are computed in float32
        assert relative(e.heads[i], one.heads[0]) < 1e-6
        assert not e.scores[i][batch["attention_mask"][i] == 0].any()


@given(seed=st.integers(0, 99), hops=st.integers(0, 2), scale=st.floats(1e-3, 1e3))
@settings(max_examples=8)
def test_only_the_proportions_of_weights_matter(seed, hops, scale):
    chosen, run = traced(tiny.llama(seed=seed).double(), tiny.ids(2, 8, seed), METHOD, span=(4, 8), hops=hops)
    weights = torch.rand(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for route in routes(run, run.rulebook.recorder, METHOD):
        one, other = (chosen.layer(route, w, slice(4, 8)) for w in (weights, scale * weights))
        assert relative(one, other) < 1e-9


@pytest.mark.parametrize("stop", [(7,), (7, 9)])
def test_no_hops_are_the_span_without_stop_tokens(stop):
    model, ids = tiny.llama().double(), tiny.ids(1, 9)
    ids[0, [1, 3]] = torch.tensor([7, 9])
    ids[0, 7:] = torch.tensor([7, 20])
    whole = whence.explain(model, ids, METHOD, span=(5, 8), hops=0, stop=stop)
    short = whence.explain(model, ids, METHOD, span=(5, 7), prompt=5, variant="span")
    kept = torch.tensor([float(int(i) not in stop) for i in ids[0]])
    assert relative(whole.scores, short.scores * kept) < 1e-12
    assert short.scores[0, 1] > 0
    plain = whence.explain(model, ids, METHOD, span=(5, 8), hops=0)
    assert torch.equal(plain.scores, whence.explain(model, ids, METHOD, span=(5, 8), variant="span").scores)


def test_hops_count_what_the_reasoning_brought():
    """Without reasoning there is less to trace on; with none left to trace, another hop adds nothing."""
    model, ids = tiny.llama().double(), tiny.ids(1, 9)
    scores = [
        whence.explain(model, ids, METHOD, span=(7, 9), prompt=4, hops=hops).scores[0, :4].sum() for hops in range(5)
    ]
    steps = [float(b - a) for a, b in itertools.pairwise(scores)]
    assert all(step > 0 for step in steps)
    assert steps == sorted(steps, reverse=True)
    other = whence.explain(model, ids, METHOD, span=(7, 9), hops=1)  # all before the span is the prompt
    assert other.scores[0, 4:7].min() > 0


@decoders
def test_a_span_of_one_is_the_token_by_itself(make):
    model, ids = make().double(), tiny.ids(2, 8)
    one, other = (whence.explain(model, ids, METHOD, span=(6, 7), variant=v) for v in ("span", "matrix"))
    assert relative(one.scores, other.scores) < 1e-12


@decoders
def test_without_a_span_the_target_says_which_rows_are_read(make):
    model, ids = make().double(), tiny.ids(2, 8)
    e = whence.explain(model, ids, METHOD, target=whence.At([4, 6], 3))
    for i, at in enumerate((4, 6)):
        chosen, run = traced(model, ids[i : i + 1], METHOD, span=(at, at + 1))
        assert relative(e.scores[i], chosen.trace(run)[1][0].tokens()[0]) < 1e-9
        assert not e.scores[i, at + 1 :].any()
    assert relative(e.scores, whence.explain(model, ids, METHOD, target=whence.At([4, 6], 5)).scores) < 1e-12


def test_the_target_does_not_matter_to_a_span():
    model, ids = tiny.llama().double(), tiny.ids(2, 8)
    first, second = whence.explain(model, ids, METHOD, whence.every([3, whence.At(2, 5)]), span=(5, 8))
    assert torch.equal(first.scores, second.scores)
    assert torch.equal(whence.explain(model, ids, METHOD, span=[5, 8], prompt=[5, 5]).scores, first.scores)


@pytest.mark.parametrize("make", [tiny.gpt2, gemma])
def test_eager_attention_is_fused_attention(make):
    one, other = (
        whence.explain(make(implementation=kind).double(), tiny.padded([8, 6]), METHOD, span=(4, 6))
        for kind in ("eager", "sdpa")
    )
    assert relative(one.scores, other.scores) < 1e-5  # some eager softmax is computed in float32


def test_checkpoints_change_no_bit():
    model, ids = gemma(), tiny.ids(2, 8)
    one, other = (whence.explain(model, ids, METHOD, span=(5, 8), checkpoints=k) for k in (1, 3))
    assert torch.equal(one.scores, other.scores)
    chosen = create(METHOD, {"span": (5, 8)})
    with forwarded(model, *prepare(model, ids), chosen, [None], checkpoints=3) as (run,):
        assert torch.equal(chosen.read(run).scores, one.scores)
    watch = run.rulebook.recorder
    assert (len(watch.sums), len(watch.projections)) == (4, 2)  # not those of the forwards that were run again


@variants
def test_the_model_is_left_as_found(options):
    model = biased(tiny.gpt2()).train()
    before, ids = snapshot(model), tiny.ids(2, 8)
    whence.explain(model, ids, METHOD, span=(5, 8), **options)
    assert snapshot(model) == before
    assert not ids.__dict__


def test_an_explanation_of_a_span_comes_back_equal(tmp_path):
    e = whence.explain(tiny.llama(), tiny.ids(2, 8), METHOD, span=((5, 8), (4, 6)), stop=(7, 9))
    e.save(tmp_path / "e.json")
    assert whence.load(tmp_path / "e.json") == e


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 100, 1000])
@variants
def test_pieces_change_nothing(options, piece, monkeypatch):
    model, batch = tiny.llama().double(), tiny.padded([8, 7])
    whole = whence.explain(model, batch, METHOD, span=(4, 7), **options)
    monkeypatch.setattr(module, "CHUNK", piece)
    assert relative(whence.explain(model, batch, METHOD, span=(4, 7), **options).scores, whole.scores) < 1e-12


def test_of_a_fused_attention_only_a_piece_of_the_spans_rows_is_made(monkeypatch):
    made, original = [], fused_attention.probabilities

    def probabilities(*args):
        made.append(original(*args))
        return made[-1]

    monkeypatch.setattr("whence.tracing.fused_attention.probabilities", probabilities)
    monkeypatch.setattr(module, "CHUNK", 2 * 4 * 12 * 3)  # three rows of two samples, four heads, twelve tokens
    whence.explain(tiny.llama(layers=3), tiny.ids(2, 12), METHOD, span=(7, 12), hops=1)
    assert [A.shape[-2] for A in made] == [3, 2] * 3 * 2


def test_of_all_sums_only_those_of_the_stream_are_kept():
    _, run = traced(tiny.llama(layers=3), {"input_ids": tiny.ids()}, METHOD)
    sums = run.rulebook.recorder.sums
    assert [tuple(value.shape) for _, value in sums] == [(3, 7, 32)] * 6  # not those of rotations
    assert all(node.residual for node, _ in sums)


# -- proximity -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 999), st.sampled_from([0.0, 1e-6, 1.0, 3.0]))
def test_proximity_is_what_it_is_defined_to_be(seed, scale):
    a, y = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    a, y = scale * a, y.round()  # some features are zero
    defined = (y.abs().sum(-1) - (y - a).abs().sum(-1)).clamp(min=0)
    assert (proximity(a, y) - defined).abs().max() < 1e-12
    assert relative(proximity(y, y), y.abs().sum(-1)) < 1e-12


def test_a_small_part_keeps_its_digits():
    torch.manual_seed(0)
    y = torch.randn(512, dtype=torch.float64)
    a = 1e-6 * (y + torch.randn(512, dtype=torch.float64))
    exact = float(proximity(a, y))
    low, high = a.float(), y.float()
    assert abs(float(proximity(low, high)) / exact - 1) < 1e-5
    assert abs(float(high.abs().sum() - (high - low).abs().sum()) / exact - 1) > 1e-3


# -- refusals --------------------------------------------------------------------------------------------------------


def span_refused(error, match, model, inputs=None, **options):
    with pytest.raises(error, match=match):
        whence.explain(model, tiny.ids(2, 8) if inputs is None else inputs, METHOD, **options)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("`variant` must be", {"variant": "ifr"}),
        ("`hops` must be 0 or more", {"hops": -1}),
        ("give `span`, too", {"prompt": 3}),
        ("`stop` goes with", {"span": (3, 5), "stop": [4], "variant": "span"}),
        ("stop.* takes .*not", {"span": (3, 5), "stop": 5}),
        ("stop.* takes .*not", {"span": (3, 5), "stop": [","]}),
        ("stop.* takes .*not", {"span": (3, 5), "stop": ",."}),
        ("`span` must be a pair", {"span": (3, 5, 7)}),
        ("`span` must be a pair", {"span": [(3, 5)]}),
        ("`span` must be a pair", {"span": (3.0, 5.0)}),
        ("`span` must be a pair", {"span": 4}),
        ("`prompt` must be a number", {"span": (3, 5), "prompt": [1, 2, 3]}),
        ("`prompt` must be a number", {"span": (3, 5), "prompt": (1.5, 2)}),
        ("Sample 0 has 8 tokens.*behind a prompt of 5", {"span": (3, 5), "prompt": 5}),
        ("Sample 1 has 8 tokens", {"span": [(3, 5), (7, 9)]}),
        ("Sample 0 has 8 tokens", {"span": (5, 5)}),
        ("0 < prompt <= start", {"span": (0, 5)}),
        ("has no option 'spans'", {"spans": (3, 5)}),
        (r"the ids \[60\]", {"span": (3, 5), "stop": [60]}),
        (r"the ids \[-1\]", {"span": (3, 5), "stop": [-1]}),
    ],
)
def test_options_that_make_no_sense_are_refused(match, options):
    span_refused(whence.MethodError, match, tiny.llama(), **options)


def test_what_each_block_did_is_not_known():
    span_refused(whence.MethodError, "explain without `inside`", tiny.llama(), span=(3, 5), inside=True)


def test_a_span_that_reaches_into_padding_is_refused():
    span_refused(whence.MethodError, "Sample 1 has 5 tokens", tiny.llama(), tiny.padded([8, 5]), span=(4, 6))


def test_stop_tokens_need_ids():
    model = tiny.llama()
    embedded = {"inputs_embeds": torch.randn(1, 6, 32)}
    span_refused(whence.MethodError, "Give `input_ids`", model, embedded, span=(3, 5), stop=[4])


class Gated(Bare):
    def branch(self, x):
        return torch.sigmoid(x) * self.attend(x)


class Centred(Scaled):
    def branch(self, x):
        return F.layer_norm(super().branch(x), (8,))


class Twice(Scaled):
    def branch(self, x):
        return torch.relu(super().branch(x))


class Inner(Scaled):
    def attend(self, x):
        return super().attend(x) * self.scale


class Straight(Bare):
    def forward(self, input_ids):
        return self.head(self.branch(self.embed(input_ids))[:, -1])


@pytest.mark.parametrize(
    ("match", "make"),
    [
        ("gets there in another way", Gated),
        ("gets there in another way", Inner),
        ("more than a scaling \\(a LayerNorm\\)", Centred),
        ("more than a scaling \\(gated\\)", Twice),
        ("0 residual sums were found around 1", Straight),
    ],
)
def test_a_model_whose_heads_cannot_be_followed_is_refused(match, make):
    span_refused(whence.ModelError, match, make(), target=0, span=(4, 6))


def test_an_encoder_decoder_is_refused():
    config = T5Config(
        vocab_size=60, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4, decoder_start_token_id=0, pad_token_id=0
    )
    inputs = {"input_ids": tiny.ids(1, 6), "decoder_input_ids": tiny.ids(1, 4)}
    span_refused(
        whence.ModelError, "between different sets of tokens", T5ForConditionalGeneration(config).eval(), inputs,
        target=lambda outputs: outputs.logits[:, -1, 3], span=(2, 4),
    )  # fmt: skip
