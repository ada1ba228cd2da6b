"""What MkDocs needs to know: pages that stand outside of ``docs``, and notebooks, are pages of the site as well.

The files in ``docs`` link to each other, and to files of the repository, as a code host wants it. Here links that leave
``docs`` are turned to the page that the site has in that place. One that leads nowhere is left, and a strict build
names it.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from tools.docgen.notebook import as_markdown

ROOT = Path(__file__).resolve().parents[2]
#: files of the repository, and the pages that they are on the site
OUTSIDE = {path.name: f"{path.stem.lower()}.md" for path in sorted(ROOT.glob("*.md"))}
OUTSIDE |= {"README.md": "index.md", "tools/training/README.md": "training.md", "LICENSE": "LICENSE.txt"}
#: what does not stand beside a page: where the tabs above are enough, and where tables need the room
HIDDEN = {"index.md": "navigation", "quickstart.md": "navigation", "methods.md": "toc", "performance.md": "toc"}
HIDDEN |= {"results.md": "toc", "architectures.md": "toc", "architectures-timm.md": "toc"}
LOADED = r'script|img|iframe|source|link rel="(?:stylesheet|preconnect|icon)"'
ELSEWHERE = re.compile(rf'<(?:{LOADED})[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)((?:#[^)\s]*)?)\)")


def on_config(config: Any) -> Any:
    """Put pages that have no place among the others at the end."""
    pages = {*OUTSIDE.values(), *(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))}
    placed = set(re.findall(r"[\w/.-]+\.md", json.dumps(config.nav)))
    config.nav[-1]["Project"] += sorted(page for page in pages - placed if page.endswith(".md"))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    for source, page in OUTSIDE.items():
        if (ROOT / source).exists():
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for notebook in [f for f in files if f.src_uri.endswith(".ipynb")]:
        text = as_markdown(Path(str(notebook.abs_src_path)))
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that the repository and the site have in different places."""
    page.meta["hide"] = [HIDDEN.get(page.file.src_uri, "")]
    sources = {made: source for source, made in OUTSIDE.items()}
    here = page.file.src_uri
    source = sources.get(here, f"docs/{here}")
    return LINK.sub(lambda m: link(m[1], moved(m[2], source, here), m[3]), markdown)


def link(text: str, place: str | None, part: str) -> str:
    """A link, or its text alone where the site has no such page."""
    return text if place is None else f"[{text}]({place}{part})"


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would load anything from elsewhere."""
    found = ELSEWHERE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found[0]}. Keep it in docs/.")
    return output


def moved(path: str, source: str, here: str) -> str | None:
    """Where a link of the file ``source`` of the repository leads to from the page ``here`` of the site.

    Returns:
        The path as it is if there is no such file (a strict build names it); ``None`` if the site does not have it.
    """
    place = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if place in OUTSIDE:
        place = OUTSIDE[place]
    elif place.startswith("docs/"):
        place = place.removeprefix("docs/")
        if not here.startswith("notebooks/"):  # a notebook's own page links to it, to be downloaded
            place = place.replace(".ipynb", ".md")
    else:
        return None if (ROOT / place).exists() else path
    return posixpath.relpath(place, posixpath.dirname(here) or ".")
