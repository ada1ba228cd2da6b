"""PA-LRP (Bakish, Cohen, Ali, Chefer, Wolf, NeurIPS 2025): LRP that keeps the relevance of positional encodings.

An input is a pair of a token and its position. LRP ends at the token's embedding, and the relevance of its position is
absorbed by constants. Here it is kept; the rules are those of `attn-lrp` except for these:

- **added embeddings** ``z = E + P`` (learned, sinusoidal): ``R_P = P dy/dz`` beside ``R_E = E dy/dz``. Read at
  ``"position"`` (the default) both are part of the first block's input; read at ``"token"`` or ``"pixel"``, ``R_P`` is
  added: to the token, or spread evenly over the pixels of the patch. So are encodings added later, between blocks;
- **rotations** ``q cos + rot(q) sin`` of queries and keys: each product gives half to the vector and half to the
  rotation (the epsilon rule on the sum leaves the gradient as it is);
- **biases** added to attention scores (ALiBi, T5's relative positions): ``R_b = b dy/ds``, to the key. (The paper has
  no rule for these; this is the natural one.)

Of rotations and biases each layer's relevance counts by its absolute value, queries and keys together, cos and sin
separately, as in the published code (``positions="absolute"``); the paper's eq. 11 keeps the positive ones
(``"positive"``). With ``attention="constant"`` these rules have no effect: no relevance reaches queries and keys.

Where the published code differs: it divides scores by their largest magnitude, and clamps image maps at 0; its vision
code has ``gamma=0.05, conv_gamma=100`` and constant probabilities, and drops half of each attention's relevance
(``attention="halved"``); relevance starts as 1 there, here as the logit. It also adds 1e-6 or 1e-8, whatever the
sign, to every denominator, which the gradient form here does not have: a difference of up to 1.1e-4 of the largest
score on the text model it was compared on, 1.8e-3 of the largest pixel on the vision model.

Cost: one forward pass, one backward pass, with unfused attention.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..errors import MethodError, ModelError
from ..propagation.rule import rule
from ..propagation.rulebook import Rulebook
from ..propagation.rules import gradient as rules
from ..runs.boundaries import BackwardContext
from ..runs.run import Run
from ..runs.token_streams import split
from ..tracing.axes import Dim
from ..tracing.node import Node
from ..tracing.op_call import Call, RuleResult
from ..tracing.reductions import per_token, precise
from ..tracing.tensor_info import attach, distant, node_of, on_gradient
from .attn_lrp import AttnLRP
from .base import Reading
from .gradient_x_input import InputLevel
from .registry import method

#: how the relevance of rotations and biases counts
COUNTING: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute": torch.abs,
    "positive": lambda R: R.clamp(min=0),
    "signed": lambda R: R,
}


@dataclass
class PositionalEncoding:
    """A sum or product with a constant that encodes positions, and the constant's relevance there.

    Attributes:
        node: the node of the operation's output.
        place: where the gradient of the output arrives.
        constant: the constant.
        value: the factor that turns a gradient there into relevance.
        part: the constant's fraction of that relevance.
        relevance: ``[batch, tokens]``; ``None`` before a backward pass.
    """

    node: Node
    place: Tensor
    constant: Tensor
    value: Tensor
    part: float
    relevance: Tensor | None = None

    def watch(self, way: BackwardContext) -> RemovableHandle:
        """Record the constant's part of the relevance, and subtract it, until the handle is removed."""

        def hook(gradient: Tensor) -> Tensor | None:
            self._record(way, gradient * self.value * self.part)
            return gradient * (1 - self.part) if self.part < 1 else None  # a sum leaves the gradient as it is

        return on_gradient(self.place, hook)

    def set(self, relevance: Tensor | None) -> None:
        """Set the relevance that passed in a backward pass for several targets, or forget it."""
        self.relevance = relevance

    def _record(self, way: BackwardContext, relevance: Tensor) -> None:
        relevance = torch.where(torch.isfinite(self.constant), precise(relevance), 0.0)  # a mask of infinities
        axes = list(self.node.axes)
        for query in _token_dims(self.node, way.tokens)[:-1]:  # scores have queries and keys
            relevance = relevance.sum(query, keepdim=True)
            axes[query] = ()
        self.relevance = per_token(relevance, tuple(axes), way.batch, way.tokens)

    def of(self, tokens: Dim) -> bool:
        """Return whether the constant differs between tokens, and is not a mask that multiplies scores or a map."""
        if self.node.softmax is not None or (self.node.inside is None and self.node.kind != "shift-by-constant"):
            return False
        if self.node.kind == "scale" and _is_mask(self.constant):
            return False
        dims = [d - len(self.node.axes) for d in _token_dims(self.node, tokens)]
        return any(-d <= self.constant.dim() and _differs(self.constant, d) for d in dims)

    @property
    def may_encode(self) -> bool:
        """Whether the constant differs along a dimension that may hold tokens, also those of a window: not features."""
        if self.node.softmax is not None or (self.node.inside is None and self.node.kind != "shift-by-constant"):
            return False
        count = self.constant.dim()
        last = self.node.inside is not None and count > 1  # of scores, the keys
        return any(_differs(self.constant, d) for d in range(count if last else count - 1))


