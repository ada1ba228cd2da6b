"""LXT (``lxt.efficient``): AttnLRP and CP-LRP of Llama, BERT and torchvision's ViT.

LXT patches classes for good. Here each explanation patches before it and puts everything back behind it, which takes
microseconds, so that the plain model can be run in between. Its BERT is a class of its own, given the same weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from tools.benchmarks.peers.cases import Case, logits
from tools.benchmarks.peers.comparison import Comparison, Scores

LINEAR, CONVOLUTION = 0.05, 0.25  # gamma for ViT, as in the paper


@contextlib.contextmanager
def patched(rules: dict[Any, Callable[[Any], bool]]) -> Iterator[None]:
    """A map of LXT in force: from classes and modules to what patches them."""
    from lxt.efficient import monkey_patch

    before = {target: dict(vars(target)) for target in rules}
    try:
        for target in rules:
            if "ALL_ATTENTION_FUNCTIONS" in vars(target):  # LXT may write into it, and all models share it
                target.ALL_ATTENTION_FUNCTIONS = dict(target.ALL_ATTENTION_FUNCTIONS)
        monkey_patch(None, rules)
        yield
    finally:
        for target, names in before.items():
            for name, value in list(vars(target).items()):
                if name not in names:
                    delattr(target, name)
                elif value is not names[name]:
                    setattr(target, name, names[name])


def relevance(rules: dict[Any, Any], model: nn.Module, key: str, given: dict[str, Tensor], target: int) -> Tensor:
    """Gradient × input ``[...]`` under the patches, not yet summed."""
    x = given[key].detach().requires_grad_()
    with patched(rules):
        logits(model(**{**given, key: x}))[0, target].backward()
    return (x * x.grad)[0]


def text(rules: str, family: str) -> Callable[[Case], Scores]:
    """Of the words' embeddings."""

    def theirs(case: Case) -> Scores:
        import lxt.efficient.models as models

        given = dict(case.inputs)
        given["inputs_embeds"] = case.model.get_input_embeddings()(given.pop("input_ids"))
        found, model = getattr(getattr(models, family), rules), case.model
        if family == "bert":
            model = models.bert.BertForSequenceClassification(case.model.config).eval().requires_grad_(False)
            model.load_state_dict(case.model.state_dict())
        return lambda: relevance(found, model, "inputs_embeds", given, case.target).sum(-1)

    return theirs


def picture(case: Case) -> Scores:
    """Of pixels, with Zennit's gamma rule in linear layers and convolutions."""
    from lxt.efficient import monkey_patch_zennit
    from lxt.efficient.models import vit_torch
    from zennit.composites import LayerMapComposite
    from zennit.rules import Gamma

    monkey_patch_zennit()
    composite = LayerMapComposite([(nn.Conv2d, Gamma(CONVOLUTION)), (nn.Linear, Gamma(LINEAR))])

    def run() -> Tensor:
        with composite.context(case.model):
            return relevance(vit_torch.cp_LRP, case.model, "x", case.inputs, case.target).sum(0)

    return run


COMPARISONS = [
    Comparison("lxt", "AttnLRP", "decoder", text("attnLRP", "llama"), "attn-lrp", lambda case: {"at": "token"}),
    Comparison("lxt", "CP-LRP", "decoder", text("cp_LRP", "llama"), "conservative-lrp", lambda case: {"at": "token"}),
    Comparison("lxt", "AttnLRP", "bert", text("attnLRP", "bert"), "attn-lrp", lambda case: {"at": "token"}),
    Comparison("lxt", "AttnLRP", "bert_base", text("attnLRP", "bert"), "attn-lrp", lambda case: {"at": "token"}),
    Comparison(
        "lxt",
        "CP-LRP with gamma rules",
        "vit_torchvision",
        picture,
        "attn-lrp",
        lambda case: {"at": "pixel", "attention": "constant", "gamma": LINEAR, "conv_gamma": CONVOLUTION},
    ),
]
