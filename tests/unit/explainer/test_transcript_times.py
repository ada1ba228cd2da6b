"""Which seconds of audio the words of a transcript come from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whence.explainer.transcript_times import in_columns, shortest_interval, time_words, words_of
from whence.results.input_origin import AudioOrigin

AUDIO = AudioOrigin(np.zeros(32_000, np.float32), 16_000, heard=4.0)  # two seconds, padded to four: 0.1 s a position

amounts = st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any)


@given(amounts, st.sampled_from([0.1, 1 / 3, 0.5, 0.9, 1.0]))
def test_no_shorter_interval_holds_the_share(values, share):
    values = np.array(values, float)
    first, last = shortest_interval(values, share)
    assert values[first : last + 1].sum() >= share * values.sum() - 1e-9
    length = last - first
    shorter = [values[i : i + length].sum() for i in range(len(values) - length + 1)] if length else [0]
    assert max(shorter) < share * values.sum()


def test_a_word_comes_from_where_its_tokens_are_heard():
    relevance = np.zeros((4, 40))
    relevance[0, 3] = relevance[1, 4] = 2.0
    relevance[1, 30] = 9.0  # after the end: padding
    relevance[2, 10], relevance[2, 15] = 1.0, -5.0
    relevance[3, 18] = 7.0
    words = time_words([" Amer", "icans", " ask", ","], relevance, AUDIO, 1.0)
    assert [word.text for word in words] == ["Americans", "ask,"]
    assert [word.start for word in words] == pytest.approx([0.3, 1.0])
    assert [word.end for word in words] == pytest.approx([0.5, 1.1])


def test_punctuation_alone_is_a_word():
    assert words_of(["...", " so"]) == [[0], [1]]
    relevance = np.eye(2, 40)
    assert [word.text for word in time_words(["...", " so"], relevance, AUDIO, 0.5)] == ["...", "so"]


@pytest.mark.parametrize("most", [3, 20, 1000])
def test_columns_of_seconds_sum_to_the_relevance_inside_the_audio(most):
    relevance = np.random.default_rng(0).normal(size=(3, 40))
    values, seconds = in_columns(relevance, AUDIO, most)
    assert np.allclose(values.sum(1), relevance[:, :20].sum(1))
    assert values.shape[1] == len(seconds) <= most
    assert [float(s) for s in seconds] == sorted(float(s) for s in seconds)
    assert float(seconds[-1]) < 2.0