@dataclass
class PositionRecorder:
    """A recorder of a forward pass's constants, any of which may encode positions: their context is known later.

    Attributes:
        candidates: each operation with a constant.
    """

    candidates: list[PositionalEncoding] = field(default_factory=list, repr=False)

    def rotate(self, call: Call) -> RuleResult:
        """Run a product with a constant: half to each, if the constant encodes positions of queries or keys."""
        constant = _constant(call)
        out = call.run()
        if constant is None or call.name != "mul":
            return RuleResult(out)
        record = functools.partial(self._add, out, constant, out.detach(), 0.5)
        return RuleResult(out, saved=(out,), on_output=record)

    def shift(self, call: Call) -> RuleResult:
        """Run a sum with a constant, which gets its own share."""
        constant = _constant(call)
        out = call.run()
        if constant is None or call.name != "add" or "alpha" in call.kwargs:
            return RuleResult(out)
        return RuleResult(out, on_output=functools.partial(self._add, out, constant, constant, 1.0))

    def encodings(self, tokens: Dim) -> list[PositionalEncoding]:
        """Return the constants that encode positions of some tokens, before a backward pass."""
        return [replace(encoding) for encoding in self.candidates if encoding.of(tokens)]

    def precede(self, first: Node, tokens: Dim) -> bool:
        """Return whether positional encodings are part of a tensor, and none is added inside windows after it.

        Args:
            first: the tensor.
            tokens: its tokens; what encodes their positions later is followed.
        """
        before = [encoding for encoding in self.candidates if encoding.node.seq <= first.seq]
        after = [encoding for encoding in self.candidates if encoding.node.seq > first.seq and not encoding.of(tokens)]
        return any(e.may_encode for e in before) and not any(e.may_encode for e in after)

    def _add(self, out: Tensor, constant: Tensor, value: Tensor, part: float, node: Node) -> None:
        self.candidates.append(PositionalEncoding(node, distant(attach(out, node)), constant, value, part))


def _differs(constant: Tensor, dim: int) -> bool:
    return bool((constant != constant.narrow(dim, 0, 1)).any())


def _is_mask(constant: Tensor) -> bool:
    """Return whether a constant has one value but for zeros."""
    kept = constant[constant != 0]
    return kept.numel() > 0 and bool((kept == kept[0]).all())


def _token_dims(node: Node, tokens: Dim) -> list[int]:
    return [d for d, dim in enumerate(node.token_axes) if dim == tokens]


