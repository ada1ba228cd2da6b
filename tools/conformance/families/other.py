"""Time series, tables, web pages, decisions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tools.conformance.families.multimodal import WORDS, build
from tools.conformance.family import Inputs, add, text

GROUP = "Time series, tables, decisions"
NARROW: dict[str, Any] = {"d_model": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 24}


def series(samples: int, length: int = 24, channels: int = 1) -> Inputs:
    """A time series of some channels."""
    return {"past_values": torch.randn(samples, length, channels)}


add(
    "PatchTST", GROUP, attentions=2, streams={"input": 6}, inputs=series,
    target=lambda o: o.prediction_logits[:, 1],
    build=partial(
        build, model="PatchTSTForClassification", config="PatchTSTConfig", **NARROW, num_input_channels=1,
        context_length=24,
        patch_length=4, patch_stride=4, num_targets=3, use_cls_token=False, scaling=None,
    ),
)  # fmt: skip
add(
    "PatchTSMixer", GROUP, attentions=0, streams={"input": 24}, inputs=series, implementations=("eager",),
    target=lambda o: o.prediction_outputs[:, 1],
    build=partial(
        build, model="PatchTSMixerForTimeSeriesClassification", config="PatchTSMixerConfig", d_model=16, num_layers=2,
        context_length=24, patch_length=4, patch_stride=4, num_input_channels=1, num_targets=3, scaling=None,
    ),
    note="no attention: patches are mixed by linear layers",
)  # fmt: skip


def forecast(samples: int, past: int = 8, future: int = 4) -> Inputs:
    """A past and a future, with a feature of time; the first two values of the past are lags."""
    return {
        "past_values": torch.randn(samples, past), "past_time_features": torch.randn(samples, past, 1),
        "past_observed_mask": torch.ones(samples, past), "future_values": torch.randn(samples, future),
        "future_time_features": torch.randn(samples, future, 1),
    }  # fmt: skip


def location(outputs: Any) -> Tensor:
    """Where the distribution of the last value lies."""
    found: Tensor = outputs.params[1][:, -1]
    return found


FORECAST: dict[str, Any] = {
    "prediction_length": 4, "context_length": 6, "lags_sequence": [1, 2], "num_time_features": 1, "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "scaling": False,
}  # fmt: skip
for name, model, attentions, note in [
    ("Time Series Transformer", "TimeSeriesTransformer", 6, ""),
    ("Informer", "Informer", 6, "with full attention; its sparse attention draws keys at random"),
]:
    more = {"attention_type": "full", "distil": False} if model == "Informer" else {}
    add(
        name, GROUP, attentions=attentions, streams={"encoder": 6, "decoder": 4}, inputs=forecast, target=location,
        implementations=("eager",), note=note,
        build=partial(build, model=f"{model}ForPrediction", config=f"{model}Config", **FORECAST, **more),
    )  # fmt: skip


def decisions(samples: int) -> Inputs:
    """Five steps of states, actions and returns."""
    return {
        "states": torch.randn(samples, 5, 3), "actions": torch.randn(samples, 5, 2), "rewards": torch.randn(samples,
        5, 1),
        "returns_to_go": torch.randn(samples, 5, 1), "timesteps": torch.arange(5).repeat(samples, 1),
        "attention_mask": torch.ones(samples, 5, dtype=torch.long),
    }  # fmt: skip


add(
    "Decision Transformer", GROUP, attentions=2, streams={"input": 15}, inputs=decisions,
    target=lambda o: o.action_preds[:, -1, 0],
    build=partial(
        build, model="DecisionTransformerModel", config="DecisionTransformerConfig", state_dim=3, act_dim=2,
        hidden_size=16,
        max_ep_len=10, n_layer=2, n_head=4, n_positions=40,
    ),
    note="three tokens for each step",
)  # fmt: skip


def table(samples: int) -> Inputs:
    """Words with rows, columns and ranks of a table."""
    return {**text(samples), "token_type_ids": torch.randint(0, 2, (samples, 7, 7))}


add(
    "TAPAS", GROUP, attentions=2, streams={"text": 7}, inputs=table, implementations=("eager",),
    mask="attention_mask", padded={"input_ids": 0, "attention_mask": 0, "token_type_ids": 0},
    build=partial(
        build, model="TapasForSequenceClassification", config="TapasConfig", **WORDS, num_labels=3,
        type_vocab_sizes=[3, 4, 4, 2, 4, 4, 4], reset_position_index_per_cell=False,
    ),
)  # fmt: skip


def page(samples: int) -> Inputs:
    """Words with their place in the tree of a page."""
    return {
        **text(samples), "xpath_tags_seq": torch.randint(0, 9, (samples, 7, 3)),
        "xpath_subs_seq": torch.randint(0, 9, (samples, 7, 3)),
    }  # fmt: skip


add(
    "MarkupLM", GROUP, attentions=2, streams={"text": 7}, inputs=page, implementations=("eager",),
    mask="attention_mask", padded={"input_ids": 0, "attention_mask": 0, "xpath_tags_seq": 0, "xpath_subs_seq": 0},
    build=partial(
        build, model="MarkupLMForSequenceClassification", config="MarkupLMConfig", **WORDS, num_labels=3, max_depth=3,
        xpath_unit_hidden_size=4, max_xpath_tag_unit_embeddings=12, max_xpath_subs_unit_embeddings=12,
        tag_pad_id=10, subs_pad_id=10,
    ),
)  # fmt: skip
add(
    "TimesFM", GROUP, attentions=2, streams={"input": 24}, inputs=lambda n: {"past_values": torch.randn(n, 24)},
    target=lambda o: o.mean_predictions[:, -1],
    build=partial(
        build, model="TimesFmModelForPrediction", config="TimesFmConfig", patch_length=8, context_length=24,
        horizon_length=8,
        hidden_size=16, intermediate_size=24, head_dim=4, num_attention_heads=4, num_hidden_layers=2, freq_size=3,
        quantiles=[0.5],
    ),
    note="its output is scaled by the mean and deviation of its input, which is therefore where scores are read",
)  # fmt: skip
