"""Maps that are looked at one layer at a time, and values that are let go."""

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as fused

import whence
from tests.support import tiny
from tests.support.checks import relative
from tests.support.runs import looked_at, traced
from whence.propagation.rules.gradient import show_map
from whence.readout.map_walk import last_gradient, visit_gradients
from whence.tracing.fused_attention import attend
from whence.tracing.tracer import Trace

METHODS = ["attention", "rollout", "grad-cam", "generic-attention"]


def operands(seed, heads=2, kept=2, queries=4, keys=5):
    """Queries, keys and values with an axis of samples, in float64."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(heads, queries), (kept, keys), (kept, keys)]
    return [torch.randn(2, h, n, 3, generator=generator, dtype=torch.float64) for h, n in sizes]


@given(
    st.integers(0, 99),
    st.sampled_from(["none", "causal", "bool", "float", "own", "blind"]),
    st.sampled_from([None, 0.3]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_a_shown_attention_has_the_value_and_the_derivative_of_one_written_out(seed, mask, scale, kept, gqa):
    q, k, v = operands(seed, kept=kept)
    options = {"scale": scale, "enable_gqa": kept == 1 and gqa, "is_causal": mask == "causal"}
    shape = (2, 2, 4, 5)
    if mask == "bool":
        options["attn_mask"] = torch.rand(shape) > 0.3
        options["attn_mask"][..., 0] = True
    elif mask == "blind":
        options["attn_mask"] = torch.ones(shape, dtype=torch.bool)
        options["attn_mask"][0, :, 1] = False
    elif mask in ("float", "own"):
        options["attn_mask"] = torch.randn(4, 5, dtype=torch.float64)
    weights = torch.randn(2, 2, 4, 3, dtype=torch.float64)

    def gradients(run):
        with Trace({"attention": show_map}, batch=2) as trace:
            inputs = [trace.input(name, t) for name, t in zip("qkv", (q, k, v), strict=True)]
            given = dict(options)
            if mask == "own":
                given["attn_mask"] = trace.input("mask", options["attn_mask"])
            out = run(*inputs, **given)
        found = torch.autograd.grad(out, [s.tensor for s in trace.sources], weights)
        return out, found, trace

    ours, found, trace = gradients(fused)
    theirs, expected, _ = gradients(lambda *a, **o: attend(*a, **o))
    assert trace.attentions[0].shown is not None
    assert relative(ours.detach(), theirs.detach()) < 1e-12
    for a, b in zip(found, expected, strict=True):
        assert relative(a, b) < 1e-11


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_no_layer_is_in_memory_when_the_next_is_shown(attention):
    model = tiny.bert(implementation=attention, layers=4)
    _, run = traced(model, {"input_ids": tiny.ids()}, "generic-attention", 1)
    before, shown = [], []

    def visit(i, piece, A, gradient):
        assert all(ref() is None for ref in before)
        before[:] = [weakref.ref(A.untyped_storage()), weakref.ref(gradient.untyped_storage())]
        shown.append(i)

    visit_gradients(run, visit)
    assert shown == [3, 2, 1, 0]
    assert all(record.probabilities is None for record in run.trace.attentions)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["bert", "llama", "vit"])
def test_maps_are_those_of_a_model_that_writes_them_out(family, method):
    make = getattr(tiny, family)
    inputs = {"pixel_values": tiny.pixels()} if family == "vit" else {"input_ids": tiny.ids()}
    one, other = (whence.explain(make(implementation=kind), inputs, method, 1) for kind in ("sdpa", "eager"))
    assert relative(one.scores, other.scores) < 1e-4


def test_the_gradient_of_the_last_map_needs_no_walk():
    _, run = traced(tiny.bert().double(), {"input_ids": tiny.ids()}, "grad-cam", 1)
    found = looked_at(traced(tiny.bert().double(), {"input_ids": tiny.ids()}, "grad-cam", 1)[1])
    assert relative(last_gradient(run), found[max(found)][1]) < 1e-10


def test_several_targets_are_read_of_maps_that_are_kept():
    model, inputs = tiny.bert(implementation="eager"), {"input_ids": tiny.ids()}
    several = whence.explain(model, inputs, "generic-attention", target=whence.every([0, 1, 2]))
    for target, e in enumerate(several):
        assert relative(e.scores, whence.explain(model, inputs, "generic-attention", target).scores) < 1e-5


@pytest.mark.parametrize(("method", "held"), [("conservative-lrp", False), ("bi-attention", True)])
def test_values_that_an_input_level_method_does_not_read_are_let_go(method, held):
    """What each block's MLP adds; the last block's is kept, as it ends the stream."""
    model, made = tiny.bert(layers=4), []
    for layer in model.bert.encoder.layer:
        layer.output.dropout.register_forward_hook(lambda module, args, out: made.append(weakref.ref(out)))
    _, run = traced(model, {"input_ids": tiny.ids()}, method, 1)
    assert len(run.trace.residuals) == 8
    assert [ref() is not None for ref in made[:-1]] == [held] * 3
