"""Plots are drawn on the axes that are given, show the scores themselves, and change nothing else."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import whence
from whence.errors import InputError, MissingError
from whence.explanations.explanation import Explanations
from whence.explanations.score_table import Table
from whence.models import MODELS
from whence.render.palette import AGAINST, FOR, OPAQUE
from whence.results.input_origin import AudioOrigin, ImageOrigin, SeriesOrigin, Span, TextOrigin
from whence.tracing.coverage import Coverage

matplotlib = pytest.importorskip("matplotlib", reason="plots need matplotlib")
matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402  # after the check that it is there
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.collections import PolyCollection  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

TEXT = "A warm film, though far too long: $5 or $6 👍."


@pytest.fixture(autouse=True)
def _no_figure_is_left():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def text():
    return whence.Explainer.from_pretrained(MODELS / "sentiment")(TEXT)


@pytest.fixture(scope="module")
def images():
    path = MODELS / "digits" / "examples" / "3-6.png"
    explainer = whence.Explainer.from_pretrained(MODELS / "digits")
    return explainer.compare(path, ["conservative-lrp", "transformer-attribution"], targets=["digit 3", "digit 6"])


def made(scores, stream="input", origin=None, **more):
    """An explanation by hand."""
    scores = torch.as_tensor(scores)
    count = len(scores)
    values = {
        "special": torch.zeros(scores.shape, dtype=torch.bool), "method": "by-hand", "options": {},
        "logits": torch.zeros(count, 3), "coverage": Coverage(), "value": torch.zeros(count), "prediction": None,
        "target": None, "streams": {stream: scores}, "target_names": ("zero",) * count,
        "origins": () if origin is None else ({stream: origin},) * count,
    }  # fmt: skip
    return whence.Explanation(scores=scores, **(values | more))


def audio():
    wave = np.sin(np.arange(1600) / 9).astype(np.float32)
    return made([[1.0, -2.0, 0.5, 0.0]], "audio", AudioOrigin(wave, 1600, 0.8))


def series():
    return made([[1.0, -2.0, 0.5]], "series", SeriesOrigin(np.arange(6.0).reshape(3, 2), ("load", "$oil$")))


def every():
    spans = (None, Span(0, 3), Span(4, 8))
    words = made([[0.1, -2.0, 1.0]], "text", TextOrigin(("bad film",), ("[CLS]", "bad", "film"), spans))
    picture = ImageOrigin(np.full((8, 6, 3), 90, np.uint8), (1.0, 1.0), (0.0, 0.0), (8, 6))
    image = made([[1.0, -2.0, 3.0, 4.0]], "image", picture, grid=(2, 2))
    return [words, image, audio(), series(), made([[1.0, -2.0]]), made([[1.0, 2, 3, 4]], grid=(2, 2))]


# -- what is drawn ---------------------------------------------------------------------------------------------------


def test_a_text_has_a_bar_for_each_word_in_reading_order(text):
    ax = text.plot()
    words = text.words[0]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([word.score for word in words])
    assert [label.get_text() for label in ax.get_yticklabels()][:8] == [word.text for word in words][:8]
    assert ax.yaxis_inverted()
    colours = {tuple(round(255 * c) for c in bar.get_facecolor()[:3]) for bar in ax.patches if bar.get_width() > 0}
    assert colours == {FOR}
    assert {tuple(round(255 * c) for c in b.get_facecolor()[:3]) for b in ax.patches if b.get_width() < 0} == {AGAINST}


def test_of_a_long_text_the_strongest_words_are_drawn():
    words = [f"w{i}" for i in range(90)]
    spans = [Span(4 * i, 4 * i + len(word)) for i, word in enumerate(words)]
    origin = TextOrigin(("".join(f"{word:4}" for word in words),), tuple(words), tuple(spans))
    e = made([[float(i) for i in range(90)]], "text", origin)
    ax = e.plot()
    assert [bar.get_width() for bar in ax.patches] == list(range(50, 90))
    assert ax.get_xlabel() == "score (the 40 strongest of 90 words)"
    _, small = plt.subplots(figsize=(3, 2))
    assert 3 <= len(e.plot(small).patches) <= 12  # as many names as fit


@pytest.mark.parametrize("cmap", [None, "coolwarm"])
def test_the_image_drawn_has_the_values_of_the_heat_map(images, cmap):
    for e in images:
        ax = e.plot(cmap=cmap)
        picture, heat = ax.images
        assert np.array_equal(heat.get_array(), e.heatmap()[0].double().numpy())
        assert picture.get_array().shape == (64, 64, 3)
        assert heat.get_extent() == picture.get_extent()
        limit = float(e.patches.abs().max())
        assert heat.norm.vmax == pytest.approx(limit)
        assert heat.norm.vmin == pytest.approx(-limit if float(e.patches.min()) < 0 else 0)


def test_colours_without_a_colour_map_are_those_of_every_output(images):
    heat = images[0].plot().images[-1]
    limit = heat.norm.vmax
    red, white, blue = heat.to_rgba(np.array([limit, 0.0, -limit]))
    assert tuple(round(255 * c) for c in red[:3]) == FOR
    assert tuple(round(255 * c) for c in blue[:3]) == AGAINST
    assert red[3] == blue[3] == pytest.approx(OPAQUE)
    assert white[3] == pytest.approx(0)


def test_the_pixels_of_a_plot_are_red_where_the_score_is_positive(images):
    figure = Figure(figsize=(2, 2), dpi=64)
    ax = figure.add_axes((0, 0, 1, 1))
    e = images[1]  # conservative-lrp for digit 6, which is below
    e.plot(ax)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=32)
    buffer.seek(0)
    pixels = plt.imread(buffer)[..., :3]
    redness = pixels[..., 0] - pixels[..., 2]
    row, column = np.unravel_index(redness.argmax(), redness.shape)
    best = max(e.top(10)[0], key=lambda patch: patch.score)
    left, top, right, bottom = best.box
    assert left - 4 <= column <= right + 4
    assert top - 4 <= row <= bottom + 4


def test_alpha_is_the_opacity_of_the_scores(images, text):
    assert images[0].plot(alpha=0.25).images[-1].get_alpha() == 0.25
    assert images[0].plot(cmap="jet").images[-1].get_alpha() == 0.6
    assert images[0].plot(cmap="jet", alpha=1.0).images[-1].get_alpha() == 1.0
    assert {bar.get_facecolor()[3] for bar in text.plot(cmap="jet", alpha=0.5).patches} == {0.5}
    assert {bar.get_facecolor()[3] for bar in text.plot(alpha=0.5).patches} == {OPAQUE / 2}


def test_bars_have_the_colours_of_a_colour_map(text):
    strongest = text.top(1)[0][0]
    limit = abs(strongest.score)
    bars = text.plot(cmap="coolwarm").patches
    k = [word.start for word in text.words[0]].index(strongest.start)
    wanted = matplotlib.colormaps["coolwarm"](0.5 + 0.5 * strongest.score / limit)
    assert bars[k].get_facecolor() == pytest.approx(wanted)


def test_one_limit_gives_several_plots_one_scale(images, text):
    for e in images:
        assert e.plot(limit=7.5).images[-1].norm.vmax == 7.5
    assert text.plot(limit=9.0).get_xlim()[1] >= 9.0


def test_audio_and_series_are_lines_over_their_scores():
    ax = audio().plot()
    assert ax.images[0].get_array().tolist() == [[1.0, -2.0, 0.5, 0.0]]
    assert ax.images[0].get_extent()[:2] == [0.0, 0.8]
    assert ax.get_xlim() == (0, 1.0)
    ax = series().plot()
    assert ax.images[0].get_array().tolist() == [[1.0, -2.0, 0.5]]
    assert [line.get_ydata().tolist() for line in ax.lines] == [[0, 2, 4], [1, 3, 5]]
    assert [entry.get_text() for entry in ax.get_legend().get_texts()] == ["load", "$oil$"]


def test_positions_and_grids_of_unknown_origin_are_drawn():
    assert any(isinstance(c, PolyCollection) for c in made([[1.0, -2.0]]).plot().collections)
    assert made([[1.0, 2.0, 3.0, 4.0]], grid=(2, 2)).plot().images[-1].get_array().tolist() == [[1, 2], [3, 4]]


def test_a_stream_is_chosen_by_its_name():
    e = made([[1.0, 2.0]])
    two = whence.Explanation(**{**vars(e), "streams": {"input": e.scores, "queries": torch.tensor([[5.0, 6.0, 7.0]])}})
    assert two.plot().get_xlim()[1] < 2
    assert two.plot(stream="queries").get_xlim()[1] > 2
    with pytest.raises(InputError, match="no stream 'text': choose one of input, queries"):
        two.plot(stream="text")


def test_an_empty_text_is_drawn_without_a_warning():
    e = made([[0.0]], "text", TextOrigin(("",), ("[CLS]",), (None,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(e.plot().patches) == 0


@pytest.mark.parametrize("number", range(6))
def test_every_kind_is_saved_without_a_warning(number, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for cmap in (None, "viridis"):
            every()[number].plot(cmap=cmap).figure.savefig(tmp_path / "plot.png")


# -- where it is drawn -----------------------------------------------------------------------------------------------


def test_it_draws_on_the_axes_given_and_on_no_other():
    _, grid = plt.subplots(2, 3)
    for e, ax in zip(every(), grid.ravel(), strict=True):
        others = [other for other in grid.ravel() if other is not ax]
        before = [len(other.get_children()) for other in others]
        count = len(ax.get_children())
        assert e.plot(ax) is ax
        assert len(ax.get_children()) > count
        assert [len(other.get_children()) for other in others] == before


def test_settings_and_the_current_figure_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda *_: pytest.fail("plt.show was called"))
    with plt.rc_context({"font.size": 17, "axes.facecolor": "yellow", "text.usetex": False}):
        mine, (left, right) = plt.subplots(1, 2)
        plt.sca(right)
        before = matplotlib.rcParams.copy()
        numbers = plt.get_fignums()
        for e in every():
            assert e.plot().figure.axes[0].get_facecolor() == (1, 1, 0, 1)  # the user's own style
            e.plot(left)
        assert matplotlib.rcParams == before
        assert plt.get_fignums() == numbers
        assert plt.gcf() is mine
        assert plt.gca() is right


def test_a_plot_does_not_import_pyplot():
    code = (
        "import sys, torch, whence\n"
        "from whence.tracing.coverage import Coverage\n"
        "s = torch.ones(1, 2)\n"
        "e = whence.Explanation(scores=s, special=s > 2, method='m', options={}, logits=s, value=s[:, 0],\n"
        "    prediction=None, target=None, coverage=Coverage(), streams={'input': s})\n"
        "assert 'matplotlib' not in sys.modules and 'pandas' not in sys.modules\n"
        "e.plot()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_several_have_a_row_each(images, text):
    axes = images.plot()
    assert len(axes) == 4
    tops = [ax.get_position().y0 for ax in axes]
    assert tops == sorted(tops, reverse=True)
    for ax, e in zip(axes, images, strict=True):
        assert np.array_equal(ax.images[-1].get_array(), e.heatmap()[0].double().numpy())
    _, grid = plt.subplots(2, 2)
    assert list(images.plot(grid)) == list(grid.ravel())
    one = Explanations([text]).plot()
    assert isinstance(one, np.ndarray)
    assert len(one) == 1
    batch = made([[1.0, 2.0], [3.0, 4.0]]).plot(size=(3, 4))
    assert len(batch) == 2
    assert batch[0].figure.get_size_inches().tolist() == [3, 4]


def test_axes_that_do_not_fit_are_refused(images, text):
    _, grid = plt.subplots(3)
    with pytest.raises(InputError, match="4 explanations to plot and 3 axes"):
        images.plot(grid)
    with pytest.raises(InputError, match="1 explanations to plot and 3 axes"):
        text.plot(grid)
    with pytest.raises(InputError, match="not Figure"):
        text.plot(plt.figure())
    with pytest.raises(InputError, match="51 explanations to plot: choose 1 to 50"):
        Explanations([text] * 51).plot()
    with pytest.raises(InputError, match="a positive number, not 0"):
        text.plot(limit=0)


def test_without_matplotlib_the_error_names_the_extra(text, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingError, match=r"pip install 'whence\[figures\]'"):
        text.plot()


def test_a_colour_bar_can_be_made(images):
    ax = images[0].plot()
    bar = ax.figure.colorbar(ax.images[-1])
    assert bar.vmax == ax.images[-1].norm.vmax


# -- tables ----------------------------------------------------------------------------------------------------------


def test_a_table_is_drawn_with_its_names_and_values():
    values = np.array([[1.0, -2.0], [0.5, 0.0], [3.0, 1.0]])
    table = Table("the $title$", values, ("a", "b", "$c$"), ("x", "y"), "layer", "head")
    ax = table.plot(cmap="coolwarm")
    assert isinstance(ax, Axes)
    assert np.array_equal(ax.images[0].get_array(), values)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "$c$"]
    assert ax.get_title() == "the $title$"
    assert np.array_equal(np.asarray(table), values)
    assert table.plot(limit=9).images[0].norm.vmin == -9
    with pytest.raises(InputError, match="a positive number"):
        table.plot(limit=-1)


def test_generated_text_is_plotted_as_a_table():
    from whence.explainer.generation import Generation

    origin = TextOrigin(("to be or",), ("to", "be", "or"), (Span(0, 2), Span(3, 5), Span(6, 8)))
    scores = ([[2.0, 0.0, 0.0]], [[1.0, 3.0, 0.0]])
    found = [made(s, "text", origin, target_names=(name,)) for s, name in zip(scores, (" be", " or"), strict=True)]
    _, mine = plt.subplots()
    ax = Generation(found).plot(mine)
    assert ax is mine
    assert ax.images[0].get_array().tolist() == [[2, 0, 0], [1, 3, 0]]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["to", "be", "or"]
    assert len(Generation(found)[:2].plot()) == 2


def test_the_title_can_be_replaced(text):
    ax = text.plot()
    assert ax.get_title() == f"conservative-lrp for positive ({100 * float(text.probabilities[0, 1]):.0f} %)"
    ax.set_title("mine")
    assert [ax.get_title(loc) for loc in ("left", "center", "right")] == ["", "mine", ""]
