"""The layout of the page: its components, and which callback each event calls."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import events

from ..methods.registry import list_methods
from ..render.html.markup import tag
from . import html_fragments
from .callbacks import PageCallbacks, PreviousRun
from .json_api import explain_endpoint
from .limits import Limits
from .query import DEFAULT_METHOD, PREDICTION
from .service import THREADS, ExplanationService
from .upload_widget import ImageUpload

TITLE = "Whence"
SAVED_TYPES = {"html": "HTML page", "png": "PNG figure", "json": "JSON data"}
LEAD = "From where did this prediction come? Ask a model, and see which words or patches its answer rests on."
ABOUT_LAYERS = (
    "A model works in layers, from 0, which reads the input, to the last, which answers. Move the slider: which words "
    "or patches held what counted, on the way into each?"
)
ABOUT_COUNTERFACTUAL = (
    "Which words or patches have to go before the model says something else? The model itself checks each try."
)
#: sends the value of a clicked element with data-ask to the server
SEND_CLICKS = """
element.addEventListener("click", (event) => {
  const asked = event.target.closest("[data-ask]");
  if (asked) trigger("click", { asked: asked.dataset.ask });
});
"""
#: downloads the file that the server created
DOWNLOAD = """
(made) => {
  if (!made) return;
  const bytes = Uint8Array.from(atob(made.content), (c) => c.charCodeAt(0));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes], { type: made.type }));
  link.download = made.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
"""
#: writes the link to the address bar
UPDATE_LINK = "(mark) => { if (mark) history.replaceState(null, '', '#' + mark); return location.href; }"
#: scrolls to the result, which is below the form on a phone
SCROLL = """
() => {
  const answer = document.querySelector("#whence-result");
  if (answer.getBoundingClientRect().top > innerHeight / 2) answer.scrollIntoView({ block: "start" });
}
"""
#: options of components with Whence's own style
PLAIN: dict[str, Any] = {"padding": False, "apply_default_css": False}
#: options of events that are not part of the JSON API
HIDDEN: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}


@dataclass(frozen=True)
class SessionState:
    """What the page remembers of a visit, in components that are not shown."""

    query: gr.State  # whose result is shown
    linked_query: gr.State
    previous: gr.State
    changed_text: gr.State  # of the counterfactual
    fragment: gr.Textbox  # the part of the link after #
    address: gr.Textbox


@dataclass(frozen=True)
class QueryForm:
    """The components in which a query is entered."""

    shown_model: gr.State  # the model whose inputs are shown
    model: gr.Dropdown
    text: gr.Textbox
    image: Any
    explain: gr.Button
    cancel: gr.Button
    status: gr.HTML
    examples: gr.HTML
    methods: gr.Dropdown
    descriptions: gr.HTML
    targets: gr.Row
    target: gr.Dropdown
    second_target: gr.Dropdown
    pair: gr.Accordion
    second: gr.Textbox

    @property
    def inputs(self) -> list[Any]:
        """What a query is made of."""
        return [self.model, self.text, self.second, self.image, self.methods, self.target, self.second_target]

    @property
    def fields(self) -> list[Any]:
        """What changes with the model."""
        return [*self.inputs, self.shown_model, self.pair, self.examples, self.targets]


@dataclass(frozen=True)
class ResultPanel:
    """The components that show a result."""

    prediction: gr.HTML
    choices: gr.HTML
    explanations: gr.HTML
    details: gr.Column
    explanation_name: gr.Dropdown


@dataclass(frozen=True)
class TrustTab:
    """The ledger, and the test against random rankings."""

    ledger: gr.HTML
    test: gr.Button
    test_cancel: gr.Button
    random_test: gr.HTML


@dataclass(frozen=True)
class LayersTab:
    """The relevance at each layer and in each head."""

    layer: gr.Slider
    layer_scores: gr.HTML
    heads: gr.HTML


@dataclass(frozen=True)
class CounterfactualTab:
    """The search for the smallest change that flips the prediction."""

    flip: gr.Button
    flip_cancel: gr.Button
    counterfactual: gr.HTML
    use_text: gr.Button


@dataclass(frozen=True)
class SaveTab:
    """Files, code and link of the result."""

    buttons: dict[str, gr.Button]  # by file type
    code: gr.Textbox
    link: gr.Textbox
    file: gr.JSON


@dataclass(frozen=True)
class PageComponents:
    """All components of the page."""

    state: SessionState
    form: QueryForm
    result: ResultPanel
    trust: TrustTab
    layers: LayersTab
    counterfactual: CounterfactualTab
    save: SaveTab

    def by_name(self) -> dict[str, Any]:
        """Return all components by the names of their fields, each of which is unique."""
        return {name: component for group in vars(self).values() for name, component in vars(group).items()}

    @property
    def explain_inputs(self) -> list[Any]:
        """The arguments of the callbacks that explain."""
        return [*self.form.inputs, self.state.previous, self.state.linked_query]

    @property
    def details(self) -> list[Any]:
        """What changes with the explanation whose details are shown."""
        return [
            self.trust.ledger,
            self.trust.random_test,
            self.layers.layer,
            self.layers.layer_scores,
            self.layers.heads,
        ]

    @property
    def results(self) -> list[Any]:
        """What changes with a result."""
        return [
            self.form.explain,
            self.form.cancel,
            self.form.status,
            *vars(self.result).values(),
            *self.details,
            self.counterfactual.counterfactual,
            self.counterfactual.use_text,
            self.save.code,
            self.state.fragment,
            self.state.query,
            self.state.previous,
        ]


def build(service: ExplanationService, folder: Path) -> Any:
    """Return the page as Gradio's blocks; images are served from ``folder``."""
    with gr.Blocks(title=TITLE, analytics_enabled=False) as blocks:
        gr.HTML(html_fragments.island(tag("h1", TITLE), tag("p", LEAD)), elem_id="whence-head", **PLAIN)
        state = _build_state()
        with gr.Row(elem_id="whence-page", equal_height=False):
            with gr.Column(scale=4, min_width=320, elem_id="whence-asking"):
                form = _build_form(service, folder)
            with gr.Column(scale=7, min_width=320, elem_id="whence-result"):
                components = _build_result(state, form)
        callbacks = PageCallbacks(service, components.by_name(), folder)
        # before the page's own callback named "explain": Gradio gives the name to the first
        events.api(explain_endpoint(service), api_name="explain", queue=False)
        _connect_form(components, callbacks, blocks)
        _connect_result(components, callbacks)
    blocks.queue(default_concurrency_limit=THREADS, max_size=service.queue.max_waiting, api_open=False)
    return blocks


