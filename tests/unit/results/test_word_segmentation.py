"""A text cut into pieces loses no character and no score."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.results.word_segmentation import characters, pieces, words

#: letters of many scripts, marks that join, emoji of several code points, spaces, controls
ALPHABET = "aé'-.,3_ \t\n\x00\u0301\u200d\u202e日本กำนम्שع👍🏽👩🇩🇪<&\"\ufe0f"
TEXTS = st.one_of(st.text(max_size=40), st.text(ALPHABET, max_size=40))


@st.composite
def tokenised(draw):
    """A text and tokens that lie anywhere in it: touching, overlapping (bytes of a character), empty."""
    text = draw(TEXTS)
    spans = []
    for i in range(draw(st.integers(0, 12))):
        start = draw(st.integers(0, len(text)))
        spans.append((i, start, draw(st.integers(start, min(len(text), start + 6)))))
    scores = draw(st.lists(st.integers(-9, 9), min_size=len(spans), max_size=len(spans)))
    return text, spans, scores


@given(tokenised(), st.booleans())
def test_the_pieces_joined_are_the_text_and_no_score_is_lost(case, whole_words):
    text, spans, scores = case
    cut = pieces(text, spans, scores, whole_words)
    assert "".join(p.text for p in cut) == text
    assert all(text[p.start : p.end] == p.text for p in cut)
    assert sorted(i for p in cut for i in p.positions) == [i for i, _, _ in spans]
    assert sum(p.score for p in cut if p.score is not None) == sum(scores)
    assert all((p.score is None) == (not p.positions) for p in cut)


@given(tokenised())
def test_a_word_is_in_one_piece(case):
    text, spans, scores = case
    cut = pieces(text, spans, scores, whole_words=True)
    for start, end in words(text):
        assert any(p.start <= start and end <= p.end for p in cut)


@given(tokenised())
def test_a_token_lies_in_the_piece_that_has_its_score(case):
    text, spans, scores = case
    where = {i: p for p in pieces(text, spans, scores, whole_words=False) for i in p.positions}
    for i, start, end in spans:
        bare = text[start:end].strip()
        if bare:
            assert where[i].start <= start + text[start:end].index(bare)
            assert start + text[start:end].index(bare) + len(bare) <= where[i].end


@given(TEXTS)
def test_characters_and_words_cover_what_is_written(text):
    assert "".join(text[a:b] for a, b in characters(text)) == text
    written = "".join(c for a, b in words(text) for c in text[a:b] if not c.isspace())
    assert written == "".join(c for c in text if not c.isspace())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't be well-made, 3.14!", ["don't", "be", "well-made", ",", "3.14", "!"]),
        ("café cafe\u0301s", ["café", "cafe\u0301s"]),
        ("👩\u200d👩\u200d👧👍🏽🇩🇪🇫🇷", ["👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "🇫🇷"]),
        ("日本語です", ["日", "本", "語", "で", "す"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("<script>", ["<", "script", ">"]),
        ("end. 'quoted'", ["end", ".", "'", "quoted", "'"]),
        (" \t\n", []),
    ],
)
def test_words_are_what_a_reader_calls_words(text, expected):
    assert [text[a:b] for a, b in words(text)] == expected


def test_subwords_of_a_word_are_summed_and_spaces_inside_a_token_do_not_join_words():
    text = "unhappy ending"
    spans = [(0, 0, 2), (1, 2, 7), (2, 7, 14)]  # "un" "happy" " ending", as byte-level tokenizers cut
    cut = [(p.text, p.score) for p in pieces(text, spans, [1, 2, 4], whole_words=True)]
    assert cut == [("unhappy", 3.0), (" ", None), ("ending", 4.0)]


def test_a_token_over_two_words_keeps_them_together():
    cut = [(p.text, p.score) for p in pieces("New York is", [(0, 0, 8), (1, 9, 11)], [1, 2], whole_words=True)]
    assert cut == [("New York", 1.0), (" ", None), ("is", 2.0)]


def test_words_that_touch_stay_apart():
    cut = [
        (p.text, p.score)
        for p in pieces("film, 日本", [(0, 0, 4), (1, 4, 5), (2, 6, 7), (3, 7, 8)], [1, 2, 4, 8], True)
    ]
    assert cut == [("film", 1.0), (",", 2.0), (" ", None), ("日", 4.0), ("本", 8.0)]
