"""Texts with gaps, and the terms that are put into them: what :func:`whence.probe` asks a model about."""

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
SPACED = rf"[^\W{RANGES}]"  # a letter of a script that is written with spaces between words


class Filled(NamedTuple):
    """A text, where the term stands in it, and where its other words begin."""

    text: str
    places: list[tuple[int, int]]
    others: list[int]


@dataclass(frozen=True)
class Template:
    """A text with gaps.

    Attributes:
        parts: what stands before, between and after the gaps.
        found: the term that stood there, if it was a real text.
        small: it is written wholly in small letters, and so are the terms in it.
    """

    parts: tuple[str, ...]
    found: str = ""
    small: bool = False

    @classmethod
    def of(cls, text: str, terms: Sequence[str], slot: str) -> Template | None:
        """A template as it was written; of a real text, with a gap for the first term in it; ``None`` without any."""
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

    def fill(self, term: str, as_it_is: bool = False) -> Filled:
        """The text with a term in every gap.

        Args:
            term: what is put there, in small letters where the text is.
            as_it_is: keep its capitals there, too: it is a token that the tokenizer knows by its spelling.

        Example:
            >>> Template(("", " smiled.")).fill("Anna").text
            'Anna smiled.'
        """
        term = term.lower() if self.small and not as_it_is else term
        out = Filled(term.join(self.parts), [], [])
        at = 0
        for part in self.parts:
            out.others.extend(at + start for start, _ in words(part))
            out.places.append((at + len(part), at + len(part) + len(term)))
            at += len(part) + len(term)
        out.places.pop()
        return out


def _places(text: str, terms: Iterable[str]) -> list[tuple[int, int]]:
    """Where terms stand in a text as words of their own; of several that begin at one place, the longest."""
    found = [match.span() for match in _pattern(tuple(terms)).finditer(text)]
    if not found:
        return []
    edges = {0, *(end for _, end in characters(text))}  # an accent is no character of its own
    return [(start, end) for start, end in found if start in edges and end in edges]


@functools.lru_cache(maxsize=8)
def _pattern(terms: tuple[str, ...]) -> re.Pattern[str]:
    """Any of some terms, where no letter of a spaced script stands beside a letter of one.

    In a script without spaces nothing tells where a word ends: there a term stands wherever its characters do.
    """
    spaced: list[str] = []
    unspaced: list[str] = []
    for term in sorted(terms, key=len, reverse=True):
        after = "" if re.match(f"[{RANGES}]", term[-1]) else f"(?!{SPACED})"
        (unspaced if re.match(f"[{RANGES}]", term) else spaced).append(re.escape(term) + after)
    either = [f"(?<!{SPACED})(?:{'|'.join(spaced)})"] if spaced else []
    return re.compile("|".join(either + unspaced))


def templates_of(texts: Iterable[Any], terms: Sequence[str], slot: str) -> Iterator[Template]:
    """Texts with a slot as they come, then the real ones in which a term stands, none of which is part of another."""
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
    """Terms by group; of a list, each by itself."""
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
    """Terms that are a list of texts, or a sentence."""
    if isinstance(terms, str) or not isinstance(terms, Iterable):
        raise InputError(f"{what} a list of texts, not {_told(terms)}: put a single one in a list.")
    listed = list(terms)
    for term in listed:
        if not isinstance(term, str):
            raise InputError(f"A term is a text, not {type(term).__name__} ({term!r}).")
    return listed


def _told(given: object) -> str:
    return f"the text '{given}'" if isinstance(given, str) else type(given).__name__
