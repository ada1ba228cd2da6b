"""Adapters of peft, and those that transformers loads itself: unmerged, beside the merged model.

A tuned prompt has no merged model. It is compared with the same function written with the base model alone: virtual
tokens put before the embedded words by hand, or prefixes given as past keys and values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .case import Case, Pair
from .tiny_models import classifier, explained, language_model

#: how many virtual tokens tuned prompts have
VIRTUAL = 5

LAYERS = {"SEQ_CLS": ["query", "value", "dense"], "CAUSAL_LM": ["q_proj", "v_proj", "gate_proj", "down_proj"]}


def base(task: str) -> nn.Module:
    """Return the model that is adapted to a task, in double precision: equal functions are then equal to rounding."""
    return (classifier() if task == "SEQ_CLS" else language_model()).double()


def trained(model: nn.Module) -> nn.Module:
    """Return an adapted model, its adapter away from its initial value, at which it changes nothing."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("lora_", "ia3", "prompt")):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()


def adapted(task: str, config: Any) -> nn.Module:
    """Return the model of a task with an adapter."""
    from peft import get_peft_model

    return trained(get_peft_model(base(task), config))


def lora(task: str, **options: Any) -> Pair:
    """Return LoRA, unmerged and merged."""
    from peft import LoraConfig

    model = adapted(task, LoraConfig(task_type=task, r=4, target_modules=LAYERS[task], **options))
    return beside_merged(model)


def ia3(task: str) -> Pair:
    """Return IA3, unmerged and merged."""
    from peft import IA3Config

    keys, forward = ("key", "output.dense") if task == "SEQ_CLS" else ("k_proj", "down_proj")
    values = "value" if task == "SEQ_CLS" else "v_proj"
    config = IA3Config(task_type=task, target_modules=[keys, values, forward], feedforward_modules=[forward])
    return beside_merged(adapted(task, config))


def beside_merged(model: nn.Module) -> Pair:
    """Return an adapted model beside the one that its adapter is merged into."""
    merged = copy.deepcopy(model).merge_and_unload().eval()
    return Pair(explained(merged), explained(model))


def added(task: str) -> Pair:
    """Return LoRA added by the ``add_adapter`` of transformers, beside the merged model."""
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer

    model: Any = base(task)
    model.add_adapter(LoraConfig(r=4, target_modules=LAYERS[task]))
    merged = copy.deepcopy(trained(model))
    for name, module in list(merged.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            merged.set_submodule(name, module.get_base_layer())
    return Pair(explained(merged), explained(model))


class PromptByHand(nn.Module):
    """The base model with virtual tokens put before the embedded words.

    Args:
        model: an adapted model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model
        self.config = model.config
        self.prompt = nn.Parameter(model.get_prompt(1).detach().clone())

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Return what the base model answers."""
        words = self.model.get_input_embeddings()(input_ids)
        prompt = self.prompt.expand(len(words), -1, -1)
        mask = torch.cat([attention_mask.new_ones(len(words), self.prompt.shape[1]), attention_mask], 1)
        return self.model(inputs_embeds=torch.cat([prompt, words], 1), attention_mask=mask)


def prompt_tuning(task: str) -> Pair:
    """Return prompt tuning, beside the same virtual tokens put there by hand."""
    from peft import PromptTuningConfig

    return by_hand(task, PromptTuningConfig(task_type=task, num_virtual_tokens=VIRTUAL))


def p_tuning(task: str) -> Pair:
    """Return P-tuning, beside the same virtual tokens put there by hand."""
    from peft import PromptEncoderConfig

    return by_hand(task, PromptEncoderConfig(task_type=task, num_virtual_tokens=VIRTUAL, encoder_hidden_size=32))


def by_hand(task: str, config: Any) -> Pair:
    """Return a model with a tuned prompt, beside the base model with the same virtual tokens."""
    model = adapted(task, config)
    return Pair(explained(PromptByHand(model)), explained(model))


class PrefixByHand(nn.Module):
    """The base model, given the tuned keys and values as its past.

    Args:
        model: an adapted model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model
        self.config = model.config
        self.adapted = [model]  # in a list, so that it is no part of this one
        self.prefix = VIRTUAL

    def can_generate(self) -> bool:
        """Return whether the base model writes text: its last token is then the one explained."""
        return bool(self.model.can_generate())

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Return what the base model answers."""
        past = self.adapted[0].get_prompt(len(input_ids), max_cache_len=input_ids.shape[1] + self.prefix)
        mask = torch.cat([attention_mask.new_ones(len(input_ids), self.prefix), attention_mask], 1)
        return self.model(input_ids=input_ids, attention_mask=mask, past_key_values=past)


def prefix_tuning(task: str) -> Pair:
    """Return prefix tuning, beside the same keys and values given to the base model."""
    from peft import PrefixTuningConfig

    model = adapted(task, PrefixTuningConfig(task_type=task, num_virtual_tokens=VIRTUAL))
    return Pair(explained(PrefixByHand(model)), explained(model))


def _case(name: str, build: Callable[..., Pair], *arguments: Any, package: str = "peft", **options: Any) -> Case:
    return Case(name, package, lambda: build(*arguments, **options))


CASES = [
    case
    for task, model in (("SEQ_CLS", "BERT"), ("CAUSAL_LM", "Llama"))
    for case in (
        _case(f"LoRA, unmerged, {model}", lora, task),
        _case(f"DoRA, unmerged, {model}", lora, task, use_dora=True),
        _case(f"IA3, unmerged, {model}", ia3, task),
        _case(f"add_adapter, unmerged, {model}", added, task, package="transformers"),
        _case(f"prompt tuning, {model}", prompt_tuning, task),
        _case(f"P-tuning, {model}", p_tuning, task),
        _case(f"prefix tuning, {model}", prefix_tuning, task),
    )
]
