"""Progress on stderr: the bar of rich, the plain line without it, and nothing where nothing is asked for."""

from __future__ import annotations

import pytest

from whence._utils import progress
from whence._utils.progress import display, duration, track


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(progress, "_lacks_rich", lambda: True)


def test_the_plain_line_says_how_far_it_is(capsys, clock, plain):
    with display("Explaining", 1000, done=200, unit="samples", show=True) as update:
        clock[0] += 10
        update(300, 2)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "whence: 200 samples are done already."
    assert last.strip("\r") == "Explaining: 300 of 1,000 samples, 10 a second, 70 s left, 2 failed"


def test_the_plain_line_is_not_written_at_every_item(capsys, clock, plain):
    assert list(track(range(100), 100, "Probing", show=True)) == list(range(100))
    assert capsys.readouterr().err == "\rProbing: 0 of 100, 0 a second\n"


def test_the_bar_has_what_is_done_the_rate_what_remains_and_failures(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    pytest.importorskip("rich")
    with display("Explaining", 1000, done=200, unit="samples", show=True, keep=True) as update:
        update(300, 2)
    shown = capsys.readouterr().err
    assert "whence: 200 samples are done already." in shown
    for part in ("Explaining", "300/1000", " a second", "2 failed", ":"):
        assert part in shown.splitlines()[-1]


@pytest.mark.parametrize("total", [None, 5])
def test_nothing_is_shown_where_it_is_not_asked_for(capsys, total):
    with display("Explaining", total, show=False) as update:
        update(1, 0)
    with display("Explaining", total) as update:  # stderr is no terminal here
        update(1, 0)
    assert capsys.readouterr().err == ""


def test_a_display_inside_another_shows_nothing_and_the_next_one_does(capsys, plain):
    with display("outer", 2, show=False), display("inner", 2, show=True) as update:
        update(1, 0)
    assert capsys.readouterr().err == ""
    with pytest.raises(ZeroDivisionError), display("failing", 2, show=True) as update:
        update(1 // 0, 0)
    with display("next", 2, show=True) as update:
        update(1, 0)
    assert "next: 1 of 2" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "told"), [(5, "5 s"), (600, "10 min"), (7500, "2 h 5 min"), (400000, "5 days")])
def test_durations(seconds, told):
    assert duration(seconds) == told
