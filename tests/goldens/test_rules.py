"""The rules alone against the published code: cases 00 (CVPR 2021) and 03f (ICCV 2021).

In case 00, ``ours`` are the rules of the method and ``orig`` those of its LRP baseline, where relevance doubles in
linear layers (and in ``conv2``). Left out of case 03f: the rules for two streams of tokens (``R_ti``,
``handle_residual``, ``mm``).
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.support.checks import EXACT, relative
from tests.support.goldens import float32_tolerance, golden
from whence.methods.registry import create
from whence.methods.transformer_attribution import relevance_rulebook
from whence.propagation.relevance_function import Phase
from whence.propagation.rules.linear import EPS, alpha_beta, safe_divide, z_box, z_plus
from whence.propagation.rules.relevance import RelevanceRules, normalise_shares
from whence.readout.rollup import all_rows, positive_mean, roll_up
from whence.tracing.tracer import Trace

RULES, UPDATES = "00_cvpr21_rules", "03f_gae_rules"


@pytest.fixture(params=["float64", "float32"])
def case(request):
    """The arrays as tensors of one type, and an assertion with the tolerance that goes with it."""
    dtype = getattr(torch, request.param)
    exact, z = golden(RULES), {n: torch.tensor(v) for n, v in golden(RULES, dtype=request.param).items()}

    def check(found, name, factor=1.0):
        tolerance = EXACT if dtype == torch.float64 else float32_tolerance(RULES, "", name)
        assert found.dtype == dtype
        assert relative(factor * found, exact[name]) < tolerance

    return z, check


def propagated(function, inputs, R, book=None):
    """Relevance of the inputs of one operation, as a traced model has it."""
    book = book or relevance_rulebook(RelevanceRules(Phase(), EPS))
    with Trace(book.rules, len(inputs[0]), book.maps, book.fan_out) as trace:
        out = function(*(trace.input(str(i), x) for i, x in enumerate(inputs)))
    book.phase.relevance = True
    return torch.autograd.grad(out, [s.tensor for s in trace.sources], R)


def baseline(eps=EPS):
    """The rulebook of the published LRP baseline."""
    return create("lrp", {"doubled": True, "eps": eps}).rulebook()


def patches(x, w, bias=None):
    return F.conv2d(x, w, bias, stride=w.shape[-1])


def everything(tensor):
    return tensor.sum()


def each_sample(tensor):
    return tensor.sum((1, 2), keepdim=True)


# -- case 00 -------------------------------------------------------------------------------------------------------


def test_safe_divide_is_the_published_table(case):
    z, _ = case
    a, b = z["safe_divide_a"], z["safe_divide_b"]
    there = b != -EPS  # see the next test
    found = safe_divide(a, b)[there].numpy()
    np.testing.assert_allclose(found, z["safe_divide_out"][there].numpy(), rtol=4 * torch.finfo(a.dtype).eps, atol=0)
    assert float(safe_divide(a, torch.zeros_like(b)).abs().max()) == 0


def test_safe_divide_is_finite_where_the_stabiliser_cancels_the_denominator(case):
    z, _ = case
    there = z["safe_divide_b"] == -EPS
    assert relative(safe_divide(z["safe_divide_a"], z["safe_divide_b"])[there], z["safe_divide_out"][there]) < 1e-6


def test_z_plus_is_the_published_linear_rule(case):
    z, check = case
    check(z_plus(F.linear, z["linear_x"], z["linear_w"], z["linear_R"]), "linear_out_ours_alpha1")


def test_a_traced_linear_layer_follows_z_plus_and_its_bias_takes_no_part(case):
    z, check = case
    (found,) = propagated(lambda x: F.linear(x, z["linear_w"], z["linear_b"]), [z["linear_x"]], z["linear_R"])
    check(found, "linear_out_ours_alpha1")


def test_alpha_beta_is_the_published_linear_rule(case):
    z, check = case
    check(alpha_beta(F.linear, z["linear_x"], z["linear_w"], z["linear_R"], alpha=2), "linear_out_ours_alpha2")


def contributions(z, samples=slice(None)):
    x1, x2, R = (z[name][samples] for name in ("add_x1", "add_x2", "add_R"))
    s = safe_divide(R, x1 + x2)
    return [x1 * s, x2 * s], R


def test_share_over_the_whole_batch_is_the_published_addition(case):
    z, check = case
    for i, found in enumerate(normalise_shares(*contributions(z), everything), 1):
        check(found, f"add_out{i}_ours")


def test_share_per_sample_is_the_published_addition_of_each_sample_alone(case):
    z, check = case
    for i, found in enumerate(normalise_shares(*contributions(z), each_sample), 1):
        for sample in (0, 1):
            check(found[sample : sample + 1], f"add_single{sample}_out{i}_ours")


def test_a_traced_addition_is_shared_per_sample(case):
    z, check = case
    for i, found in enumerate(propagated(torch.add, [z["add_x1"], z["add_x2"]], z["add_R"]), 1):
        for sample in (0, 1):
            check(found[sample : sample + 1], f"add_single{sample}_out{i}_ours")


@pytest.mark.parametrize("multiply", [torch.matmul, lambda a, v: torch.einsum("bhij,bhjd->bhid", a, v)])
def test_a_traced_product_with_values_gives_each_factor_half_the_published_relevance(case, multiply):
    z, check = case
    a, v = propagated(multiply, [z["av_A"], z["av_V"]], z["av_R"])
    for name in ("av_out", "av_matmul_out"):
        check(a, f"{name}_A", factor=2)
        check(v, f"{name}_V", factor=2)


def test_a_traced_product_of_queries_and_keys_gives_each_half_the_published_relevance(case):
    z, check = case
    q, k = propagated(lambda q, k: q @ k.transpose(-2, -1), [z["qk_q"], z["qk_k"]], z["qk_R"])
    check(q, "qk_out_q", factor=2)
    check(k, "qk_out_k", factor=2)


def test_z_box_is_the_published_rule_of_a_convolution_on_pixels(case):
    z, check = case
    check(z_box(patches, z["conv3_x"], z["conv3_w"], z["conv3_R"]), "conv3_out")


def test_a_traced_linear_layer_doubles_in_the_published_baseline(case):
    z, check = case
    x, w, b, R = (z[f"linear_{name}"] for name in "xwbR")
    (positive,) = propagated(lambda x: F.linear(x, w, b), [x], R, baseline())
    check(positive, "linear_out_orig_alpha1")
    (negative,) = propagated(lambda x: F.linear(x, -w, b), [x], R, baseline(-EPS))
    check(2 * positive - negative, "linear_out_orig_alpha2")


def test_a_traced_addition_is_in_proportion_in_the_published_baseline(case):
    z, check = case
    for i, found in enumerate(propagated(torch.add, [z["add_x1"], z["add_x2"]], z["add_R"], baseline()), 1):
        check(found, f"add_out{i}_orig")


@pytest.mark.parametrize("name", ["conv2", "conv3"])
def test_a_traced_convolution_follows_z_box_on_three_channels_and_doubles_on_others(case, name):
    z, check = case
    x, w, R = (z[f"{name}_{part}"] for part in "xwR")
    (found,) = propagated(lambda x: patches(x, w, z.get(f"{name}_b")), [x], R, baseline())
    check(found, f"{name}_out")


def test_clone_is_the_published_one_except_that_nothing_is_lost_at_zero(case):
    z, check = case
    x, R = z["clone_x"], z["clone_R0"] + z["clone_R1"] + z["clone_R2"]
    found = RelevanceRules(Phase()).clone(x, R)
    zero = x == 0
    assert zero.sum() == 1
    assert torch.equal(found[zero], R[zero])
    assert not z["clone_out"][zero].any()
    check(torch.where(zero, 0.0, found), "clone_out")


def test_picking_a_token_is_the_published_index_select_except_that_nothing_is_lost_at_zero(case):
    z, check = case
    x, R = z["indexselect_x"], z["indexselect_R"]
    (found,) = propagated(lambda x: x[:, :1], [x], R)
    zero = x == 0
    assert zero[:, :1].sum() == zero.sum() == 1
    assert torch.equal(found[zero], R[zero[:, :1]])
    assert not found[:, 1:].any()
    check(torch.where(zero, 0.0, found), "indexselect_out")


def test_the_comparison_sees_a_changed_stabiliser():
    z = {name: torch.tensor(value) for name, value in golden(RULES).items()}
    found = z_plus(F.linear, z["linear_x"], z["linear_w"], z["linear_R"], eps=1e-7)
    assert relative(found, z["linear_out_ours_alpha1"]) > EXACT


# -- case 03f ------------------------------------------------------------------------------------------------------


@pytest.fixture
def updates():
    return {name: torch.tensor(value) for name, value in golden(UPDATES).items()}


def test_positive_mean_is_the_published_average_of_heads(updates):
    assert relative(positive_mean(updates["A"] * updates["G"])[0], updates["avg_heads"]) < EXACT


def test_one_more_layer_adds_its_map_times_what_was_there(updates):
    A, R = updates["cam_tt"], updates["R_tt"]
    eye = all_rows(A[None])
    after = roll_up([R[None] - eye, A[None]], eye)[0]
    assert relative(after - R, updates["self_R_tt_add"]) < EXACT


@pytest.mark.parametrize("start", [0, 1])
def test_normalised_roll_up_is_the_published_rollout(updates, start):
    mats = [m[None] for m in updates["rollout_mats"]][start:]
    assert relative(roll_up(mats, all_rows(mats[0]), normalise=True)[0], updates[f"rollout_start{start}"]) < EXACT
