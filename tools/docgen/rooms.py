"""The rooms of the package, from the import contract: a drawing with their arrows, and a table with a line for each.

Rows of the drawing are the layers of the contract in ``pyproject.toml``. Arrows are the imports that are there (lazy
ones counted), without those that follow from others and those to the ground floor, which every room may use.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import grimp
import networkx

from tools.docgen.page import between

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "whence"
DRAWING = ROOT / "docs" / "site" / "rooms.svg"
#: the ground floor
GROUND = ("_utils", "models", "errors")
#: where a room stands across the drawing, from 0 (left) to 4 (right); others stand in the middle
COLUMNS = {
    "app": 1, "jobs": 3, "bias_probe": 4, "counterfactuals": 0, "localisation": 2, "evaluation": 1, "datasets": 3,
    "explanations": 1, "render": 1, "inputs": 3, "results": 1, "targets": 3,
}  # fmt: skip
WIDTH, HEIGHT, BOX, GAP = 150, 30, 130, 58  # of a column, a box, a box across, and from row to row


class Place(NamedTuple):
    """The middle of a box."""

    x: float
    y: float


def layers() -> list[list[str]]:
    """Return the layers of the import contract, from the top, each with its rooms."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    found = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in layer.split("|")] for layer in found]


def arrows() -> list[tuple[str, str]]:
    """Return which room imports which, without arrows that follow from others."""
    graph = grimp.build_graph("whence", exclude_type_checking_imports=True)
    rooms = [room for layer in layers() for room in layer if room not in GROUND]
    imports = networkx.DiGraph(
        (a, b)
        for a in rooms
        for b in rooms
        if a != b and graph.direct_import_exists(importer=f"whence.{a}", imported=f"whence.{b}", as_packages=True)
    )
    return sorted(networkx.transitive_reduction(imports).edges)


def holds(room: str) -> str:
    """Return what a room holds, in Markdown: the first paragraph of its docstring."""
    path = PACKAGE / room / "__init__.py"
    source = path if path.exists() else PACKAGE / f"{room}.py"
    said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return re.sub(r"``|:\w+:(?=`)", lambda mark: "`" * (mark[0] == "``"), said.split("\n\n")[0].replace("\n", " "))


def table() -> str:
    """Return a Markdown table with a line for each room, from the top."""
    lines = ["| room | holds |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{room}` | {holds(room)} |" for layer in layers() for room in layer)])


def drawing() -> str:
    """Return the drawing as SVG."""
    above = [layer for layer in layers() if not set(layer) & set(GROUND)]
    places = {
        room: Place((COLUMNS.get(room, 2) + 0.5) * WIDTH, (row + 0.5) * GAP)
        for row, layer in enumerate(above)
        for room in layer
    }
    lines = [_arrow(places[a], places[b]) for a, b in arrows()]
    boxes = [_box(room, place) for room, place in places.items()]
    ground = Place(2.5 * WIDTH, (len(above) + 0.5) * GAP)
    boxes.append(_box(f"{', '.join(GROUND)}: used by every room", ground, 5 * WIDTH - 20))
    size = f"{5 * WIDTH} {(len(above) + 1) * GAP}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="13">\n'
        "<title>The rooms of the package and what they import</title>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#64748b"/></marker></defs>\n'
    )
    return head + "\n".join([*lines, *boxes]) + "\n</svg>\n"


def _box(room: str, place: Place, width: float = BOX) -> str:
    left, top = place.x - width / 2, place.y - HEIGHT / 2
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{HEIGHT}" rx="6" fill="#eef2ff" stroke="#6366f1"/>'
        f'<text x="{place.x:g}" y="{place.y + 4.5:g}" text-anchor="middle" fill="#1e1b4b">{room}</text>'
    )


def _arrow(start: Place, end: Place) -> str:
    """Draw an arrow from the bottom of a box to the top of another, bent where it would run over boxes between them."""
    bottom, top = start.y + HEIGHT / 2, end.y - HEIGHT / 2
    straight = end.y - start.y <= GAP or start.x != end.x
    bend = 0 if straight else (-1 if start.x < 2.5 * WIDTH else 1) * BOX * 0.75
    middle = f"{start.x + bend:g} {bottom + GAP * 0.5:g} {end.x + bend:g} {top - GAP * 0.5:g}"
    return (
        f'<path d="M{start.x:g} {bottom:g}C{middle} {end.x:g} {top:g}" fill="none" stroke="#64748b" '
        'stroke-width="1.2" marker-end="url(#tip)"/>'
    )


def pages() -> dict[Path, str]:
    """Return the drawing and the pages with the table of rooms, as they should be."""
    found = {DRAWING: drawing()}
    for path in (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"):
        found[path] = between(path.read_text(encoding="utf-8"), "rooms", table())
    return found
