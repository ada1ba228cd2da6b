"""The component of the page that takes an image."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

import gradio as gr


def _read_path(_: gr.Image, payload: Any) -> str | None:
    """Return the path of the uploaded file, without opening it: its reader reports what is wrong with it."""
    return None if payload is None or not payload.path else str(payload.path)


#: an image by the path of its file; created without Gradio's metaclass, which would write a file beside the source
ImageUpload: Any = ABCMeta.__new__(
    type(gr.Image), "ImageUpload", (gr.Image,), {"preprocess": _read_path, "is_template": True, "__module__": __name__}
)
