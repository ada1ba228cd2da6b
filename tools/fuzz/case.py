"""A case: an architecture, inputs for it, and a question of a method."""

from __future__ import annotations

import ast
import random
import shlex
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

import whence
from tools.fuzz.grammar import CHOICES, CLASSES, VOCABULARY, Architecture, drawn, settled
from tools.fuzz.model import Model

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}

#: options beside those that make a method quick
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "attention": ({"rows": "all"},),
    "attention-flow": ({"residual": False}, {"normalise": True}, {"rows": "all"}),
    "attn-lrp": ({"attention": "constant"}, {"gamma": 0.25}, {"at": "token"}, {"at": "pixel"}),
    "bi-attention": ({"variant": "token"},),
    "conservative-lrp": (
        {"heads": False}, {"norms": False}, {"activations": "ratio"}, {"activations": "gradient"},
        {"detach_mean": True}, {"at": "token"}, {"at": "pixel"},
    ),
    "dave": ({"augment": False}, {"smooth": False}),
    "flash-trace": ({"variant": "span"}, {"variant": "matrix"}, {"biases": True}),
    "generic-attention": ({"rows": "all"}, {"normalise": True}, {"co_attention": "plain"}, {"co_attention": "bare"}),
    "grad-cam": ({"weights": "map"}, {"rows": "all"}),
    "gradient-x-input": ({"at": "token"}, {"at": "pixel"}),
    "integrated-gradients": ({"steps": 2, "at": "token"}, {"steps": 2, "at": "pixel"}),
    "kernel-shap": ({"samples": 8, "at": "token"},),
    "legrad": ({"layers": None},),
    "libragrad": ({"probability": True}, {"at": "token"}, {"at": "pixel"}),
    "lime": ({"samples": 8, "surrogate": "lasso"},),
    "lrp": ({"doubled": True}, {"at": "token"}, {"at": "pixel"}),
    "occlusion": ({"window": 1}, {"window": 2}, {"at": "token"}),
    "pa-lrp": ({"attention": "constant"}, {"attention": "halved"}, {"positions": "signed"}, {"at": "token"}),
    "res-lrp": ({"gamma": 0.25}, {"at": "token"}, {"at": "pixel"}),
    "rollout": ({"residual": False}, {"rows": "all"}),
    "saliency": ({"norm": "l1"}, {"at": "pixel"}),
    "smooth-grad": ({"samples": 2, "times_input": False},),
    "token-tm": ({"rules": "libra"}, {"rules": "ali-lrp"}),
    "transformer-attribution": ({"gradient": False}, {"block": -1}, {"normalise": True}, {"eps": 0.0}),
}  # fmt: skip

#: of each part of a question, the plainest first
ASKED: dict[str, tuple[Any, ...]] = {
    "dtype": ("float64", "float64", "float64", "float32", "float32", "bfloat16"),
    "batch": (2, 1, 3),
    "length": (4, 6, 8),
    "padding": ("none", "none", "right", "left"),
    "target": ("class", "predicted", "each", "contrast", "function"),
    "training": (False, True),
    "breaks": (False, False, False, False, False, True),
}