def _build_state() -> SessionState:
    return SessionState(
        query=gr.State(None),
        linked_query=gr.State(None),
        previous=gr.State(PreviousRun()),
        changed_text=gr.State(""),
        fragment=gr.Textbox(visible="hidden", elem_id="whence-mark", label="Mark"),
        address=gr.Textbox(visible="hidden", elem_id="whence-address", label="Address"),
    )


def _build_form(service: ExplanationService, folder: Path) -> QueryForm:
    models = service.models
    first = models.first
    classes = [PREDICTION, *first.labels]
    shown_model = gr.State(first.name)
    model = gr.Dropdown(list(models), value=first.name, label="Model", visible=len(models) > 1, elem_id="whence-model")
    text = gr.Textbox(
        label="Text", lines=3, max_lines=12, value=(first.example_texts or ("",))[0], visible=first.reads_text,
        placeholder="Write or paste a text", elem_id="whence-text",
    )  # fmt: skip
    image = ImageUpload(
        label="Picture", type="filepath", sources=["upload", "clipboard"], visible=first.reads_image, height=240,
        elem_id="whence-image", buttons=[],
        value=next((first.copy_example(name, folder) for name in first.example_images), None),
    )  # fmt: skip
    explain = gr.Button("Explain", variant="primary", elem_id="whence-explain")
    cancel = gr.Button("Cancel", visible=False, elem_id="whence-cancel")
    status = gr.HTML("", elem_id="whence-status", **PLAIN)
    examples = gr.HTML(html_fragments.examples(first), elem_id="whence-examples", js_on_load=SEND_CLICKS, **PLAIN)
    methods = gr.Dropdown(
        list(list_methods()), value=[DEFAULT_METHOD], multiselect=True, max_choices=service.limits.methods,
        label="Methods", elem_id="whence-methods",
    )  # fmt: skip
    descriptions = gr.HTML(html_fragments.method_descriptions([DEFAULT_METHOD]), elem_id="whence-words", **PLAIN)
    with gr.Row(visible=bool(first.labels)) as targets:
        target = gr.Dropdown(
            classes, value=PREDICTION, label="Answer to explain", min_width=120, elem_id="whence-target"
        )
        second_target = gr.Dropdown(
            [(html_fragments.NO_SECOND_TARGET, ""), *classes], value="", label="Beside it", min_width=120,
            elem_id="whence-rival",
        )  # fmt: skip
    with gr.Accordion("A second text", open=False, visible=first.reads_text and not first.generates_text) as pair:
        second = gr.Textbox(label="For models that compare two texts", lines=2, elem_id="whence-second")
    return QueryForm(
        shown_model=shown_model, model=model, text=text, image=image, explain=explain, cancel=cancel, status=status,
        examples=examples, methods=methods, descriptions=descriptions, targets=targets, target=target,
        second_target=second_target, pair=pair, second=second,
    )  # fmt: skip


