"""PA-LRP (Bakish, Cohen, Ali, Chefer, Wolf, NeurIPS 2025): LRP that keeps the relevance of positional encodings.

An input is a pair of a token and its position. LRP ends at the token's embedding, and the relevance of its position is
lost in constants. Here it is kept, as in `attn-lrp` but for these:

- **added embeddings** ``z = E + P`` (learned, sinusoidal): ``R_P = P dy/dz`` beside ``R_E = E dy/dz``. Read at
  ``"position"`` (the default) both are part of what enters the first block; read at ``"token"`` or ``"pixel"``, ``R_P``
  is added: to the token, or spread evenly over the pixels of the patch. So is what a model adds later, between blocks;
- **rotations** ``q cos + rot(q) sin`` of queries and keys: each product gives half to the vector and half to the
  rotation (the epsilon rule on the sum leaves the gradient as it is);
- **biases** added to attention scores (ALiBi, T5's relative positions): ``R_b = b dy/ds``, to the key. (The paper has
  no rule for these; this is the natural one.)

Of rotations and biases each layer's relevance counts by its absolute value, queries and keys together, cos and sin
apart, as in the published code (``positions="absolute"``); the paper's eq. 11 keeps the positive ones
(``"positive"``). Nothing is done with ``attention="constant"`` there: no relevance reaches queries and keys.

Where the published code differs: it divides scores by their largest magnitude, and clamps picture maps at 0; its vision
code has ``gamma=0.05, conv_gamma=100`` and constant probabilities, and drops half of each attention's relevance on the
way (``attention="halved"``); relevance starts as 1 there, here as the logit. It also adds 1e-6 or 1e-8, whatever the
sign, to every denominator, which this form in gradients does not have: up to 1.1e-4 of the largest score on the text
model it was compared on, 1.8e-3 of the largest pixel on the vision model.

Cost: one forward, one backward, attention written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..axes import Dim
from ..call import Call
from ..errors import MethodError, ModelError
from ..layout import per_token, precise
from ..node import Node, attach, node_of
from ..rules import gradient as rules
from ..run import Rulebook, Run
from ..streams import split
from . import Reading, method
from .attn_lrp import AttnLRP
from .gradient_x_input import InputLevel

COUNTED: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute": torch.abs,
    "positive": lambda R: R.clamp(min=0),
    "signed": lambda R: R,
}


@dataclass
class Positions:
    """Relevance that arrives at constants that differ from token to token.

    Attributes:
        tokens: the token axis; to be set before the backward.
        added: ``[batch, tokens]`` for each constant added outside of attention, and when that was.
        inside: ``[batch, tokens]`` for each attention (by index) and constant (by its memory).
    """

    tokens: Dim = ()
    added: list[tuple[int, Tensor]] = field(default_factory=list)
    inside: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def rotate(self, call: Call) -> Any:
        """A product with a constant: half to each, if the constant encodes positions of queries or keys."""
        constant = _constant(call)
        if constant is None or call.name != "mul":
            return call.run()
        (old,) = call.traced
        vector = attach(old.view_as(old), node_of(old))
        call.replace([vector])
        out: Tensor = call.run()

        def placed(node: Node) -> None:
            vector.register_hook(lambda g: g / 2 if self._encodes(node, constant) else None)
            out.register_hook(lambda g: self._enter(node, constant, g * out.detach() / 2))

        call.placed = placed
        return out

    def shift(self, call: Call) -> Any:
        """A sum with a constant."""
        constant, out = _constant(call), call.run()
        if constant is not None and call.name == "add" and "alpha" not in call.kwargs:
            call.placed = lambda node: out.register_hook(lambda g: self._enter(node, constant, g * constant))
        return out

    def _encodes(self, node: Node, constant: Tensor) -> bool:
        """Whether a constant differs from token to token, and is no mask that an attention is multiplied with."""
        if node.softmax is not None or (node.inside is None and node.kind != "shift-by-constant"):
            return False
        dims = [d - len(node.axes) for d in _token_dims(node, self.tokens)]
        return any(-d <= constant.dim() and bool((constant != constant.narrow(d, 0, 1)).any()) for d in dims)

    def _enter(self, node: Node, constant: Tensor, relevance: Tensor) -> None:
        if not self._encodes(node, constant):
            return
        relevance = torch.where(torch.isfinite(constant), precise(relevance), 0.0)  # a mask of infinities
        dims = _token_dims(node, self.tokens)
        axes = list(node.axes)
        for query in dims[:-1]:  # scores have queries and keys
            relevance = relevance.sum(query, keepdim=True)
            axes[query] = ()
        scores = per_token(relevance, tuple(axes), node.batch, self.tokens)
        if node.inside is None:
            self.added.append((node.seq, scores))
        else:
            key = node.inside, constant.data_ptr()
            self.inside[key] = self.inside.get(key, 0) + scores


def _token_dims(node: Node, tokens: Dim) -> list[int]:
    return [d for d, dim in enumerate(node.axes) if dim == tokens]


def _constant(call: Call) -> Tensor | None:
    """The constant operand of a sum or product with one tensor that depends on the input."""
    others = [t for t in call.args[:2] if isinstance(t, Tensor) and not t.requires_grad and t.numel() > 1]
    return others[0] if len(others) == 1 and len(call.traced) == 1 else None


@method("pa-lrp")
@dataclass
class PALRP(InputLevel):
    """LRP of tokens and their positions.

    Attributes:
        attention: ``"split"`` (queries and keys get relevance), ``"constant"`` or ``"halved"``.
        gamma, conv_gamma: as in `attn-lrp`.
        positions: how the relevance of rotations and biases counts: ``"absolute"``, ``"positive"`` or ``"signed"``.
    """

    paper: ClassVar[str] = "Bakish et al., NeurIPS 2025"
    shows: ClassVar[str] = "The answer's score handed back layer by layer, with the share of positions told apart."
    beware: ClassVar[str] = "Be careful where the ledger does not balance."

    attention: str = "split"
    gamma: float | None = None
    conv_gamma: float | None = None
    positions: str = "absolute"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in COUNTED:
            raise MethodError(f"`positions` must be one of {', '.join(COUNTED)}, not {self.positions!r}.")
        if self.attention not in ("split", "constant", "halved"):
            raise MethodError(f"`attention` must be 'split', 'constant' or 'halved', not {self.attention!r}.")
        self._base()

    def _base(self) -> Rulebook:
        attention = "split" if self.attention == "split" else "constant"
        return AttnLRP(self.at, attention, self.gamma, self.conv_gamma).rulebook()

    def rulebook(self) -> Rulebook:
        """The rules of `attn-lrp`, and books of positions."""
        self._positions = Positions()
        book = {**self._base().rules, "scale": self._positions.rotate, "shift-by-constant": self._positions.shift}
        if self.attention == "halved":
            book |= dict.fromkeys(("attention", "mix"), rules.halve_heads)
        return Rulebook(book, maps=True)

    def places(self, run: Run) -> list[Tensor]:
        """Where the method reads; with tokens alone, also at positions that the user gave the model by number."""
        if run.windowed():
            raise ModelError(
                f"The model's attention is inside windows of its tokens, or over merged tokens, whose positions "
                f"'{self.name}' does not follow. Methods that give positions no relevance of their own "
                "(attn-lrp, conservative-lrp) work."
            )
        self._positions.tokens = run.tokens()
        numbered = [s.tensor for s in run.trace.sources if s.embedded and "position" in s.name]
        return super().places(run) + (numbered if self.at == "token" else [])

    def reading(
        self, run: Run, places: list[Tensor], relevances: list[Tensor], layers: Tensor | None = None
    ) -> Reading:
        """Relevance at each place, and of the positions that are not part of it, per token."""
        own = len(super().places(run))
        reading = super().reading(run, places[:own], relevances[:own], layers)
        first = node_of(run.position("position")).seq
        inside = [COUNTED[self.positions](R) for R in self._positions.inside.values()]
        added = [R for seq, R in self._positions.added if seq > first or self.at != "position"]
        numbered = [run.per_token(R, node_of(t).axes) for t, R in zip(places[own:], relevances[own:], strict=True)]
        for R in [*inside, *added, *numbered]:
            reading.scores = reading.scores + _spread(run, reading, R)
        return reading


def _spread(run: Run, reading: Reading, scores: Tensor) -> Tensor:
    """Scores of tokens where tokens are read; at the pixels, each patch's score in equal parts."""
    if reading.grid is None and scores.shape != reading.scores.shape:
        raise ModelError(
            f"'pa-lrp' adds the relevance of positions to that of tokens ({scores.shape[1]}), but the model is read at "
            f"its raw input ({reading.scores.shape[1]} values). Use attn-lrp."
        )
    if reading.grid is None:
        return scores
    stream = next((s for s in split(run.tokens(), scores.shape[1], run) if s.grid is not None), None)
    if stream is None or stream.grid is None:
        return torch.zeros_like(reading.scores)
    start = stream.start + stream.patch_start
    patches = scores[:, start : start + math.prod(stream.grid)].unflatten(1, stream.grid)
    pixels = torch.nn.functional.interpolate(patches[:, None], reading.grid, mode="nearest")
    return pixels.flatten(1) * (math.prod(stream.grid) / math.prod(reading.grid))
