"""Golden case 07: activation, pruning and perturbation curves of the published code, and the areas under them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whence
from tests.support.checks import EXACT, relative
from tests.support.goldens import GOLDEN, arrays, load_attention_only_bert, load_vit
from whence.datasets.item import Item
from whence.evaluation.case import Case
from whence.evaluation.feature_removal import ImageRemoval, SequenceRemoval
from whence.evaluation.masked_inference import MaskedInference
from whence.evaluation.measure import create
from whence.inputs.sample import Sample


def measured(name, model, tensors, removal, scores, target, label=None):
    """A measure's vector and its value, of given scores."""
    e = whence.explain(model, tensors, "gradient-x-input", target)
    case = Case(Item("0", ""), e, np.asarray(scores, float), int(e.target[0]), label)
    measure = create(name)
    logits = MaskedInference(whence.Explainer(model), Sample(tensors, {}), removal, 16).logits(measure.plan(case))
    vector = measure.sample(case, logits)
    return vector, measure.finish(vector), case.logits, logits


@pytest.mark.parametrize("scores", ["AH_LN", "GI", "rollout_2"])
@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("variant", ["nopad", "pad"])
def test_activation_and_pruning(variant, target, scores):
    golden = arrays(GOLDEN / "07_perturbation" / "ali_flip_float64.npz")
    ids, unknown = torch.tensor(golden[f"{variant}_input_ids"]), float(golden["unk_token_id"])
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}  # the published model has no mask
    prefix = f"{variant}_cl{target}_{scores}__"
    given = {name.removeprefix(prefix): v for name, v in golden.items() if name.startswith(prefix)}
    model = load_attention_only_bert()

    kept = torch.where(ids[0] == 0, 0.0, unknown)  # an input without features still has its padding
    removal = SequenceRemoval(tensors, "input_ids", kept, torch.arange(ids.shape[1]))
    curve, area, *_ = measured("auac", model, tensors, removal, given["attribution"], target)
    assert relative(curve, given["generate_evidence"]) < EXACT
    assert relative(area, given["AUAC"]) < EXACT

    removal = SequenceRemoval(tensors, "input_ids", unknown, torch.arange(ids.shape[1]))
    curve, area, *_ = measured("au-mse", model, tensors, removal, given["attribution"], target)
    assert relative(curve, given["pruning_mse"]) < EXACT
    assert relative(area, given["AU_MSE"]) < EXACT


@pytest.mark.parametrize(("name", "sign"), [("positive", "pos"), ("negative", "neg")])
def test_perturbation(name, sign):
    golden = arrays(GOLDEN / "07_perturbation" / "cvpr21_perturbation_float64.npz")
    expected = {key.split("__")[1]: v for key, v in golden.items() if key.startswith(f"vis_noties_{sign}__")}
    pixels, model = (torch.tensor(golden["images01"]) - 0.5) / 0.5, load_vit()
    hits, worse, log_odds, areas = [], [], [], []
    for i, label in enumerate(golden["target"]):
        tensors = {"pixel_values": pixels[i : i + 1]}
        removal = ImageRemoval(tensors, "pixel_values", torch.full_like(pixels[:1], -1.0), (48, 48))
        curve, area, whole, logits = measured(
            f"{name}-perturbation", model, tensors, removal, golden["vis_noties"][i].ravel(), None, int(label)
        )
        hits.append(curve)
        areas.append(area)
        worse.append(logits.max(-1) - whole.max())
        log_odds.append(logits[:, label] - np.sort(logits, -1)[:, -2])  # against the second best, whichever it is
    assert np.array_equal(np.stack(hits, 1), expected["perturbations_hits"])
    assert relative(np.mean(areas), expected["auc_trapz_0.1_0.9"]) < EXACT
    assert relative(np.stack(hits, 1).mean(), expected["auc_mean"]) < EXACT
    assert relative(np.stack(worse, 1), expected["perturbations_logit_diff"]) < EXACT
    assert relative(np.stack(log_odds, 1), expected["perturbations_dissimilarities"]) < EXACT
