"""Conservative propagation (Ali et al., ICML 2022) against the published code: case 04.

With gamma > 0 the published code changes the forward pass itself, logits included: its attention output layer uses the
gamma weights without rescaling. No option does that here; a rulebook composed below reproduces its arrays.
"""

import copy
import functools

import pytest
import torch

import whence
from tests.support.checks import EXACT, array, relative
from tests.support.goldens import float32_tolerance, full_golden, golden, load_attention_only_bert
from tests.support.runs import looked_at, traced
from whence.methods.conservative_lrp import ConservativeLRP
from whence.methods.registry import REGISTRY
from whence.propagation.rule import rule
from whence.tracing.tensor_info import info_of

CASE = "04_icml22_ali"
CLASSES = range(3)
PADDING = ("nopad", "pad")

# mode of the published code -> method and options here
MODES = {
    "none_GI": ("gradient-x-input", {}),
    "AH": ("conservative-lrp", {"norms": False}),
    "LN": ("conservative-lrp", {"heads": False}),
    "AH_LN": ("conservative-lrp", {}),
    "LN_meandetach": ("conservative-lrp", {"heads": False, "detach_mean": True}),
    "AH_LN_meandetach": ("conservative-lrp", {"detach_mean": True}),
}


def tokens(z):
    """The published model ignores its attention mask: padding, too, is attended to."""
    ids = torch.tensor(z["input_ids"])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@functools.cache
def without_biases():
    """All biases of linear layers 0; those of the embeddings' LayerNorm stay (they come before what is explained)."""
    model = copy.deepcopy(load_attention_only_bert())
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.bias.zero_()
    return model


# -- final maps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_relevance_is_the_published_one(attention, padding, mode, c):
    z = golden(CASE, padding)
    method, options = MODES[mode]
    e = whence.explain(load_attention_only_bert(attention), tokens(z), method, target=c, **options)
    assert relative(e.scores[0], z[f"cl{c}_{mode}__R"]) < EXACT
    assert abs(float(e.scores.sum()) - float(z[f"cl{c}_{mode}__sumR"])) < EXACT
    assert relative(e.logits, z["logits"]) < EXACT


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDING)
def test_float32_relevance_is_within_the_published_codes_own_noise(padding, mode, c):
    z, name = golden(CASE, padding), f"cl{c}_{mode}__R"
    method, options = MODES[mode]
    e = whence.explain(load_attention_only_bert(dtype=torch.float32), tokens(z), method, target=c, **options)
    assert relative(e.scores[0], z[name]) < float32_tolerance(CASE, padding, name)


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("padding", PADDING)
def test_their_gae_of_imdb_is_generic_attention(padding, c):
    z = golden(CASE, padding)
    scores = array(whence.explain(load_attention_only_bert(), tokens(z), "generic-attention", target=c).scores[0])
    assert relative(scores[1:], z[f"cl{c}_GAE_imdb_raw"][1:]) < EXACT
    scores[0] = 0  # they set [CLS] to 0 and scale to [0, 1]
    scaled = (scores - scores.min()) / (scores.max() - scores.min())
    assert relative(scaled, z[f"cl{c}_GAE_imdb"]) < EXACT


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("padding", PADDING)
def test_their_gae_of_sst_is_generic_attention_normalised_with_all_rows(padding, c):
    """They set R[0, 0], what [CLS] says of itself, to 0 before they sum the columns: entry 0 is less by that."""
    z = golden(CASE, padding)
    model, inputs = load_attention_only_bert(), tokens(z)
    e = whence.explain(model, inputs, "generic-attention", target=c, normalise=True, rows="all")
    assert relative(e.scores[0, 1:], z[f"cl{c}_GAE_sst"][1:]) < EXACT
    row = whence.explain(model, inputs, "generic-attention", target=c, normalise=True)
    expected = e.scores[0].clone()
    expected[0] -= row.scores[0, 0]
    assert relative(expected, z[f"cl{c}_GAE_sst"]) < EXACT


# -- conservation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("mode", MODES)
def test_relevance_without_biases_is_the_published_one(mode, c):
    z = golden(CASE, "nobias")
    method, options = MODES[mode]
    e = whence.explain(without_biases(), tokens(z), method, target=c, **options)
    assert relative(e.logits, z["logits"]) < EXACT
    assert relative(e.scores[0], z[f"cl{c}_{mode}__R"]) < EXACT
    assert abs(float(e.scores.sum()) - float(z[f"cl{c}_{mode}__sumR"])) < EXACT


