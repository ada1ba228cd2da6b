"""A page with parts that are generated, each between two comments."""

from __future__ import annotations

import re

NOTE = "written by `python -m tools.docgen`"


def between(text: str, name: str, part: str, after: str | None = None) -> str:
    """The page with a part made anew; a page that has none gets it ``after`` some text of it, or at its end."""
    begin, end = f"<!-- {name}: {NOTE} -->", f"<!-- end of {name} -->"
    block = f"{begin}\n\n{part.strip()}\n\n{end}"
    old = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if old.search(text):
        return old.sub(lambda _: block, text)
    place = len(text.rstrip()) + 1 if after is None else text.index(after) + len(after)
    return text[:place].rstrip("\n") + f"\n\n{block}\n" + text[place:]