def _build_result(state: SessionState, form: QueryForm) -> PageComponents:
    """Build the result and its tabs."""
    prediction = gr.HTML("", elem_id="whence-answer", **PLAIN)
    choices = gr.HTML("", elem_id="whence-choice", js_on_load=SEND_CLICKS, **PLAIN)
    explanations = gr.HTML(html_fragments.placeholder(), elem_id="whence-shown", **PLAIN)
    with gr.Column(visible=False, elem_id="whence-more") as details:
        explanation_name = gr.Dropdown([], label="Look closer at", visible=False, elem_id="whence-which")
        with gr.Tabs():
            with gr.Tab("Trust it?"):
                trust = _build_trust()
            with gr.Tab("Layers"):
                layers = _build_layers()
            with gr.Tab("What if?"):
                counterfactual = _build_counterfactual()
            with gr.Tab("Save"):
                save = _build_save()
    result = ResultPanel(prediction, choices, explanations, details, explanation_name)
    return PageComponents(state, form, result, trust, layers, counterfactual, save)


def _build_trust() -> TrustTab:
    ledger = gr.HTML("", elem_id="whence-ledger", **PLAIN)
    test, test_cancel = _cancellable_button("Try it against random orders", "whence-attempt")
    return TrustTab(ledger, test, test_cancel, random_test=gr.HTML("", elem_id="whence-trial", **PLAIN))


def _build_layers() -> LayersTab:
    gr.HTML(html_fragments.island(tag("p", ABOUT_LAYERS)), **PLAIN)
    return LayersTab(
        layer=gr.Slider(0, 1, value=0, step=1, label="Layer", elem_id="whence-layer", buttons=[]),
        layer_scores=gr.HTML("", elem_id="whence-layered", **PLAIN),
        heads=gr.HTML("", elem_id="whence-heads", **PLAIN),
    )


def _build_counterfactual() -> CounterfactualTab:
    gr.HTML(html_fragments.island(tag("p", ABOUT_COUNTERFACTUAL)), **PLAIN)
    flip, flip_cancel = _cancellable_button("Find the smallest change that flips it", "whence-flip")
    return CounterfactualTab(
        flip=flip,
        flip_cancel=flip_cancel,
        counterfactual=gr.HTML("", elem_id="whence-flipped", **PLAIN),
        use_text=gr.Button("Take this text", size="sm", visible=False, elem_id="whence-use"),
    )


def _build_save() -> SaveTab:
    with gr.Row():
        buttons = {
            suffix: gr.Button(label, size="sm", elem_id=f"whence-save-{suffix}")
            for suffix, label in SAVED_TYPES.items()
        }
    return SaveTab(
        buttons=buttons,
        code=gr.Textbox(
            label="The same in Python", lines=4, interactive=False, buttons=["copy"], elem_id="whence-code"
        ),
        link=gr.Textbox(label="A link to it", interactive=False, buttons=["copy"], elem_id="whence-link"),
        file=gr.JSON(visible=False),
    )


