"""The place on the page where a picture is dropped."""

from __future__ import annotations

from typing import Any

import gradio as gr


def picture(**options: Any) -> gr.Image:
    """A place for a picture, known by the path of its file.

    Gradio would open the file to see what it is, and speak for itself where it cannot. Here whoever reads it says what
    is wrong with it. (A class of its own would be shorter, but Gradio writes files beside such classes.)
    """
    made = gr.Image(type="filepath", sources=["upload", "clipboard"], **options)
    made.preprocess = _path  # type: ignore[method-assign]  # of this one alone
    return made


def _path(payload: Any) -> str | None:
    """Where the server has put it."""
    return None if payload is None or not payload.path else str(payload.path)
