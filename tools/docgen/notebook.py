"""Notebooks: executed, and as pages of the site."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


def executed(path: Path) -> Any:
    """The notebook as it is after a run, in a fresh kernel and an empty folder; a cell that fails is an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, coalesce_streams=True, resources=place).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = _small(output.data["image/png"])
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def _small(code: str) -> str:
    """A picture in base64, in 256 colours and at most 1,000 pixels wide."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(code))).convert("RGB")
    picture.thumbnail((1000, 4000), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.quantize(256).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def written(path: Path) -> None:
    """Run a notebook and keep what it shows."""
    import nbformat

    nbformat.write(executed(path), path)


def as_markdown(path: Path) -> str:
    """The notebook, cell by cell, in Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [f"```python\n{source}\n```", *map(_shown, cell["outputs"])]
    parts.insert(1, f"[Download this notebook]({path.name}){{ .md-button download }}")  # below its heading
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """One output: a picture, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        code = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="What the cell above draws" width="760" src="data:image/png;base64,{code}">'
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text else ""
