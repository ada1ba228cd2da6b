"""The grammar: of which parts an architecture is put together, and which parts go together."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Any

WIDTH, HIDDEN, CLASSES, VOCABULARY, PATCH = 16, 24, 3, 20, 2


@dataclass(frozen=True)
class Architecture:
    """A sentence of the grammar; of each feature the first choice (:data:`CHOICES`) is the plainest.

    Attributes:
        reads: integers that are embedded, tokens of floats, or pictures that a convolution cuts into patches.
        streams: one; an encoder and a decoder; two that attend to each other (text and picture).
        layout: of what is inside the model.
        block: attention and MLP one after the other, or side by side.
        norm: before a branch, after the sum, before and after a branch, or nowhere.
        norm_as: LayerNorm or RMSNorm, torch's or written out.
        mlp: two layers, or gated: ``glu`` (torch's), ``gated`` (activation of one half times the other), or none.
        activation: torch's, or written out (``tanh-gelu``, ``quick-gelu``).
        attend: how attention is computed.
        packed: queries, keys and values from one projection, cut by ``chunk``, ``split`` or ``unbind``, or from three.
        heads: of queries.
        groups: how many heads of queries share one of keys and values.
        causal: each token sees those before it.
        masking: how what is not seen is hidden.
        window: how many tokens see each other (Swin); every other layer is shifted. 0: all.
        windowed: whether attention alone is inside windows, or whole blocks are.
        rotary: rotated queries and keys, in halves or in pairs.
        places: position embeddings, learned or fixed waves.
        query_norm: queries and keys are normed.
        cap: scores are capped by a tanh (Gemma 2).
        layer_scale: a learned factor on each branch.
        biases: of linear layers and norms.
        shared: one block, used again and again (ALBERT).
        tied: the head is the embedding, turned.
        registers: learned tokens beside those of the input.
        pool: from where the answer is read: a class token, the first, the last, the mean, or every token.
        head: linear, or after a norm, or after a tanh (BERT's pooler).
        answers: what the model returns.
        depth: blocks.
        scale: of the weights.
        weights: their seed.
    """

    reads: str = "ids"
    streams: str = "one"
    layout: str = "batch-first"
    block: str = "serial"
    norm: str = "pre"
    norm_as: str = "layer"
    mlp: str = "plain"
    activation: str = "gelu"
    attend: str = "fused"
    packed: str = "no"
    heads: int = 2
    groups: int = 1
    causal: bool = False
    masking: str = "bool"
    window: int = 0
    windowed: str = "attention"
    rotary: str = "no"
    places: str = "no"
    query_norm: bool = False
    cap: bool = False
    layer_scale: bool = False
    biases: bool = True
    shared: bool = False
    tied: bool = False
    registers: int = 0
    pool: str = "first"
    head: str = "linear"
    answers: str = "tensor"
    depth: int = 1
    scale: float = 0.4
    weights: int = 0


CHOICES: dict[str, tuple[Any, ...]] = {
    "reads": ("ids", "floats", "pixels"),
    "streams": ("one", "one", "one", "encoder-decoder", "two"),
    "layout": ("batch-first", "batch-first", "tokens-first"),
    "block": ("serial", "serial", "parallel"),
    "norm": ("pre", "pre", "post", "sandwich", "none"),
    "norm_as": ("layer", "layer-written", "rms", "rms-written"),
    "mlp": ("plain", "plain", "glu", "gated", "none"),
    "activation": ("gelu", "tanh-gelu", "quick-gelu", "relu", "silu", "torch-tanh-gelu"),
    "attend": ("fused", "matmul", "einsum", "bmm", "module"),
    "packed": ("no", "chunk", "split", "unbind"),
    "heads": (2, 1, 4),
    "groups": (1, 1, 2, 4),
    "causal": (False, False, True),
    "masking": ("bool", "additive", "where", "flag"),
    "window": (0, 0, 0, 2, 4),
    "windowed": ("attention", "attention", "attention", "block"),
    "rotary": ("no", "no", "halves", "pairs"),
    "places": ("no", "learned", "waves"),
    "query_norm": (False, False, False, True),
    "cap": (False, False, False, False, True),
    "layer_scale": (False, False, True),
    "biases": (True, False),
    "shared": (False, False, True),
    "tied": (False, True),
    "registers": (0, 0, 0, 2),
    "pool": ("first", "class", "mean", "last", "every"),
    "head": ("linear", "norm", "tanh"),
    "answers": ("tensor", "tuple", "dict", "object"),
    "depth": (1, 2, 2, 3),
    "scale": (0.4, 0.1, 0.8),
    "weights": tuple(range(100)),
}


def drawn(rng: random.Random) -> Architecture:
    """A random architecture."""
    return settled(Architecture(**{name: rng.choice(choices) for name, choices in CHOICES.items()}))


def settled(a: Architecture) -> Architecture:
    """The nearest architecture whose parts go together."""
    rules: list[tuple[bool, dict[str, Any]]] = [
        (a.streams == "two", {"reads": "ids", "window": 0, "causal": False, "registers": 0, "tied": False}),
        (a.streams == "two" and a.pool == "every", {"pool": "first"}),
        (a.streams == "encoder-decoder", {"reads": "ids", "window": 0, "causal": True, "registers": 0}),
        (a.streams != "one", {"block": "serial"}),
        (a.attend == "module", {"groups": 1, "rotary": "no", "query_norm": False, "cap": False, "packed": "chunk"}),
        (a.attend in ("fused", "module") and a.cap, {"attend": "matmul"}),
        (a.heads % a.groups != 0, {"groups": 1}),
        (a.groups > 1 and a.packed in ("chunk", "unbind"), {"packed": "split"}),
        (a.window > 0, {"causal": False, "registers": 0, "rotary": "no"}),
        (a.window > 0 and a.pool == "class", {"pool": "mean"}),
        (a.window == 0, {"windowed": "attention"}),
        (a.norm == "none" and a.scale > 0.4, {"scale": 0.4}),
        (a.masking == "flag" and not (a.causal and a.attend in ("fused", "module")), {"masking": "bool"}),
        (a.reads != "ids" or a.pool != "every", {"tied": False}),
        (a.pool == "every" and a.registers > 0, {"registers": 0}),
    ]
    for applies, changes in rules:
        if applies:
            changed = replace(a, **changes)
            if changed != a:
                return settled(changed)
    return a


def plainer(name: str) -> list[Any]:
    """The choices of a feature, the plainest first."""
    return list(dict.fromkeys(CHOICES[name]))


def features(a: Architecture) -> dict[str, Any]:
    """What is not the plainest about an architecture."""
    return {f.name: getattr(a, f.name) for f in fields(a) if getattr(a, f.name) != f.default}