@dataclass(frozen=True)
class Case:
    """What is tried.

    Attributes:
        architecture: of the model.
        method: asked of it.
        options: of the method; ``{}`` stands for those that make it quick.
        dtype: of weights and inputs.
        batch: how many samples.
        length: how many tokens a sample has at most.
        padding: on which side shorter samples are padded.
        target: which scalar is explained.
        training: whether the model is in training mode, some weights frozen.
        breaks: whether the model raises an error half way.
    """

    architecture: Architecture = field(default_factory=Architecture)
    method: str = "conservative-lrp"
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    batch: int = 2
    length: int = 4
    padding: str = "none"
    target: str = "class"
    training: bool = False
    breaks: bool = False

    @property
    def asked(self) -> dict[str, Any]:
        """The method's options, cheap ones where it is expensive."""
        return {**whence.list_methods()[self.method].quick, **self.options}

    def model(self, **changes: Any) -> Model:
        """The model, or one whose architecture differs in something."""
        return Model(replace(self.architecture, **changes)).to(DTYPES[self.dtype]).eval()

    def inputs(self, other: bool = False) -> dict[str, Tensor]:
        """A batch, padded where the case says so; what stands at padding is no zero.

        Args:
            other: another batch of the same shapes; its samples have the lengths in reverse order.
        """
        a, draw = self.architecture, torch.Generator().manual_seed(a_seed(self) + (500_000 if other else 0))
        dtype = DTYPES[self.dtype]

        def ids(length: int) -> Tensor:
            return torch.randint(0, VOCABULARY, (self.batch, length), generator=draw)

        def floats(*shape: int) -> Tensor:
            return torch.randn(self.batch, *shape, generator=draw).to(dtype)

        if a.reads == "pixels":
            return {"pixel_values": floats(3, 8, 8)}
        out = {"input_ids": ids(self.length)} if a.reads == "ids" else {"values": floats(self.length, 6)}
        if self.padding != "none":
            out |= {name: t.flip(0) if other else t for name, t in self._padded().items()}
        if a.streams == "two":
            out["pixel_values"] = floats(3, 4, 4)
        elif a.streams == "encoder-decoder":
            out["decoder_input_ids"] = ids(3)
        return out

    def lengths(self) -> list[int]:
        """How many tokens each sample has."""
        return [max(2, self.length - 2 * i) for i in range(self.batch)] if self.padding != "none" else []

    def _padded(self) -> dict[str, Tensor]:
        at, n = torch.arange(self.length)[None], torch.tensor(self.lengths())[:, None]
        mask = at < n if self.padding == "right" else at >= self.length - n
        return {"attention_mask": mask.long(), "position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}

    def aim(self, other: bool = False) -> Any:
        """The target; or another one."""
        first = 1 if other else 0
        classes = VOCABULARY if self.architecture.tied else CLASSES
        return {
            "class": first,
            "predicted": first if other else None,
            "each": [(i + first) % classes for i in range(self.batch)],
            "contrast": whence.contrast(first, 2),
            "function": lambda outputs: scalar(outputs, first),
        }[self.target]

    def alone(self, i: int) -> Any:
        """The target of one sample of the batch."""
        aim = self.aim()
        return [aim[i]] if isinstance(aim, list) else aim

    def words(self) -> str:
        """What is not the plainest about it, as the command line takes it."""
        plain = Case()
        said = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)}
        said = {"method": self.method, **said}
        said.pop("architecture", None)
        known = asdict(Architecture())
        said |= {k: v for k, v in asdict(self.architecture).items() if v != known[k]}
        return " ".join(shlex.quote(f"{k}={v}") for k, v in said.items())


def scalar(outputs: Any, first: int) -> Tensor:
    """A function of the outputs: a logit squared."""
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    logits = logits["logits"] if isinstance(logits, dict) else getattr(logits, "logits", logits)
    logits = logits[:, -1] if logits.dim() == 3 else logits
    return logits[:, first] ** 2


def a_seed(case: Case) -> int:
    """The seed of its inputs."""
    return 1000 + case.architecture.weights


def case_of(words: list[str]) -> Case:
    """A case from ``name=value`` words."""
    plain, given = Case(), {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            given[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            given[name] = value
    architecture = Architecture(**{k: v for k, v in given.items() if k in CHOICES})
    return replace(plain, architecture=architecture, **{k: v for k, v in given.items() if k not in CHOICES})


def draw_case(seed: int, index: int) -> Case:
    """The case of this number; methods come in turns, so that each has its share."""
    rng = random.Random(f"{seed}:{index}")
    method = sorted(whence.list_methods())[index % len(whence.list_methods())]
    options = rng.choice(OPTIONS.get(method, ({},))) if rng.random() < 0.4 else {}
    asked = {name: rng.choice(choices) for name, choices in ASKED.items()}
    return joined(Case(drawn(rng), method, options, **asked))


def joined(case: Case) -> Case:
    """The nearest case whose parts go together."""
    a = settled(case.architecture)
    if a.reads == "pixels" or a.window:
        case = replace(case, padding="none")
    if a.window and case.length % a.window:
        case = replace(case, length=8)
    if case.padding != "none" and a.masking == "flag":
        a = replace(a, masking="bool")
    if case.padding != "none" and a.pool == "every" and (not a.causal or case.target == "function"):
        a = settled(replace(a, pool="mean", tied=False))
    if case.target == "function" and case.padding == "right" and a.pool == "every":
        case = replace(case, target="class")
    return replace(case, architecture=a)
