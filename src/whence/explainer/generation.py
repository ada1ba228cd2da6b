"""Generated text: for every token that a language model wrote, what it came from in the prompt and in what it wrote.

One forward over the whole sequence, and the backwards of many tokens at once (see
:mod:`whence.runs.batched_targets`): a token's target is its logit at the position before it, as in teacher
forcing, so that nothing is run once per token.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, MethodError, ModelError, TargetError
from ..explanations.explanation import Explanation, Explanations, Looking
from ..explanations.inside_tables import token_names
from ..explanations.score_table import Table
from ..explanations.view_builder import view
from ..inputs.text import TextReader
from ..inputs.token_output import can_write
from ..methods.gradient_x_input import InputLevel
from ..methods.registry import create
from ..render.view_model import Card
from ..results.input_origin import TextOrigin
from ..results.result import Result
from ..targets.specs import At, every
from .chat_template import Messages, templated
from .continuation import Written, write
from .explain import explain


class Generation(Looking, Sequence[Explanation]):
    """What each token of a generated text came from: ``g[i]`` is the explanation of the i-th token written.

    Attributes:
        explanations: one for each token written; its scores are of all tokens before it.

    Example:
        >>> g = explainer.generate("The capital of Italy is", max_new_tokens=4)
        >>> g.text
        >>> g.save("why.html")
    """

    def __init__(self, explanations: Sequence[Explanation]) -> None:
        self.explanations = Explanations(explanations)
        if not explanations:
            raise InputError("There is no generated token to explain.")

    def __len__(self) -> int:
        return len(self.explanations)

    def __getitem__(self, index: Any) -> Any:
        return self.explanations[index]

    def results(self) -> list[Result]:
        """An explanation of each token."""
        return list(self.explanations)

    def _origin(self, name: str) -> TextOrigin:
        origin = self.explanations[0].origins[0][name]
        assert isinstance(origin, TextOrigin)
        return origin

    @property
    def written(self) -> TextOrigin:
        """The text that holds what was written, with its tokens: of a decoder alone, the prompt before it."""
        return self._origin("decoder" if "decoder" in self.explanations[0].streams else "text")

    @property
    def prompt(self) -> str:
        """What the model was given: with a chat template, as the template wrote it."""
        return self._origin("encoder" if "encoder" in self.explanations[0].streams else "text").texts[0]

    @property
    def text(self) -> str:
        """What the model wrote."""
        return self.written.texts[-1]

    @property
    def tokens(self) -> list[str]:
        """The tokens written, as they read."""
        return [e.target_names[0] for e in self.explanations]

    @property
    def streams(self) -> dict[str, Tensor]:
        """Per stream of tokens, ``[written, tokens]``: what each token written drew from each."""
        return {n: torch.cat([e.streams[n] for e in self.explanations]) for n in self.explanations[0].streams}

    @property
    def matrix(self) -> Tensor:
        """``[written, tokens]``: a row for each token written, a column for each token of the main stream."""
        return torch.cat([e.scores for e in self.explanations])

    def table(self, stream: str | None = None) -> Table:
        """What each token written drew from each token of a stream (the main one, if none is named)."""
        streams = self.streams
        if stream is not None and stream not in streams:
            raise InputError(f"There is no stream '{stream}' of tokens: choose one of {', '.join(streams)}.")
        scores = streams[stream or next(iter(streams))]
        names = token_names(self.explanations[0], scores.shape[1], stream)
        values = scores.detach().double().cpu().numpy()
        title = f"What each token written came from, {self.explanations[0].method}"
        return Table(title, values, tuple(self.tokens), names, "written", "came from")

    def show(self) -> None:
        """Print it: what each token written drew on most."""
        self.table().show()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def drawn(self, ending: str) -> bytes:
        """What a picture or page of it holds: the table; in a page, the text as each token written saw it besides."""
        from ..render.figure.figure import KINDS
        from ..render.html.page import page
        from ..render.score_table import draw, label, section

        if ending[1:] in KINDS:
            return draw(self.table(), ending[1:])
        if ending != ".html":
            return super().drawn(ending)
        shown = [Card(label(name), (view(e),)) for name, e in zip(self.tokens, self.explanations, strict=True)]
        tables = [section(self.table(name), links=True) for name in self.explanations[0].streams]
        intro = ["Each row is a token that the model wrote; each column one that it had read by then."]
        return page(shown, "What the text came from", intro, tables).encode()

    def span(self, start: int = 0, stop: int | None = None) -> Explanation:
        """The relevance of several tokens written, as one target: the sum of their logits.

        It is the sum of their rows, which is that of the span if a method is linear in what it explains: one backward
        of gradients from a token's own logit. Others are refused: :func:`whence.span` is the target for them.

        Args:
            start, stop: which tokens written, as in a slice.
        """
        if not all(end is None or hasattr(end, "__index__") for end in (start, stop)):
            raise TargetError(f"Tokens are chosen by whole numbers, as in a slice, not from {start!r} to {stop!r}.")
        chosen = self.explanations[start:stop]
        if not chosen:
            raise TargetError(f"There is no token from {start} to {stop}: {len(self)} were written.")
        if not all(map(_adds_up, chosen)):
            raise TargetError(
                f"Of '{chosen[0].method}' explanations of tokens do not add up to that of a span, with these options. "
                "Explain the span itself: target=whence.span(start, tokens); or use conservative-lrp, attn-lrp or "
                "gradient-x-input."
            )
        total = functools.reduce(operator.add, reversed(chosen))
        named = "".join(e.target_names[0] for e in chosen)
        return replace(
            total, logits=total.value, target=None, target_names=(named,), prediction=None, prediction_names=()
        )


AHEAD = (
    "{} does not write one token after the other: it also sees what comes after a token. Explain one that it fills in "
    "(explainer('a text with [MASK]')); a model that can be a decoder, too, must be loaded as one (is_decoder=True)."
)


def generate(
    model: nn.Module,
    reader: TextReader,
    prompt: str | Messages,
    continuation: str | None,
    method: str,
    max_new_tokens: int,
    sampling: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Generation:
    """Let a model write (or take what it is said to have written), and explain every token. See ``Explainer``."""
    if can_write(model) is False:
        raise ModelError(AHEAD.format(type(model).__name__))
    text, own = templated(reader.tokenizer, prompt)
    written = write(model, reader, text, own, continuation, max_new_tokens, sampling)
    targets = [At(written.first + i, token) for i, token in enumerate(written.ids)]
    found = explain(model, written.inputs, method, target=every(targets), **options)
    if any(_looks_ahead(e, written.first + i) for i, e in enumerate(found)):
        raise ModelError(AHEAD.format(type(model).__name__))
    return Generation([_attached(e, written, i, reader.tokenizer) for i, e in enumerate(found)])


def _adds_up(e: Explanation) -> bool:
    """Whether explanations like this one sum to that of a sum: one plain backward, from the target's own logit."""
    try:
        method = create(e.method, dict(e.options))
    except MethodError:  # several methods, or one that is not registered here
        return False
    book = method.rulebook()
    if not isinstance(method, InputLevel) or book.phase is not None or book.maps or not book.books:
        return False
    if e.ledger is None or e.target is None:  # other scores than the method's own, or of a function
        return False
    return torch.equal(e.value, e.logits.gather(1, e.target[:, None])[:, 0])


def _looks_ahead(e: Explanation, last: int) -> bool:
    """Whether relevance went behind the position that answered; without books, a method may put it anywhere."""
    if e.ledger is None or "decoder" in e.streams:
        return False
    return bool(e.scores[:, last + 1 :].abs().sum() > 1e-6 * e.scores.abs().sum())


def _attached(e: Explanation, written: Written, i: int, tokenizer: Any) -> Explanation:
    """The explanation of the i-th token, with the text; what comes after it is no part of its input."""
    special, last = e.special.clone(), written.first + i
    if "decoder" not in e.streams:
        special[:, last + 1 :] = True
    marks = torch.tensor(written.special, device=special.device)
    special[:, : len(marks)] |= marks
    said = None if e.prediction is None else str(tokenizer.decode([int(e.prediction[0])]))
    return replace(
        e,
        special=special,
        origins=(dict(written.origins),),
        target_names=(str(tokenizer.decode([written.ids[i]])),),
        prediction_names=() if said is None else (said,),
    )
