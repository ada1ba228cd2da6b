"""docs/compatibility.md from what the cells found."""

from __future__ import annotations

from collections.abc import Sequence

from .cell import EXTRAS, TESTS, Found

HEAD = """# Compatibility

What `make matrix` found: each row is an environment of its own with these versions and the extras
{extras}, in which {files} files of tests were run:
rules, published numbers of every golden case, the trace, files, raw inputs. *oldest* is the lower bound in
`pyproject.toml`, *pinned* what `constraints.txt` pins and all other tests run with, *newest* what pip installed that
day. A row without numbers was left out, or could not be had on the machine that made this page.

The web page (extra `app`) is not among these tests. It needs transformers 5, as gradio and transformers 4 ask for
different versions of huggingface-hub.

| Python, torch, transformers | installed | result |
|---|---|---|
"""


def page(found: Sequence[Found]) -> str:
    """The page."""
    rows = [f"| {one.name} | {_installed(one)} | {_result(one)} |" for one in found]
    wrong = [line for one in found if one.versions and one.why for line in ("", f"## {one.name}", "", *_code(one.why))]
    return HEAD.format(extras=EXTRAS.replace(",", ", "), files=len(TESTS)) + "\n".join([*rows, *wrong, ""])


def _installed(one: Found) -> str:
    return ", ".join(f"{name} {one.versions[name]}" for name in ("python", "torch", "transformers") if one.versions)


def _result(one: Found) -> str:
    if not one.versions:
        return f"not tried: {one.why}".replace("|", "\\|").replace("\n", " ")
    said = f"{one.passed} passed" + (f", **{one.failed} failed**" if one.failed else "")
    return f"{said}, {one.seconds / 60:.0f} min"


def _code(text: str) -> list[str]:
    return ["```", *text.splitlines()[:20], "```"]
