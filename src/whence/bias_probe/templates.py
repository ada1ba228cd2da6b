"""Templates, and the terms that fill them: the texts of :func:`whence.probe`."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import InputError
from ..results.word_segmentation import UNSPACED, characters, words

Terms = Mapping[str, Sequence[str]] | Sequence[str]
Groups = Mapping[str, tuple[str, ...]]
RANGES = "".join(f"{chr(low)}-{chr(high)}" for low, high in UNSPACED)
SPACED = rf"[^\W{RANGES}]"  # a letter of a script with spaces between words


class FilledTemplate(NamedTuple):
    """A filled template: its text, the spans of the term, and the starts of the other words."""

    text: str
    places: list[tuple[int, int]]
    others: list[int]


@dataclass(frozen=True)
class Template:
    """A text with gaps.

    Attributes:
        parts: the text before, between and after the gaps.
        found: the term that was there, if it was a real text.
        small: whether it is all lower case, and so are the terms in it.
    """

    parts: tuple[str, ...]
    found: str = ""
    small: bool = False

    @classmethod
    def of(cls, text: str, terms: Sequence[str], slot: str) -> Template | None:
        """Return the template of a text: its slots, or gaps for the first term in a real text; ``None`` without any."""
        if slot in text:
            return cls(tuple(text.split(slot)))
        small = text.islower()
        written = {term.lower() if small else term: term for term in terms}
        places = _places(text, written)
        if not places:
            return None
        first = text[slice(*places[0])]
        gaps = [(start, end) for start, end in places if text[start:end] == first]
        edges = [0, *(edge for gap in gaps for edge in gap), len(text)]
        parts = (text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
        return cls(tuple(parts), written[first], small)

    def fill(self, term: str, as_it_is: bool = False) -> FilledTemplate:
        """Return the text with a term in every gap.

        Args:
            term: it is put in lower case where the text is.
            as_it_is: keep its case there, too: it is a special token of the tokenizer.

        Example:
            >>> Template(("", " smiled.")).fill("Anna").text
            'Anna smiled.'
        """
        term = term.lower() if self.small and not as_it_is else term
        out = FilledTemplate(term.join(self.parts), [], [])
        at = 0
        for part in self.parts:
            out.others.extend(at + start for start, _ in words(part))
            out.places.append((at + len(part), at + len(part) + len(term)))
            at += len(part) + len(term)
        out.places.pop()
        return out


def _places(text: str, terms: Iterable[str]) -> list[tuple[int, int]]:
    """Return the spans of terms in a text as whole words; of several that begin at one place, the longest."""
    found = [match.span() for match in _pattern(tuple(terms)).finditer(text)]
    if not found:
        return []
    edges = {0, *(end for _, end in characters(text))}  # a combining accent belongs to the character before it
    return [(start, end) for start, end in found if start in edges and end in edges]


@functools.lru_cache(maxsize=8)
def _pattern(terms: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of any of the terms, as whole words in scripts with spaces.

    In a script without spaces words have no visible ends: there a term matches wherever its characters are.
    """
    spaced: list[str] = []
    unspaced: list[str] = []
    for term in sorted(terms, key=len, reverse=True):
        after = "" if re.match(f"[{RANGES}]", term[-1]) else f"(?!{SPACED})"
        (unspaced if re.match(f"[{RANGES}]", term) else spaced).append(re.escape(term) + after)
    either = [f"(?<!{SPACED})(?:{'|'.join(spaced)})"] if spaced else []
    return re.compile("|".join(either + unspaced))


def templates_of(texts: Iterable[Any], terms: Sequence[str], slot: str) -> Iterator[Template]:
    """Yield texts with a slot, then real texts with a term in them that are not contained in another one."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise InputError(f"Templates are a list of texts, not {_told(texts)}: put a single one in a list.")
    if not isinstance(slot, str) or not slot:
        raise InputError(f"The slot is the text that marks the gap, such as {{name}}, not {slot!r}.")
    real: dict[str, Template] = {}
    for item in texts:
        text = getattr(item, "input", item)
        if not isinstance(text, str):
            raise InputError(f"A template is a text, not {type(text).__name__}.")
        template = Template.of(text, terms, slot)
        if template and template.found:
            real.setdefault(text, template)
        elif template:
            yield template
    yield from (found for text, found in real.items() if not any(text in other and text != other for other in real))


def groups_of(terms: Terms) -> Groups:
    """Return terms by group; each term of a list is a group of its own."""
    named = terms if isinstance(terms, Mapping) else {term: [term] for term in _listed(terms, "Terms are")}
    groups: dict[str, tuple[str, ...]] = {}
    for name, own in named.items():
        if not isinstance(name, str):
            raise InputError(f"The name of a group is a text, not {type(name).__name__} ({name!r}).")
        groups[name] = tuple(dict.fromkeys(_listed(own, f"The terms of group '{name}' are")))
    listed = Counter(term for own in groups.values() for term in own)
    if not listed or any(not own or not all(map(str.strip, (name, *own))) for name, own in groups.items()):
        raise InputError(
            "A group has a name and at least one term, and a term at least one letter: one of these has not."
        )
    term, times = listed.most_common(1)[0]
    if times > 1:
        raise InputError(f"'{term}' is in {times} groups: leave it in one.")
    return groups


def _listed(terms: Any, what: str) -> list[str]:
    """Return terms as a list; raise if they are not a list of texts."""
    if isinstance(terms, str) or not isinstance(terms, Iterable):
        raise InputError(f"{what} a list of texts, not {_told(terms)}: put a single one in a list.")
    listed = list(terms)
    for term in listed:
        if not isinstance(term, str):
            raise InputError(f"A term is a text, not {type(term).__name__} ({term!r}).")
    return listed


def _told(given: object) -> str:
    return f"the text '{given}'" if isinstance(given, str) else type(given).__name__