def _cancellable_button(label: str, elem_id: str) -> tuple[gr.Button, gr.Button]:
    """Return a button that starts a task, and the one that replaces it and cancels the task."""
    start = gr.Button(label, size="sm", elem_id=elem_id)
    cancel = gr.Button("Cancel", size="sm", visible=False, elem_id=f"{elem_id}-cancel")
    return start, cancel


def _connect_form(page: PageComponents, callbacks: PageCallbacks, blocks: gr.Blocks) -> None:
    """Connect the events that enter and run a query."""
    state = page.state
    form = page.form
    update_link = _update_link(page)
    explain: dict[str, Any] = {"inputs": page.explain_inputs, "outputs": page.results, **HIDDEN}
    blocks.load(None, None, state.address, js="() => location.hash")  # no change of the address: no query
    opened = state.address.change(
        callbacks.open_link, state.address, [*form.fields, form.status, state.linked_query], **HIDDEN
    )
    opened.then(callbacks.explain_link, **explain).then(**update_link)
    form.model.input(callbacks.change_model, [form.model, form.shown_model], [*form.fields, *page.results], **HIDDEN)
    form.examples.click(callbacks.choose_example, form.model, [form.text, form.image], **HIDDEN)
    form.methods.change(callbacks.describe_methods, form.methods, form.descriptions, **HIDDEN)
    for event in (form.explain.click, form.text.submit):
        event(callbacks.explain, **explain).then(**update_link).then(None, None, None, js=SCROLL)
    form.text.input(callbacks.explain_typing, trigger_mode="always_last", **explain).then(**update_link)
    for button in (form.cancel, page.trust.test_cancel, page.counterfactual.flip_cancel):
        button.click(callbacks.cancel, None, None, queue=False, **HIDDEN)


def _connect_result(page: PageComponents, callbacks: PageCallbacks) -> None:
    """Connect the events of a result."""
    query = page.state.query
    name = page.result.explanation_name
    trust = page.trust
    layers = page.layers
    tab = page.counterfactual
    update_link = _update_link(page)
    page.result.choices.click(callbacks.choose, query, page.results, **HIDDEN).then(**update_link)
    name.input(callbacks.show_details, [query, name], page.details, **HIDDEN)
    layers.layer.input(
        callbacks.show_layer, [query, name, layers.layer], layers.layer_scores, trigger_mode="always_last", **HIDDEN
    )
    trust.test.click(
        callbacks.compare_with_random, [query, name], [trust.random_test, trust.test, trust.test_cancel], **HIDDEN
    )
    tab.flip.click(callbacks.find_counterfactual, query, [*vars(tab).values(), page.state.changed_text], **HIDDEN)
    taken = tab.use_text.click(lambda text: text, page.state.changed_text, page.form.text, **HIDDEN)
    taken.then(callbacks.explain, page.explain_inputs, page.results, **HIDDEN).then(**update_link)
    for suffix, button in page.save.buttons.items():
        saved = button.click(callbacks.save_as(suffix), query, [page.save.file, page.form.status], **HIDDEN)
        saved.then(None, page.save.file, None, js=DOWNLOAD)


def _update_link(page: PageComponents) -> dict[str, Any]:
    """Return the event that shows the link to the current query."""
    return {"fn": None, "inputs": page.state.fragment, "outputs": page.save.link, "js": UPDATE_LINK}


def style() -> str:
    """Return the CSS of the page, after that of the explanations."""
    from ..render.html.page import style as explanation_style

    return f"{explanation_style()}\n{_read_resource('app.css')}"


def head(limits: Limits) -> str:
    """Return the CSS and the script of the page, which runs the script of the HTML export once the page is loaded."""
    from ..render.html.page import script as explanation_script

    script = _read_resource("app.js").replace("__UPLOAD__", str(limits.upload)).replace("__SIZE__", limits.upload_size)
    return f"<style>{style()}</style><script>{script.replace('__EXPLANATIONS__', explanation_script())}</script>"


def _read_resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
