"""The models whose explanations are hashed: the tiny models of the tests, and one of every family of the matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tests.support import tiny
from tools.conformance import families  # noqa: F401  # adds them
from tools.conformance.family import FAMILIES


@dataclass(frozen=True)
class Case:
    """A model, a batch and a target, each made anew when it is asked for."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    target: Callable[[Any], Tensor] | int | None


def cases() -> Iterator[Case]:
    """Every case, by a name that is unique."""
    texts = {
        "bert": tiny.bert,
        "bert eager": lambda: tiny.bert(implementation="eager"),
        "bert float64": lambda: tiny.bert().double(),
        "bert without biases": lambda: tiny.no_biases(tiny.bert()),
        "llama": lambda: tiny.llama(classify=True),
        "llama eager": lambda: tiny.llama(implementation="eager", classify=True),
        "mixtral": tiny.mixtral,
    }
    for name, build in texts.items():
        yield Case(f"tiny {name}", build, lambda: tiny.padded([7, 4]), None)
    for name, build in {"llama": tiny.llama, "gpt2": tiny.gpt2}.items():
        yield Case(f"tiny {name} next token", build, lambda: {"input_ids": tiny.ids(2)}, None)
    for batch_first in (True, False):
        for norm_first in (True, False):
            name = (
                f"tiny encoder {'batch' if batch_first else 'sequence'} first, {'pre' if norm_first else 'post'}-norm"
            )
            yield Case(name, lambda b=batch_first, n=norm_first: _encoder(b, n), lambda: {"input_ids": tiny.ids(2)}, 1)
    yield Case("tiny handwritten", lambda: _seeded(tiny.Handwritten), lambda: {"input_ids": tiny.ids(2)}, 2)
    for implementation in ("sdpa", "eager"):
        yield Case(f"tiny vit {implementation}", lambda i=implementation: tiny.vit(implementation=i), tiny.pixels, None)
    for family in FAMILIES.values():
        yield Case(f"family {family.name}", family.model, lambda f=family: f.batch(2), family.target)


def _encoder(batch_first: bool, norm_first: bool) -> nn.Module:
    return _seeded(lambda: tiny.Encoder(batch_first, norm_first))


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    tiny.torch.manual_seed(0)
    return build().eval()
