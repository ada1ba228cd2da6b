"""autoLRP: rules of LRP as hooks on the autograd graph.

Its residual sums and biases share relevance by magnitude, ours by value, so that Transformers are explained otherwise.
Without either, the rules are the same. autoLRP begins with a relevance of 1; its scores are multiplied by the logit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tools.benchmarks.peers.cases import Case, logits
from tools.benchmarks.peers.comparison import Comparison, Scores

GAMMA = 0.25
PRODUCTS = ("ConvolutionBackward", "AddmmBackward", "MmBackward")
DIFFERENT = "residual sums and biases share relevance by magnitude, ours by value"


def relevance(config: Callable[[], Any]) -> Callable[[Case], Scores]:
    """Of embeddings ``[tokens]`` or pixels ``[height, width]``, by a configuration."""

    def theirs(case: Case) -> Scores:
        import autolrp

        rules = config()

        def run() -> Tensor:
            given = dict(case.inputs)
            if "input_ids" in given:
                given["inputs_embeds"] = case.model.get_input_embeddings()(given.pop("input_ids"))
            key = next(key for key, value in given.items() if value.is_floating_point())
            x = autolrp.tensor(given[key])
            value = logits(case.model(**{**given, key: x}))[0, case.target]
            value.lrp(config=rules)
            found = (x.relevance * value.detach()).as_subclass(Tensor)[0]
            return found.sum(-1) if key == "inputs_embeds" else found.sum(0)

        return run

    return theirs


def epsilon() -> Any:
    """Its default: epsilon rules."""
    from autolrp import LRPConfig

    return LRPConfig()


def gamma() -> Any:
    """Gamma rules in linear layers and convolutions."""
    from autolrp import BASE, LRPConfig, on

    return LRPConfig(rule={**BASE, **on(PRODUCTS, ("gamma", {"gamma": GAMMA}))})


def attn_lrp() -> Any:
    """Its recipe for Transformers."""
    from autolrp import LRPConfig

    return LRPConfig.attnlrp()


def pixels(case: Case) -> dict[str, Any]:
    """Scores of pixels."""
    return {"at": "pixel"}


COMPARISONS = [
    Comparison(
        "autolrp",
        "epsilon rules",
        "convnet_without_biases",
        relevance(epsilon),
        "attn-lrp",
        pixels,
        note="without attention, `attn-lrp` is LRP-0",
    ),
    Comparison(
        "autolrp",
        f"gamma rules ({GAMMA})",
        "convnet_without_biases",
        relevance(gamma),
        "attn-lrp",
        lambda case: {"at": "pixel", "gamma": GAMMA, "conv_gamma": GAMMA},
    ),
    *(
        Comparison(
            "autolrp",
            "LRPConfig.attnlrp()",
            name,
            relevance(attn_lrp),
            "attn-lrp",
            lambda case: {"at": "token"},
            same=False,
            note=DIFFERENT,
        )
        for name in ("bert", "bert_base", "decoder")
    ),
    Comparison(
        "autolrp",
        "LRPConfig.attnlrp()",
        "vit",
        relevance(attn_lrp),
        "attn-lrp",
        lambda case: {"at": "pixel", "conv_gamma": GAMMA},
        same=False,
        note=DIFFERENT,
    ),
]
