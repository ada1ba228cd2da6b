"""The place on the page where a picture is dropped."""

from __future__ import annotations

from typing import Any

import gradio as gr


class Picture(gr.Image):
    """A picture by the path of its file, which is not opened here: whoever reads it says what is wrong with it."""

    is_template = True  # the browser draws what it draws for the class above

    def preprocess(self, payload: Any) -> str | None:
        """Where the server has put it."""
        return None if payload is None or not payload.path else str(payload.path)
