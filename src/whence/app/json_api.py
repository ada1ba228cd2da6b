"""The JSON API: one input in, one explanation out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import gradio as gr

from ..errors import ModelError, WhenceError
from .query import DEFAULT_METHOD, Query
from .query_result import ClassificationResult
from .service import ExplanationService
from .upload import uploaded_image


def explain_endpoint(service: ExplanationService) -> Callable[..., dict[str, Any]]:
    """Return the function that serves ``/api/explain``."""
    number = itertools.count()

    def explain(
        request: gr.Request, text: str = "", model: str = "", method: str = DEFAULT_METHOD, target: str = "",
        image: str = "", second: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Explain one input: scores with the tokens or patches that they belong to, and the prediction.

        Args:
            request: the HTTP request; all requests from one address wait in one queue.
            text: the input text.
            model: the name of a served model; the first by default.
            method: the name of a method.
            target: the name of a class; the prediction by default.
            image: an image as base64 (PNG, JPEG, ...), with or without ``data:image/...;base64,`` before it.
            second: the second text of a pair.

        Returns:
            The explanation as it is saved as JSON; ``{"error": ...}`` with a sentence where there is none.
        """
        visitor = f"program at {getattr(getattr(request, 'client', None), 'host', '')}"
        try:
            with uploaded_image(image, service.limits) as path:
                query = Query(
                    model=model or service.models.first.name,
                    text=text,
                    second=second,
                    upload=path,
                    methods=(method,),
                    targets=(target,) if target else (),
                )
                # its own number keeps a request from cancelling the one before
                running = service.start(f"{visitor}, {next(number)}", lambda task: service.answer(visitor, query, task))
                result = service.log_defects(running.result)
            if isinstance(result, ClassificationResult) and result.methods[0].error:
                raise ModelError(result.methods[0].error)
            saved: dict[str, Any] = json.loads(result.export.content(".json"))
            return saved
        except WhenceError as error:
            return {"error": str(error)}

    return explain
