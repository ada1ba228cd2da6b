"""Relevance through fused attention: what written-out attention gets, without its maps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as fused

import whence
from tests.support import tiny
from tests.support.checks import EXACT, relative
from tests.support.runs import traced
from whence.methods.transformer_attribution import relevance_rulebook
from whence.propagation.relevance_function import Phase
from whence.propagation.rules.gradient import show_map
from whence.propagation.rules.linear import EPS
from whence.propagation.rules.relevance import RelevanceRules
from whence.readout.map_walk import visit_relevance
from whence.runs.run import Carry
from whence.tracing import fused_attention as kernels
from whence.tracing.tracer import Trace

METHODS = ("transformer-attribution", "lrp")
MODELS = {"bert": tiny.bert, "llama": lambda: tiny.llama(classify=True), "gpt2": tiny.gpt2}
SHAPE = (2, 4, 5, 6)  # samples, heads, queries, keys


def padded():
    ids = tiny.ids(3)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masks(kind, seed):
    """Options of an attention of this shape."""
    if kind == "causal":
        return {"is_causal": True}
    if kind == "bool":
        seen = random(SHAPE[0], 1, *SHAPE[2:], seed=seed) > -0.5
        seen[..., 0] = True
        return {"attn_mask": seen}
    if kind == "blind":
        seen = torch.ones(SHAPE[2:], dtype=torch.bool)
        seen[1] = False
        return {"attn_mask": seen}
    if kind == "heads":
        seen = random(*SHAPE[1:], seed=seed) > -0.5
        seen[..., 0] = True
        return {"attn_mask": seen}
    if kind == "numbers":
        return {"attn_mask": random(SHAPE[1], *SHAPE[2:], seed=seed)}
    if kind == "row":
        return {"attn_mask": random(1, SHAPE[-1], seed=seed)}
    return {}


def propagated(function, inputs, R, maps, masked=False):
    """Relevance of the operands, and the map's, as a traced model has them."""
    book = relevance_rulebook(RelevanceRules(Phase(), EPS))
    book.phase.masked = masked
    with Trace(book.rules, len(inputs[0]), maps, book.fan_out) as trace:
        out = function(*(trace.input(str(i), x) for i, x in enumerate(inputs)))
    book.phase.relevance = True
    record, seen = trace.attentions[0], []
    assert (record.probabilities is None) == (not maps)
    if maps:
        record.probabilities.register_hook(lambda found: seen.append(((), found)))
    else:
        record.shown.witness = lambda *found: seen.append(found)
    return torch.autograd.grad(out, [s.tensor for s in trace.sources], R), seen


