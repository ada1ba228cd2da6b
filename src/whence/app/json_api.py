"""The interface for programs: one input in, one explanation out, as JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import gradio as gr

from ..errors import ModelError, WhenceError
from .query import DEFAULT, Question
from .query_result import Classified
from .service import Desk
from .upload import uploaded

Answer = Callable[..., dict[str, Any]]


def answering(desk: Desk) -> Answer:
    """What programs call."""
    number = itertools.count()

    def explain(
        request: gr.Request, text: str = "", model: str = "", method: str = DEFAULT, target: str = "", image: str = "",
        second: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Explain one input: scores with the tokens or patches that they are of, and what the model says.

        Args:
            request: who asks; all that comes from one address waits in one queue.
            text: what the model shall read.
            model: the name of a served model; the first, if none is given.
            method: the name of a method.
            target: the name of a class; what the model says, if none is given.
            image: a picture as base64 (PNG, JPEG, ...), with or without ``data:image/...;base64,`` before it.
            second: the second text of a pair.

        Returns:
            The explanation as it is saved as JSON; ``{"error": ...}`` with a sentence where there is none.
        """
        who = f"program at {getattr(getattr(request, 'client', None), 'host', '')}"
        try:
            with uploaded(image, desk.limits) as path:
                targets = (target,) if target else ()
                asked = Question(model or desk.shelf.first.name, text, second, "", path, (method,), targets)
                running = desk.start(f"{who}, {next(number)}", lambda work: desk.answer(who, asked, work))
                outcome = desk.guarded(running.result)
            if isinstance(outcome, Classified) and outcome.found[0].refused:
                raise ModelError(outcome.found[0].refused)
            found: dict[str, Any] = json.loads(outcome.whole.content(".json"))
            return found
        except WhenceError as error:
            return {"error": str(error)}

    return explain
