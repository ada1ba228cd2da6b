"""The LaTeX document prints what stands in the text, in its colours, and compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support import cards
from whence.render.latex import document, escape
from whence.render.palette import AGAINST, FOR, blend
from whence.render.view_model import Card, Panel
from whence.results.word_segmentation import Piece

SPECIALS = r"""\ { } $ & # % _ ^ ~ < > " | ' ` -- ,, \input{/etc/passwd} \end{document}"""


def words(*pairs: tuple[str, float | None]) -> str:
    pieces = tuple(Piece(t, s, 0, 0, 0, ()) for t, s in pairs)
    scores = np.array([s or 0.0 for _, s in pairs])
    panel = Panel("text", scores, np.zeros(len(pairs), bool), pieces=pieces)
    return document([Card("t", (replace(cards.view(panel), limit=1.0),))])


def test_specials_are_escaped() -> None:
    shown = escape(SPECIALS)
    commands = set(re.findall(r"\\[a-zA-Z]+", shown))
    assert commands <= {
        r"\textbackslash", r"\textasciicircum", r"\textasciitilde", r"\textless", r"\textgreater", r"\textquotedbl",
        r"\textbar", r"\textquotesingle", r"\textasciigrave",
    }  # fmt: skip
    assert not re.search(r"(?<!\\)[$&#%_^~|<>\"]", shown)
    assert "--" not in shown
    assert ",," not in shown


def test_control_characters_are_seen() -> None:
    out = document([cards.card(cards.view(cards.text_panel(cards.HOSTILE + "\x1b[1m")), title=cards.HOSTILE)])
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out)
    assert out.count(r"\end{document}") == 1


def test_words_are_on_their_colours_and_zero_has_none() -> None:
    out = words(("good", 1.0), (" ", None), ("none", 0.0), (" ", None), ("bad", -1.0))
    for word, score in (("good", 1.0), ("bad", -1.0)):
        assert re.search(rf"\\word{{{','.join(map(str, blend(score, 1.0)))}}}{{[0-9,]+}}{{{word}}}", out)
    assert re.search(r"\} none \\word", out)


def test_a_long_word_can_be_broken() -> None:
    assert words(("x" * 100, 1.0)).count(r"\allowbreak") == 3


def test_a_picture_is_tiles_of_its_shape() -> None:
    patches = np.array([[1.0, -1.0], [0.0, 0.5]])
    panel = replace(cards.image_panel(30, 90, grid=(2, 2)), patches=patches)
    out = document([Card("t", (replace(cards.view(panel), limit=1.0),))])
    tiles = re.findall(r"\\tile\{([0-9,]+)\}\{([0-9.]+)\\linewidth\}\{([0-9.]+)\\linewidth\}", out)
    assert [t[0] for t in tiles] == [",".join(map(str, blend(float(s), 1.0))) for s in patches.ravel()]
    assert float(tiles[0][1]) / float(tiles[0][2]) == pytest.approx(3.0, rel=0.01)


def test_bars_against_hang_below_the_line() -> None:
    panel = replace(cards.tensor_panel(), scores=np.array([1.0, -0.5]), special=np.zeros(2, bool))
    out = document([Card("t", (replace(cards.view(panel), limit=1.0),))])
    assert rf"\tbar{{{','.join(map(str, FOR))}}}{{0.00pt}}{{22.00pt}}" in out
    assert rf"\tbar{{{','.join(map(str, AGAINST))}}}{{-11.00pt}}{{11.00pt}}" in out


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_compiles_every_card(tmp_path: Path) -> None:
    odd = cards.text_card(f"映画 👨‍👩‍👧 שלום e\u0301 ł œ {SPECIALS} \x1b \u202e \ufffe {'x' * 300}\n\n\nend")
    (tmp_path / "all.tex").write_text(document([*cards.every_card(), odd]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "all.tex"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert out.returncode == 0, out.stdout.decode("latin-1")[-2000:]
    assert (tmp_path / "all.pdf").read_bytes().startswith(b"%PDF")