@pytest.mark.parametrize("c", CLASSES)
def test_without_biases_every_block_passes_on_the_relevance_of_the_encoders_output(c):
    """It is not the logit: the tanh of the pooler is differentiated plainly."""
    z = golden(CASE, "nobias")
    e = whence.explain(without_biases(), tokens(z), "conservative-lrp", target=c)
    expected = float(z[f"cl{c}__R_at_encoder_output"])
    assert abs(float(e.scores.sum()) - expected) < EXACT * abs(expected)
    assert e.ledger.sums.shape == (1, 4)
    assert relative(e.ledger.sums[0], [expected] * 4) < EXACT
    assert relative(e.ledger.total, [z["logits"][0, c]]) < EXACT


@pytest.mark.parametrize("c", CLASSES)
def test_without_the_layernorm_rule_relevance_sums_to_nothing(c):
    """A LayerNorm's output does not change with the scale of its input, so gradient x input is 0 in sum before it."""
    z = golden(CASE, "nobias")
    e = whence.explain(without_biases(), tokens(z), "conservative-lrp", target=c, norms=False)
    assert abs(float(e.scores.sum())) < EXACT * float(e.scores.abs().max())


@pytest.mark.parametrize("change", [{"heads": False}, {"norms": False}, {"detach_mean": True}])
def test_the_comparison_sees_a_changed_rule(change):
    z = golden(CASE, "nopad")
    e = whence.explain(load_attention_only_bert(), tokens(z), "conservative-lrp", target=0, **change)
    assert relative(e.scores[0], z["cl0_AH_LN__R"]) > 1e-3


# -- inside the model: arrays of the shared directory --------------------------------------------------------------


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_and_its_gradient_in_every_block_are_the_published_ones(attention, padding, c):
    z = full_golden(CASE, padding)
    _, run = traced(load_attention_only_bert(attention), tokens(z), "generic-attention", c)
    found = looked_at(run)
    for i in range(3):
        assert relative(found[i][0][0], z["attn_probs"][i]) < EXACT
        assert relative(found[i][1][0], z[f"cl{c}_attn_grads"][i]) < EXACT
    assert list(found) == [2, 1, 0]


@pytest.mark.parametrize("padding", PADDING)
def test_relevance_is_read_at_the_output_of_the_embeddings(padding):
    z = full_golden(CASE, padding)
    _, run = traced(load_attention_only_bert(), tokens(z), "conservative-lrp", 0)
    assert relative(run.position("position"), z["embedding_output"]) < EXACT


# -- gamma > 0 -----------------------------------------------------------------------------------------------------

GAMMA = 0.01


@rule
def published_gamma(call):
    """Their linear layers in attention: ``w + gamma w+``, rescaled to the plain value but for the output layer."""
    x, w, b = call.args
    name = info_of(w).name
    if "attention" not in name:
        return call.run()
    changed = torch.nn.functional.linear(x, w + GAMMA * w.clamp(min=0), b + GAMMA * b.clamp(min=0))
    if "attention.output.dense" in name:
        return changed
    return changed * (call.run() / changed).detach()


class Gamma(ConservativeLRP):
    """LRP with their gamma layers."""

    def rulebook(self):
        return whence.Rulebook({**super().rulebook().rules, "linear": published_gamma})


@pytest.mark.parametrize("c", CLASSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDING)
def test_a_rulebook_that_changes_the_forward_as_they_do_gives_their_gamma_arrays(padding, mode, c, monkeypatch):
    monkeypatch.setitem(REGISTRY, "gamma", Gamma)
    z = full_golden(CASE, padding)
    options = {"heads": False, "norms": False} if mode == "none_GI" else MODES[mode][1]
    e = whence.explain(load_attention_only_bert(), tokens(z), "gamma", target=c, **options)
    assert relative(e.scores[0], z[f"cl{c}_{mode}_gamma0.01__R"]) < EXACT
    assert relative(e.logits, z[f"cl{c}_{mode}_gamma0.01__logits"]) < EXACT
    assert relative(e.logits, z["logits"]) > 1e-3
