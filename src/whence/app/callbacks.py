"""The callbacks of the page: what happens on each click, choice and keystroke."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr

from ..counterfactuals.html_page import section as counterfactual_section
from ..errors import InputError, WhenceError
from ..explanations.explanation import Explanation
from ..methods.registry import list_methods
from ..render.html.markup import Markup
from . import html_fragments
from .cancellable import CancellableTask, CancelledError
from .code_snippet import code
from .model_registry import ServedModel
from .query import PREDICTION, Query
from .query_result import MethodResult, QueryResult
from .service import ExplanationService

T = TypeVar("T")
Update = Any  # a value for each component that changes
POLL_SECONDS = 0.25  # between updates of the progress
FAST_SECONDS = 1.5  # a text is explained while it is typed if the last explanation took less
MEDIA_TYPES = {"html": "text/html", "png": "image/png", "json": "application/json"}


@dataclass(frozen=True)
class PreviousRun:
    """What the next explanation is compared with.

    Attributes:
        probabilities: of each class.
        seconds: that the explanation took.
    """

    probabilities: Mapping[str, float] = field(default_factory=dict)
    seconds: float = math.inf


class PageCallbacks:
    """The functions that Gradio calls on the events of the page.

    Args:
        service: runs the queries.
        components: the page's components, by name.
        folder: from which images are served.
    """

    def __init__(self, service: ExplanationService, components: Mapping[str, Any], folder: Path) -> None:
        self.service = service
        self.components = components
        self.folder = folder

    def _update(self, **changes: Any) -> Update:
        return {self.components[name]: value for name, value in changes.items()}

    # -- the form ----------------------------------------------------------------------------------------------------

    def change_model(self, name: str, shown: str) -> Update:
        """Show the inputs, examples and targets of another model, and clear the result.

        The list also triggers when the keyboard focus passes over it: then nothing changes.
        """
        if name == shown:
            return gr.skip()
        return self._fill_form(self.service.models[name]) | self._clear_result()

    def _fill_form(self, model: ServedModel, query: Query | None = None) -> Update:
        """Show the inputs that a model takes, filled with a query or with the model's first example."""
        if query is None:
            text = (model.example_texts or ("",))[0]
            query = Query(model.name, text, picture=next(iter(model.example_images), ""))
        classes = [PREDICTION, *model.labels]
        targets = [target for target in query.targets if target in classes] or [PREDICTION]
        is_example = query.picture in model.example_images
        return self._update(
            model=model.name,
            shown_model=model.name,
            text=gr.update(visible=model.reads_text, value=query.text),
            second=query.second,
            pair=gr.update(visible=model.reads_text and not model.generates_text, open=bool(query.second)),
            image=gr.update(
                visible=model.reads_image,
                value=model.copy_example(query.picture, self.folder) if is_example else None,
            ),
            examples=html_fragments.examples(model),
            methods=list(query.methods),
            targets=gr.update(visible=bool(model.labels)),
            target=gr.update(choices=classes, value=targets[0]),
            second_target=gr.update(
                choices=[(html_fragments.NO_SECOND_TARGET, ""), *classes], value=targets[1] if len(targets) > 1 else ""
            ),
        )

    def _clear_result(self) -> Update:
        return self._update(
            status="",
            prediction="",
            choices="",
            explanations=html_fragments.placeholder(),
            details=gr.update(visible=False),
            query=None,
            previous=PreviousRun(),
        )

    def choose_example(self, name: str, event: gr.EventData) -> Update:
        """Fill in an example."""
        model = self.service.models[name]
        kind, _, which = str(event.asked).partition(":")
        if kind == "text" and which in map(str, range(len(model.example_texts))):
            return self._update(text=model.example_texts[int(which)])
        if kind == "picture" and which in model.example_images:
            return self._update(image=model.copy_example(which, self.folder))
        return gr.skip()  # an example of the model that was chosen before

    def describe_methods(self, names: list[str]) -> Markup:
        """Describe the chosen methods."""
        return html_fragments.method_descriptions(names)

    def open_link(self, address: str) -> Update:
        """Fill in the query of the link by which the page was opened."""
        try:
            query = Query.from_link(address.partition("#")[2])
            if query is None:
                return gr.skip()
            model = self.service.models[query.model]
            unknown = [name for name in query.methods if name not in list_methods()]
            if unknown or not query.methods:
                raise InputError(f"The link asks for a method that is not here: {', '.join(unknown) or 'none'}.")
        except WhenceError as error:
            return self._update(status=html_fragments.message(str(error), "problem"))
        return self._fill_form(model, query) | self._update(linked_query=query)

    def explain_link(
        self, model: str, text: str, second: str, image: str | None, methods: list[str], target: str,
        second_target: str, previous: PreviousRun, linked: Query | None, request: gr.Request,
    ) -> Iterator[Update]:  # fmt: skip
        """Explain the query of a link at once, unless its image has to be uploaded again."""
        if linked is None:
            yield gr.skip()
        elif self.service.models[linked.model].reads_image and not linked.picture:
            yield self._update(
                status=html_fragments.message("No link holds an uploaded picture: give it again, then explain it.")
            )
        else:
            yield from self.explain(
                model, text, second, image, methods, target, second_target, previous, linked, request
            )

    # -- explanations ------------------------------------------------------------------------------------------------

    def explain(
        self, model: str, text: str, second: str, image: str | None, methods: list[str], target: str,
        second_target: str, previous: PreviousRun, linked: Query | None, request: gr.Request,
    ) -> Iterator[Update]:  # fmt: skip
        """Explain the input in the form, showing the progress."""
        targets = tuple(dict.fromkeys(t for t in (target, second_target) if t))
        is_example = self._is_example(model, image)
        query = Query(
            model=model,
            text=text or "",
            second=second or "",
            picture=Path(image or "").name if is_example else "",
            upload="" if is_example else image or "",
            methods=tuple(methods or ()),
            targets=() if targets == (PREDICTION,) else targets,
        )
        if linked is not None and query == replace(linked, upload=query.upload, chosen=-1):
            query = replace(query, chosen=linked.chosen)
        yield from self._run(query, previous, request)

    def _run(self, query: Query, previous: PreviousRun, request: gr.Request) -> Iterator[Update]:
        """Run a query, showing each method's explanations as they are ready."""
        yield self._update(
            explain=gr.update(visible=False),
            cancel=gr.update(visible=True),
            status=html_fragments.message("Explaining", "work"),
        )
        done: list[MethodResult] = []
        shown = 0
        visitor = _visitor(request)
        start = time.perf_counter()
        running = self.service.start(visitor, lambda task: self.service.answer(visitor, query, task, done.append))
        try:
            for progress in running.progress(POLL_SECONDS):
                fresh = {"explanations": html_fragments.explanation_cards(done)} if len(done) > shown else {}
                shown = len(done)
                yield self._update(status=html_fragments.message(progress, "work"), **fresh)
        finally:
            running.task.cancel()  # the visitor may have left
        result, problem = self._result_or_problem(running.result)
        update = self._update(status=problem)
        if result is not None:
            run = PreviousRun(html_fragments.class_probabilities(result), time.perf_counter() - start)
            update |= self._show(result, previous.probabilities) | self._update(previous=run)
        yield update | self._update(explain=gr.update(visible=True), cancel=gr.update(visible=False))

    def explain_typing(
        self, model: str, text: str, second: str, image: str | None, methods: list[str], target: str,
        second_target: str, previous: PreviousRun, linked: Query | None, request: gr.Request,
    ) -> Iterator[Update]:  # fmt: skip
        """Explain the text while it is typed, if the last explanation was fast."""
        if text.strip() and previous.seconds < FAST_SECONDS:
            yield from self.explain(
                model, text, second, image, methods, target, second_target, previous, linked, request
            )
        else:
            yield gr.skip()

    def _is_example(self, model: str, image: str | None) -> bool:
        """Return whether an image is one of the model's examples: Gradio passes a copy of the same file name."""
        if not image:
            return False
        example = self.service.models[model].example_images.get(Path(image).name)
        try:
            return example is not None and example.read_bytes() == Path(image).read_bytes()
        except OSError:
            return False

    def _result_or_problem(self, function: Callable[[], T]) -> tuple[T | None, Markup]:
        """Return what a function returns, or the message of its error."""
        try:
            return self.service.log_defects(function), Markup("")
        except WhenceError as error:
            kind = "note" if isinstance(error, CancelledError) else "problem"
            return None, html_fragments.message(str(error), kind)

    def _show(self, result: QueryResult, before: Mapping[str, float]) -> Update:
        """Show a result, with the change of the probabilities."""
        query = result.query
        names = result.names
        update = self._update(
            prediction=html_fragments.prediction(result, before),
            choices=html_fragments.choices(result),
            explanations=html_fragments.result_section(result),
            details=gr.update(visible=bool(names)),
            explanation_name=gr.update(choices=names, value=names[0] if names else None, visible=len(names) > 1),
            counterfactual="",
            use_text=gr.update(visible=False),
            code=code(result, self.service.models[query.model]),
            fragment=query.to_link(),
            query=query,
        )
        return update | (self._show_details(result.explanations[0]) if names else {})

    def cancel(self, request: gr.Request) -> None:
        """Cancel all tasks of the visitor."""
        self.service.cancel(_visitor(request))

    def choose(self, query: Query | None, event: gr.EventData, request: gr.Request) -> Iterator[Update]:
        """Explain the token, object or word that was chosen."""
        chosen = str(event.asked)
        if query is None or not chosen.isdecimal():
            yield gr.skip()
        else:
            yield from self._run(replace(query, chosen=int(chosen[:9])), PreviousRun(), request)

    # -- details of one explanation ----------------------------------------------------------------------------------

    def _find_explanation(self, query: Query | None, name: str | None, request: gr.Request) -> Explanation | None:
        """Return the chosen explanation of a query's result, from the cache or recomputed."""
        if query is None:
            return None
        visitor = _visitor(request)
        running = self.service.start(visitor, lambda task: self.service.answer(visitor, query, task), "closer")
        result, _ = self._result_or_problem(running.result)
        if result is None or not result.explanations:
            return None
        return result.explanations[result.names.index(name) if name in result.names else 0]

    def _show_details(self, e: Explanation) -> Update:
        layers = 0 if e.layers is None else e.layers.shape[1]
        return self._update(
            ledger=html_fragments.ledger(e),
            random_test="",
            layer=gr.update(maximum=max(layers - 1, 1), value=0, visible=layers > 1),
            layer_scores=html_fragments.layer(e, 0),
            heads=html_fragments.heads(e),
        )

    def show_details(self, query: Query | None, name: str, request: gr.Request) -> Update:
        """Show the details of another explanation."""
        e = self._find_explanation(query, name, request)
        return gr.skip() if e is None else self._show_details(e)

    def show_layer(self, query: Query | None, name: str, layer: float, request: gr.Request) -> Markup:
        """Show another layer."""
        e = self._find_explanation(query, name, request)
        return Markup("") if e is None else html_fragments.layer(e, int(layer))

    def compare_with_random(self, query: Query | None, name: str, request: gr.Request) -> Iterator[Update]:
        """Test the explanation against random rankings."""
        e = self._find_explanation(query, name, request)
        if query is None or e is None:
            yield gr.skip()
            return

        def test(task: CancellableTask, visitor: str) -> Markup:
            return html_fragments.random_ranking_plot(self.service.compare_with_random(visitor, query, task, e))

        yield from self._run_below_button("random_test", "test", request, test)

    def find_counterfactual(self, query: Query | None, request: gr.Request) -> Iterator[Update]:
        """Find the smallest change that flips the prediction, and offer the changed text as input."""
        if query is None:
            yield gr.skip()
            return
        texts: list[str] = []

        def search(task: CancellableTask, visitor: str) -> Markup:
            found = self.service.find_counterfactual(visitor, query, task)
            if found.found and isinstance(found.changed, str):
                texts.append(found.changed)
            return html_fragments.island(counterfactual_section(found))

        yield self._update(use_text=gr.update(visible=False))
        yield from self._run_below_button("counterfactual", "flip", request, search)
        yield self._update(use_text=gr.update(visible=bool(texts)), changed_text="".join(texts))

    def _run_below_button(
        self, output: str, button: str, request: gr.Request, function: Callable[[CancellableTask, str], Markup]
    ) -> Iterator[Update]:
        """Run a task that a button started and its ``_cancel`` button cancels; show progress and result below them."""
        visitor = _visitor(request)
        busy = {button: gr.update(visible=False), f"{button}_cancel": gr.update(visible=True)}
        idle = {button: gr.update(visible=True), f"{button}_cancel": gr.update(visible=False)}
        running = self.service.start(visitor, lambda task: function(task, visitor), output)
        try:
            yield self._update(**{output: html_fragments.message("Waiting in the queue", "work")}, **busy)
            for progress in running.progress(POLL_SECONDS):
                yield self._update(**{output: html_fragments.message(progress, "work")})
        finally:
            running.task.cancel()
        found, problem = self._result_or_problem(running.result)
        yield self._update(**{output: found or problem}, **idle)

    def save_as(self, suffix: str) -> Callable[..., Update]:
        """Return the callback that sends the result to the browser as a file."""

        def save(query: Query | None, request: gr.Request) -> Update:
            if query is None:
                return gr.skip()
            visitor = _visitor(request)
            running = self.service.start(
                visitor, lambda task: self.service.export(visitor, query, task, suffix), "save"
            )
            content, problem = self._result_or_problem(running.result)
            if content is None:
                return self._update(file=None, status=problem)
            file = {
                "name": f"whence.{suffix}",
                "type": MEDIA_TYPES[suffix],
                "content": base64.b64encode(content).decode(),
            }
            return self._update(file=file, status="")

        return save


def _visitor(request: gr.Request) -> str:
    return str(getattr(request, "session_hash", None) or getattr(getattr(request, "client", None), "host", "") or "?")