@given(
    kind=st.sampled_from(["none", "causal", "bool", "blind", "heads", "numbers", "row"]),
    scale=st.sampled_from([None, 0.3]),
    kept=st.sampled_from([1, 2, 4]),
    masked=st.booleans(),
    seed=st.integers(0, 99),
)
def test_operands_and_map_get_what_they_get_written_out(kind, scale, kept, masked, seed):
    inputs = [random(2, heads, n, 3, seed=seed + i) for i, (heads, n) in enumerate([(4, 5), (kept, 6), (kept, 6)])]
    R, options = random(2, 4, 5, 3, seed=seed + 3), masks(kind, seed + 4)

    def attention(q, k, v):
        return fused(q, k, v, scale=scale, enable_gqa=kept == 2, **options)  # one for all heads is spread by itself

    (ours, seen), (steps, (known,)) = (propagated(attention, inputs, R, maps, masked) for maps in (False, True))
    for mine, other in zip(ours, steps, strict=True):
        assert relative(mine, other) < EXACT
    assert relative(seen[0][1], known[1]) < EXACT


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "blind", "heads"])
@pytest.mark.parametrize("entries", [1, 40, 100])
def test_pieces_are_parts_of_the_whole(entries, kind, monkeypatch):
    inputs = [random(2, 4, n, 3, seed=i) for i, n in enumerate((5, 6, 6))]
    R, options = random(2, 4, 5, 3, seed=3), masks(kind, 4)
    whole, ((_, known),) = propagated(lambda *x: fused(*x, **options), inputs, R, maps=False)
    monkeypatch.setattr(kernels, "ENTRIES", entries)
    parts, seen = propagated(lambda *x: fused(*x, **options), inputs, R, maps=False)
    assert len(seen) == {1: 8, 40: 8, 100: 4}[entries]
    for piece, relevance in seen:
        torch.testing.assert_close(relevance, known[piece], rtol=EXACT, atol=EXACT)
    for mine, other in zip(parts, whole, strict=True):
        assert relative(mine, other) < EXACT


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "blind", "heads", "numbers"])
def test_gradients_of_pieces_are_those_of_the_whole(kind, monkeypatch):
    inputs = [random(2, 4, n, 3, seed=i) for i, n in enumerate((5, 6, 6))]
    G, options = random(2, 4, 5, 3, seed=3), masks(kind, 4)

    def gradients():
        with Trace({"attention": show_map}, batch=2) as trace:
            out = fused(*(trace.input(str(i), x) for i, x in enumerate(inputs)), **options)
        seen = []
        trace.attentions[0].shown.visit = lambda piece, *found: seen.append((piece, *found))
        return torch.autograd.grad(out, [s.tensor for s in trace.sources], G), seen

    whole, ((_, A, gradient),) = gradients()
    monkeypatch.setattr(kernels, "ENTRIES", 40)
    parts, seen = gradients()
    assert len(seen) == 8
    for piece, *found in seen:
        torch.testing.assert_close(found[0], A[piece], rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(found[1], gradient[piece], rtol=EXACT, atol=EXACT)
    for mine, other in zip(parts, whole, strict=True):
        assert relative(mine, other) < EXACT


@pytest.mark.parametrize("method", ["transformer-attribution", "generic-attention", "grad-cam", "lrp"])
@pytest.mark.parametrize("make", [tiny.bert, tiny.llama])
def test_explanations_in_pieces_are_those_of_the_whole(make, method, monkeypatch):
    model, inputs = make().double(), {"input_ids": tiny.ids(3)}
    whole = whence.explain(model, inputs, method, 1)
    monkeypatch.setattr(kernels, "ENTRIES", 50)  # a head of a sample is 49
    pieces = whence.explain(model, inputs, method, 1)
    assert relative(pieces.scores, whole.scores) < EXACT
    if whole.heads is not None:
        assert relative(pieces.heads, whole.heads) < EXACT


def test_operands_by_name_in_any_order():
    inputs = [random(2, 4, n, 3, seed=i) for i, n in enumerate((5, 6, 6))]
    R = random(2, 4, 5, 3, seed=3)
    found, _ = propagated(lambda q, k, v: fused(value=v, key=k, query=q), inputs, R, maps=False)
    known, _ = propagated(fused, inputs, R, maps=False)
    for mine, other in zip(found, known, strict=True):
        assert relative(mine, other) == 0


def test_tokens_that_look_with_what_they_are_looked_at_are_written_out():
    """One tensor in two roles gets the relevance of both, as a tensor does that is read twice."""
    x = random(2, 4, 5, 3, seed=0)
    book = relevance_rulebook(RelevanceRules(Phase(), EPS))
    with Trace(book.rules, 2, book.maps, book.fan_out) as trace:
        given = trace.input("x", x)
        fused(given, given, given * 2)
    assert trace.attentions[0].probabilities is not None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_models_are_explained_as_with_maps_written_out(method, name, monkeypatch):
    model, inputs = MODELS[name]().double(), padded() if name == "bert" else {"input_ids": tiny.ids(3)}
    fused_one = whence.explain(model, inputs, method, 1)
    monkeypatch.setattr(
        "whence.propagation.rules.fused_attention.len", lambda _: 0, raising=False
    )  # no attention is taken
    written = whence.explain(model, inputs, method, 1)
    assert "softmax" not in fused_one.coverage.seen
    assert "softmax" in written.coverage.seen
    assert relative(fused_one.scores, written.scores) < EXACT
    assert relative(fused_one.layers, written.layers) < EXACT
    assert relative(fused_one.heads, written.heads) < EXACT
    torch.testing.assert_close(fused_one.ledger.imbalance, written.ledger.imbalance, rtol=0, atol=EXACT)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gradient_and_relevance_of_every_map_are_seen_on_the_way(implementation):
    model = tiny.bert(3, implementation=implementation).double()
    _, run = traced(model, {"input_ids": tiny.ids(2)}, "transformer-attribution", 1)
    order, found = [], {}

    def witness(i, piece, gradient, relevance):
        order.append(i)
        found[i] = gradient, relevance

    (arrived,) = visit_relevance(run, witness, [run.boundaries[0].tensor], keep=True)
    assert order == [2, 1, 0]
    assert arrived.abs().sum() > 0
    records = run.trace.attentions
    for i, record in enumerate(records):
        if record.shown is not None:
            (made,) = run.backward([record.output], keep=True)
            known = record.arrange(record.shown.gradient(made))
        else:
            known = record.arrange(run.backward([record.probabilities], keep=True)[0])
        assert relative(found[i][0], known) < EXACT
    again = len(order)
    run.backward([run.boundaries[0].tensor], carry=Carry.RELEVANCE)
    assert len(order) == again  # nobody looks any more


def test_no_map_is_kept():
    """Between forward and backward nothing of the size of a map is alive, where written-out attention has several."""
    model = tiny.bert(2)
    tokens = 37  # of no other size
    inputs = {"input_ids": torch.randint(3, tiny.VOCABULARY, (1, tokens))}
    sizes = []

    def pack(tensor):
        sizes.append(tensor.shape[-2:])
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        _, run = traced(model, inputs, "transformer-attribution", 1)
    assert (tokens, tokens) not in sizes
    assert all(r.probabilities is None for r in run.trace.attentions)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_the_full_one(dtype):
    """Of operands without cancellation, which no half precision survives."""
    halves = [random(2, 4, n, 3, seed=i).abs().to(dtype) for i, n in enumerate((5, 6, 6))]
    R = random(2, 4, 5, 3, seed=3).abs().to(dtype)
    found, _ = propagated(fused, halves, R, maps=False)
    known, _ = propagated(fused, [t.double() for t in halves], R.double(), maps=False)
    for mine, other in zip(found, known, strict=True):
        assert mine.dtype == dtype
        assert relative(mine.double(), other) < 4 * torch.finfo(dtype).eps
