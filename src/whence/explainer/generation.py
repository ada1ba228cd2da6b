"""Attribute every token of a generated text to the prompt and to the tokens generated before it.

There is one forward pass over the whole sequence, and batched backward passes (see
:mod:`whence.runs.batched_targets`): a token's target is its logit at the position before it, as in teacher forcing, so
nothing is run once per token.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .._utils.unwrapped import unwrapped
from ..errors import InputError, MethodError, ModelError, TargetError
from ..explanations.explanation import DisplayMixin, Explanation, Explanations
from ..explanations.inside_tables import token_names
from ..explanations.score_table import Table
from ..explanations.view_builder import view
from ..inputs.speech import SpeechReader
from ..inputs.text import TextReader
from ..inputs.token_output import can_generate
from ..inputs.vision_language import VisionLanguageReader
from ..methods.gradient_x_input import InputLevel
from ..methods.registry import create
from ..render.view_model import Card
from ..results.input_origin import AudioOrigin, TextOrigin
from ..results.result import Result
from ..targets.specs import At, every
from .attach_inputs import own_tokens, with_layout
from .chat_template import apply_template
from .continuation import Continuation, Prompt, continue_prompt, transcribe
from .explain import explain
from .transcript_times import Floats, TimedWord, in_columns, time_words, words_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap


class Generation(DisplayMixin, Sequence[Explanation]):
    """The explanations of a generated text: ``g[i]`` is that of the i-th generated token.

    Attributes:
        explanations: one for each generated token; its scores are of all tokens before it.

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
        """Return the explanation of each token."""
        return list(self.explanations)

    def _origin(self, name: str) -> TextOrigin:
        origin = self.explanations[0].origins[0][name]
        assert isinstance(origin, TextOrigin)
        return origin

    @property
    def written(self) -> TextOrigin:
        """The generated text with its tokens; in a decoder-only model, together with the prompt before it."""
        return self._origin("decoder" if "decoder" in self.explanations[0].streams else "text")

    @property
    def prompt(self) -> str:
        """The prompt; of a chat, as its template rendered it; of a transcript, nothing."""
        texts = self._origin("encoder" if "encoder" in self.explanations[0].streams else "text").texts
        return "" if "audio" in self.explanations[0].streams else texts[0]

    @property
    def text(self) -> str:
        """The generated text."""
        return self.written.texts[-1]

    @property
    def tokens(self) -> list[str]:
        """The generated tokens, decoded."""
        return [e.target_names[0] for e in self.explanations]

    @property
    def streams(self) -> dict[str, Tensor]:
        """Per stream, ``[generated, tokens]``: the relevance of each token for each generated one."""
        return {n: torch.cat([e.streams[n] for e in self.explanations]) for n in self.explanations[0].streams}

    @property
    def matrix(self) -> Tensor:
        """``[generated, tokens]``: a row for each generated token, a column for each token of the main stream."""
        return torch.cat([e.scores for e in self.explanations])

    def table(self, stream: str | None = None) -> Table:
        """Return the relevance of each token of a stream (by default the main one) for each generated token."""
        streams = self.streams
        if stream is not None and stream not in streams:
            raise InputError(f"There is no stream '{stream}' of tokens: choose one of {', '.join(streams)}.")
        scores = streams[stream or next(iter(streams))]
        values = scores.detach().double().cpu().numpy()
        title = f"What each token written came from, {self.explanations[0].method}"
        audio = self._audio if stream in (None, "audio") else None
        if audio is not None:
            values, names = in_columns(values, audio)
            return Table(title, values, tuple(self.tokens), names, "written", "seconds")
        names = token_names(self.explanations[0], scores.shape[1], stream)
        return Table(title, values, tuple(self.tokens), names, "written", "came from")

    def timed_words(self, share: float = 1 / 3) -> list[TimedWord]:
        """Return the words of a transcript, each with the seconds of audio that it came from.

        Args:
            share: a word's interval is the shortest that holds this share of its positive relevance.

        Example:
            >>> g = explainer.generate(audio=speech, method="generic-attention")
            >>> [word.text for word in g.timed_words() if word.start < 1]
        """
        if self._audio is None:
            raise InputError("Only the words of a transcript have seconds: this text was not generated from audio.")
        if not 0 < share <= 1:
            raise InputError(f"The share is above 0 and at most 1, not {share}.")
        relevance = self.streams["audio"].detach().double().cpu().numpy()
        return time_words(self.tokens, relevance, self._audio, share)

    @property
    def _audio(self) -> AudioOrigin | None:
        """The audio that the text is a transcript of."""
        origin = self.explanations[0].origins[0].get("audio")
        return origin if isinstance(origin, AudioOrigin) else None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return :attr:`matrix` as an array ``[generated, tokens]``."""
        return np.array(self.explanations, dtype=dtype, copy=copy)

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, which ``json.dumps`` takes: see ``Explanation.to_dict``.

        Returns:
            ``prompt``, ``text``, ``tokens`` (the generated ones) and ``explanations``, one for each of these.
        """
        return {
            "prompt": self.prompt, "text": self.text, "tokens": self.tokens,
            "explanations": [e.to_dict() for e in self.explanations],
        }  # fmt: skip

    def plot(
        self,
        ax: Any = None,
        *,
        cmap: str | Colormap | None = None,
        alpha: float | None = None,
        size: tuple[float, float] | None = None,
        stream: str | None = None,
        limit: float | None = None,
    ) -> Axes:
        """Draw the table of generated tokens by tokens on matplotlib axes: see ``Explanation.plot``.

        ``g[i].plot()`` draws the explanation of one generated token, ``g[2:5].plot()`` those of several.
        """
        return self.table(stream).plot(ax, cmap=cmap, alpha=alpha, size=size, limit=limit)

    def show(self) -> None:
        """Print the table of generated tokens by tokens."""
        self.table().show()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def drawn(self, ending: str) -> bytes:
        """Return the content of a figure or page.

        A figure shows the table, for audio under the waveform; for an image, a heat map for each generated token. A
        page also has the explanation of each generated token.
        """
        from ..render.figure.figure import KINDS
        from ..render.html.page import page
        from ..render.table_views import draw, label, section

        if ending[1:] in KINDS and self._audio is not None:
            from ..render.figure.transcript import draw as draw_transcript

            table, groups = self.table(), words_of(self.tokens)
            words = replace(
                table,
                title=f"The audio that each word came from, {self.explanations[0].method}",
                values=np.stack([_scaled(table.values[group].sum(0)) for group in groups]),
                rows=tuple("".join(self.tokens[i] for i in group).strip() for group in groups),
            )
            spans = [(word.start, word.end) for word in self.timed_words()]
            return draw_transcript(words, self._audio, spans, ending[1:])
        if ending[1:] in KINDS and "image" not in self.explanations[0].streams:
            return draw(self.table(), ending[1:])
        if ending != ".html":
            return super().drawn(ending)
        shown = [Card(label(name), (view(e),)) for name, e in zip(self.tokens, self.explanations, strict=True)]
        tables = [section(self.table(name), links=True) for name in self.explanations[0].streams]
        intro = ["Each row is a token that the model wrote; each column one that it had read by then."]
        return page(shown, "What the text came from", intro, tables).encode()

    def span(self, start: int = 0, stop: int | None = None) -> Explanation:
        """Return the explanation of several generated tokens as one target: the sum of their logits.

        It is the sum of their explanations, which requires a method that is linear in its target: one backward pass of
        gradients from a token's own logit. For other methods, use the target :func:`whence.span`.

        Args:
            start, stop: which generated tokens, as in a slice.
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


_IMAGE = (
    "{} takes no image with a prompt, or its processor is missing: give a vision-language model and its own processor "
    "(AutoProcessor) to the Explainer."
)

NOT_CAUSAL = (
    "{} does not write one token after the other: it also sees what comes after a token. Explain one that it fills in "
    "(explainer('a text with [MASK]')); a model that can be a decoder, too, must be loaded as one (is_decoder=True)."
)


def generate(
    model: nn.Module,
    reader: TextReader | VisionLanguageReader | SpeechReader,
    prompt: Any,
    image: Any,
    continuation: str | None,
    method: str,
    max_new_tokens: int,
    sampling: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Generation:
    """Generate a continuation, or take a given one, and explain every token of it: see ``Explainer.generate``."""
    name = type(unwrapped(model)).__name__
    if can_generate(unwrapped(model)) is False:
        raise ModelError(NOT_CAUSAL.format(name))
    if isinstance(reader, SpeechReader):
        continued = transcribe(reader, prompt, continuation, max_new_tokens, sampling)
        return explained(model, continued, reader.tokenizer, method, options)
    text_reader = reader if isinstance(reader, TextReader) else reader.text
    if isinstance(reader, VisionLanguageReader) and (image is not None or _has_image(prompt)):
        given = Prompt.with_image(reader, prompt, image)
    elif image is not None:
        raise InputError(_IMAGE.format(name))
    else:
        given = Prompt.read(text_reader, *apply_template(reader.tokenizer, prompt))
    continued = continue_prompt(model, text_reader, given, continuation, max_new_tokens, sampling)
    return explained(model, continued, reader.tokenizer, method, options)


def _has_image(prompt: Any) -> bool:
    """Return whether messages hold an image."""
    contents = [m.get("content") for m in prompt if isinstance(m, Mapping)] if isinstance(prompt, Sequence) else []
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, Mapping) and part.get("type") == "image" for part in parts)


def explained(
    model: nn.Module, continued: Continuation, tokenizer: Any, method: str, options: Mapping[str, Any]
) -> Generation:
    """Explain every token of a continuation, in one forward pass over it and its prompt."""
    targets = [At(continued.first + i, token) for i, token in enumerate(continued.ids)]
    found = explain(model, continued.inputs, method, target=every(targets), **options)
    if any(_looks_ahead(e, continued.first + i) for i, e in enumerate(found)):
        raise ModelError(NOT_CAUSAL.format(type(unwrapped(model)).__name__))
    return Generation([_attach_text(e, continued, i, tokenizer) for i, e in enumerate(found)])


def _scaled(row: Floats) -> Floats:
    """Return scores relative to the strongest of them."""
    return row / (np.abs(row).max() or 1.0)


def _adds_up(e: Explanation) -> bool:
    """Whether the explanation of a sum of logits is the sum of explanations: one plain backward pass from a logit."""
    try:
        method = create(e.method, dict(e.options))
    except MethodError:  # a sum of several methods, or one that is not registered here
        return False
    book = method.rulebook()
    if not isinstance(method, InputLevel) or book.phase is not None or book.maps or not book.books:
        return False
    if e.ledger is None or e.target is None:  # scores that were changed, or a function as target
        return False
    return torch.equal(e.value, e.logits.gather(1, e.target[:, None])[:, 0])


def _looks_ahead(e: Explanation, last: int) -> bool:
    """Whether a later position than the predicting one has relevance; methods without a ledger are not checked."""
    if e.ledger is None or "decoder" in e.streams:
        return False
    scores = e.streams.get("text", e.scores)
    last += own_tokens(e)
    return bool(scores[:, last + 1 :].abs().sum() > 1e-6 * scores.abs().sum())


def _attach_text(e: Explanation, continued: Continuation, i: int, tokenizer: Any) -> Explanation:
    """Return the explanation of the i-th token with its text; later tokens are no part of its input."""
    if continued.layout is not None and "image" in e.streams:
        e = with_layout(e, continued.layout)
    main = next(iter(e.streams))
    if "audio" in continued.origins and main != "audio":
        e = replace(e, streams={"audio" if name == main else name: scores for name, scores in e.streams.items()})
        main = "audio"
    special = e.special.clone()
    own = own_tokens(e)
    origins = dict(continued.origins)
    if main not in ("image", "audio"):  # the main stream is the text's
        if "decoder" not in e.streams:
            special[:, own + continued.first + i + 1 :] = True
        added = torch.tensor(continued.special, device=special.device)
        special[:, own : own + len(added)] |= added
        text = origins.get(main)
        origins |= {main: text.after(own)} if isinstance(text, TextOrigin) else {}
    predicted = () if e.prediction is None else (str(tokenizer.decode([int(e.prediction[0])])),)
    return replace(
        e,
        special=special,
        origins=(origins,),
        target_names=(str(tokenizer.decode([continued.ids[i]])),),
        prediction_names=predicted,
    )