def _constant(call: Call) -> Tensor | None:
    """Return the constant operand of a sum or product with one tensor that depends on the input."""
    others = [t for t in call.args[:2] if isinstance(t, Tensor) and not t.requires_grad and t.numel() > 1]
    if len(others) != 1 or len(call.traced) != 1:
        return None
    return others[0].clone() if call.inplace and others[0] is call.args[0] else others[0]  # before it is overwritten


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
    lrp: ClassVar[bool] = True
    shows: ClassVar[str] = "The answer's score handed back layer by layer, with the share of positions told apart."
    beware: ClassVar[str] = "Be careful where the ledger does not balance."

    attention: str = "split"
    gamma: float | None = None
    conv_gamma: float | None = None
    positions: str = "absolute"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions not in COUNTING:
            raise MethodError(f"`positions` must be one of {', '.join(COUNTING)}, not {self.positions!r}.")
        if self.attention not in ("split", "constant", "halved"):
            raise MethodError(f"`attention` must be 'split', 'constant' or 'halved', not {self.attention!r}.")
        self._base_rulebook()

    def _base_rulebook(self) -> Rulebook:
        attention = "split" if self.attention == "split" else "constant"
        return AttnLRP(self.at, attention, self.gamma, self.conv_gamma).rulebook()

    def rulebook(self) -> Rulebook:
        """Return the rules of `attn-lrp`, with positional encodings recorded."""
        self._positions = PositionRecorder()
        book = {
            **self._base_rulebook().rules,
            "scale": rule(self._positions.rotate),
            "shift-by-constant": rule(self._positions.shift),
        }
        if self.attention == "halved":
            book |= dict.fromkeys(("attention", "mix"), rules.halve_heads)
        return Rulebook(book, maps=True, heads=False)

    def places(self, run: Run) -> list[Tensor]:
        """Return where the method reads; at ``"token"``, also the embeddings of position ids that the user passed.

        Backward passes from here on record the relevance of positions.
        """
        if run.windowed and not self._positions.precede(node_of(run.position(self.at)), run.tokens):
            found = "is inside windows of its tokens, or over merged tokens"
            if run.constant_keys:
                found = f"reads {run.constant_keys} keys beside those of its tokens (a tuned prefix)"
            raise ModelError(
                f"The model's attention {found}, whose positions '{self.name}' does not "
                "follow. Methods that give positions no relevance of their own "
                "(attn-lrp, conservative-lrp) work."
            )
        encodings = self._positions.encodings(run.tokens)
        if run.trace.is_split and any(e.node.inside is not None for e in encodings):
            raise ModelError(
                "The model is split over processes (tensor parallelism), and its positions are encoded inside "
                f"attention (rotary): '{self.name}' would read those of one process's heads. Load the whole model in "
                "one process, or use attn-lrp."
            )
        run.watch(*encodings)
        numbered = [s.tensor for s in run.trace.sources if s.embedded and "position" in s.name]
        return super().places(run) + (numbered if self.at == "token" else [])

    def reading(
        self, run: Run, places: list[Tensor], relevances: list[Tensor], layers: Tensor | None = None
    ) -> Reading:
        """Return the relevance at each place, plus that of positions that are not part of it, per token."""
        own = len(super().places(run))
        reading = super().reading(run, places[:own], relevances[:own], layers)
        first = node_of(run.position("position")).seq
        recorded = [e for e in run.watched if isinstance(e, PositionalEncoding)]
        found = [(e, e.relevance) for e in recorded if e.relevance is not None]
        inside = [COUNTING[self.positions](R) for R in _by_layer(found).values()]
        added = [R for e, R in found if e.node.inside is None and (e.node.seq > first or self.at != "position")]
        numbered = [run.per_token(R, node_of(t).axes) for t, R in zip(places[own:], relevances[own:], strict=True)]
        scores = reading.scores
        for R in [*inside, *added, *numbered]:
            scores = scores + _spread(run, reading, R)
        return replace(reading, scores=scores)


def _by_layer(found: list[tuple[PositionalEncoding, Tensor]]) -> dict[tuple[int, int], Tensor]:
    """Return ``[batch, tokens]`` for each attention (by index) and constant (by its values), queries plus keys."""
    out: dict[tuple[int, int], Tensor] = {}
    constants: list[Tensor] = []
    for encoding, relevance in found:
        if encoding.node.inside is not None:
            own = encoding.constant
            number = next((i for i, known in enumerate(constants) if _is_same(known, own)), len(constants))
            constants += [own] if number == len(constants) else []
            key = encoding.node.inside, number
            out[key] = out[key] + relevance if key in out else relevance
    return out


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two constants are the same up to a factor, perhaps for one sample and for each.

    Queries may be multiplied by the scale of attention before they are rotated, or after.
    """
    alike = a.dim() == b.dim() and all(
        1 in sizes or sizes[0] == sizes[1] for sizes in zip(a.shape, b.shape, strict=True)
    )
    if a.data_ptr() == b.data_ptr() or not alike:
        return a.data_ptr() == b.data_ptr()
    a, b = (t / t.abs().max().clamp(min=torch.finfo(t.dtype).tiny) for t in (a, b))
    return bool(((a - b).abs() <= 1e-5).all())


def _spread(run: Run, reading: Reading, scores: Tensor) -> Tensor:
    """Return scores of tokens where tokens are read; at pixels, each patch's score in equal parts."""
    if reading.grid is None and scores.shape != reading.scores.shape:
        raise ModelError(
            f"'pa-lrp' adds the relevance of positions to that of tokens ({scores.shape[1]}), but the model is read at "
            f"its raw input ({reading.scores.shape[1]} values). Use attn-lrp."
        )
    if reading.grid is None:
        return scores
    stream = next((s for s in split(run.tokens, scores.shape[1], run) if s.grid is not None), None)
    if stream is None or stream.grid is None:
        return torch.zeros_like(reading.scores)
    start = stream.start + stream.patch_start
    patches = scores[:, start : start + math.prod(stream.grid)].unflatten(1, stream.grid)
    pixels = torch.nn.functional.interpolate(patches[:, None], reading.grid, mode="nearest")
    return pixels.flatten(1) * (math.prod(stream.grid) / math.prod(reading.grid))
