"""The service behind the page: runs visitors' queries in a fair queue, caches their results, cancels on request."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from ..counterfactuals.counterfactual import counterfactual
from ..counterfactuals.result import Counterfactual
from ..errors import EngineError, MethodError, ModelError, TargetError, WhenceError
from ..evaluation.random_order_test import Trial, trial
from ..explainer.explainer import Explainer
from ..explainer.generation import Generation
from ..explanations.explanation import Explanation, Explanations
from ..localisation import detect
from ..results.input_origin import ImageOrigin
from ..targets.specs import every
from .cancellable import CancellableTask, CancelledError, RunningTask
from .fair_queue import FairQueue
from .limits import Limits
from .log import Log
from .model_registry import ModelRegistry
from .query import Query
from .query_result import (
    ClassificationResult,
    DetectionResult,
    GenerationResult,
    MethodResult,
    QueryResult,
    explain_word,
)
from .result_cache import ResultCache

T = TypeVar("T")
Cacheable = TypeVar("Cacheable", bound=Iterable[Explanation])
DETECTION_BYTES = 1024  # approximate size of a detection in the cache
THREADS = 64  # each task waits in one; the queue decides how many compute

FAILED = "Something went wrong in the server; it was written to its log. Try again, or another method."


class DefectError(WhenceError):
    """An unexpected error, reported to visitors without its details."""


class ExplanationService:
    """Runs the queries of all visitors.

    Args:
        models: the models that are served.
        limits: the largest inputs and requests.
        log: where events are written.
        slots: how many tasks compute at once, each on a copy of the model.
    """

    def __init__(
        self, models: ModelRegistry, limits: Limits | None = None, log: Log | None = None, slots: int = 1
    ) -> None:
        self.models = models
        self.limits = limits or Limits()
        self.log = log or Log()
        self.queue = FairQueue(slots)
        self.cache = ResultCache()
        self._copies = {name: model.copies(slots) for name, model in models.items()}
        self._pool = ThreadPoolExecutor(THREADS, "whence")
        self._tasks: dict[tuple[str, str], CancellableTask] = {}
        self._lock = threading.Lock()
        self._figure_lock = threading.Lock()

    # -- tasks -------------------------------------------------------------------------------------------------------

    def start(self, visitor: str, function: Callable[[CancellableTask], T], kind: str = "explain") -> RunningTask[T]:
        """Start a task in a thread; cancel the visitor's previous task of the same kind."""
        task = CancellableTask()
        key = visitor, kind
        with self._lock:
            previous = self._tasks.get(key)
            self._tasks[key] = task
        if previous is not None:
            previous.cancel("")

        def run() -> T:
            try:
                return function(task)
            finally:
                with self._lock:
                    if self._tasks.get(key) is task:
                        del self._tasks[key]

        return RunningTask(self._pool, task, run)

    def log_defects(self, function: Callable[[], T]) -> T:
        """Return what a function returns; log an unexpected error and raise a :class:`DefectError` instead.

        The message of the error may quote a visitor's text: it is logged only if texts are.
        """
        try:
            return function()
        except Exception as error:
            if isinstance(error, WhenceError) and not isinstance(error, EngineError):
                raise
            defect = (isinstance(error, EngineError) and error.__cause__) or error
            frames = "".join(traceback.format_tb(defect.__traceback__))
            self.log("failure", str(defect), error=type(defect).__name__, traceback=frames)
            raise DefectError(FAILED) from error

    def cancel(self, visitor: str) -> None:
        """Cancel all tasks of a visitor."""
        with self._lock:
            tasks = [task for (owner, _), task in self._tasks.items() if owner == visitor]
        for task in tasks:
            task.cancel()

    def close(self) -> None:
        """Cancel all tasks and end the threads."""
        with self._lock:
            tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel("The server has ended.")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compute(
        self, visitor: str, query: Query, task: CancellableTask, event: str, function: Callable[[Explainer], T]
    ) -> T:
        """Wait in the queue, apply a function to a free copy of the query's model, and log the event."""
        with self.queue.slot(visitor, task.check) as slot:
            start = time.perf_counter()
            outcome = "done"
            try:
                return function(self._copies[query.model][slot])
            except Exception as error:
                outcome = type(error).__name__
                raise
            finally:
                milliseconds = round(1000 * (time.perf_counter() - start))
                self.log(event, query.text + query.second, model=query.model, ms=milliseconds, outcome=outcome)

    def _cached(self, key: Hashable, compute: Callable[[], Cacheable]) -> Cacheable:
        found: Cacheable | None = self.cache.get(key)
        if found is None:
            found = compute()
            self.cache.add(key, found)
        return found

    # -- queries -----------------------------------------------------------------------------------------------------

    def answer(
        self, visitor: str, query: Query, task: CancellableTask,
        on_result: Callable[[MethodResult], None] = lambda _: None,
    ) -> QueryResult:  # fmt: skip
        """Compute what the page shows for a query.

        Args:
            visitor: whose query it is.
            query: the query.
            task: its progress; checked for cancellation before each step.
            on_result: called after each method of a classifier.
        """
        model = self.models[query.model]
        query.check(model, self.limits)
        if model.generates_text:
            return self._generate(visitor, query, task)
        if model.detects_objects:
            return self._detect(visitor, query, task)

        def explain(method: str) -> Explanations:
            return self._explain(visitor, query, task, method)

        result = ClassificationResult(query, self._apply_methods(query, task, "", explain, on_result))
        if not 0 <= query.chosen < len(result.words):
            return result
        task.begin("one word")
        return replace(result, word_explanation=self._explain_word(visitor, query, task, result))

    def _apply_methods(
        self, query: Query, task: CancellableTask, step: str, explain: Callable[[str], Iterable[Explanation]],
        on_result: Callable[[MethodResult], None] = lambda _: None,
    ) -> list[MethodResult]:  # fmt: skip
        """Return the explanations of each method, or why it is not applicable."""
        results = []
        for i, method in enumerate(query.methods):
            position = f" ({i + 1} of {len(query.methods)})" if len(query.methods) > 1 else ""
            task.begin(f"{step}{method}{position}")
            try:
                result = MethodResult(method, list(explain(method)))
            except (ModelError, MethodError, TargetError) as error:
                result = MethodResult(method, error=str(error))
            results.append(result)
            on_result(result)
        return results

    def _explain(self, visitor: str, query: Query, task: CancellableTask, method: str) -> Explanations:
        given = query.explainer_input(self.models[query.model])
        return self._cached(
            ("explain", *query.cache_key, method, query.targets),
            lambda: self._compute(
                visitor, query, task, f"explain {method}",
                lambda explainer: _explain_targets(explainer, given, method, query.explainer_targets()),
            ),
        )  # fmt: skip

    def _explain_word(
        self, visitor: str, query: Query, task: CancellableTask, result: ClassificationResult
    ) -> Explanation:
        """Return the relevance of the image for the chosen word of the text."""
        word = result.words[query.chosen]
        given = query.explainer_input(self.models[query.model])
        return self._cached(
            ("word", *query.cache_key, query.chosen),
            lambda: self._compute(
                visitor, query, task, "explain word",
                lambda explainer: Explanations([explain_word(explainer, given, word)]),
            ),
        )[0]  # fmt: skip

    def _generate(self, visitor: str, query: Query, task: CancellableTask) -> GenerationResult:
        """Let a language model continue the text, and explain each generated token."""
        max_tokens = self.limits.tokens
        generations: list[Generation] = []

        def generate(method: str) -> Explanations:
            generations.append(self._cached(
                ("generate", *query.cache_key, method),
                lambda: self._compute(
                    visitor, query, task, f"generate {method}",
                    lambda explainer: explainer.generate(query.text, method=method, max_new_tokens=max_tokens),
                ),
            ))  # fmt: skip
            return Explanations()

        results = self._apply_methods(query, task, "writing, then ", generate)
        if not generations:
            raise ModelError(results[0].error)
        return GenerationResult(query, generations, [result for result in results if result.error])

    def _detect(self, visitor: str, query: Query, task: CancellableTask) -> DetectionResult:
        """Detect the objects of an image, and explain the chosen one."""
        model = self.models[query.model]
        given = query.explainer_input(model)
        task.begin("looking for objects")
        key = "detect", *query.cache_key
        objects = self.cache.get(key)
        if objects is None:
            objects = self._compute(visitor, query, task, "detect", lambda explainer: detect(explainer, given))
            self.cache.add(key, objects, DETECTION_BYTES * len(objects))
        image = next(o for o in model.explainer.read(given).origins.values() if isinstance(o, ImageOrigin))
        result = DetectionResult(query, objects, image, [])
        if not objects:
            return result
        chosen = objects[result.chosen]

        def explain(method: str) -> Explanations:
            return self._cached(
                ("object", *query.cache_key, method, chosen.query),
                lambda: self._compute(
                    visitor, query, task, f"explain {method}",
                    lambda explainer: Explanations([explainer(given, method, chosen.logit)]),
                ),
            )  # fmt: skip

        return replace(result, methods=self._apply_methods(query, task, f"{chosen.label}: ", explain))

    # -- further analyses of a result --------------------------------------------------------------------------------

    def find_counterfactual(self, visitor: str, query: Query, task: CancellableTask) -> Counterfactual:
        """Find the smallest change of the input that flips the prediction."""
        model = self.models[query.model]
        query.check(model, self.limits)
        task.begin("looking for the smallest change")
        given = query.explainer_input(model)
        method = query.methods[0]
        return self._compute(
            visitor, query, task, "counterfactual",
            lambda explainer: counterfactual(explainer, given, method, budget=self.limits.budget),
        )  # fmt: skip

    def compare_with_random(self, visitor: str, query: Query, task: CancellableTask, e: Explanation) -> Trial:
        """Test an explanation against random rankings."""
        task.begin("asking the model about parts of the input")
        given = query.explainer_input(self.models[query.model])
        return self._compute(visitor, query, task, "trial", lambda explainer: trial(explainer, given, e))

    def export(self, visitor: str, query: Query, task: CancellableTask, suffix: str) -> bytes:
        """Return the result of a query as the content of a file."""
        exported = self.answer(visitor, query, task).export
        task.begin("drawing")
        with self.queue.slot(visitor, task.check), self._figure_lock:  # matplotlib is not thread-safe
            return exported.content(f".{suffix}")


def _explain_targets(explainer: Explainer, given: Any, method: str, targets: Iterable[Any]) -> Explanations:
    """Return an explanation for each target, with the relevance inside the model if the method supports it."""
    seed = every(targets)
    try:
        explanations = explainer(given, method, seed, inside=True)
    except CancelledError:
        raise
    except WhenceError:
        explanations = explainer(given, method, seed)
    assert isinstance(explanations, Explanations)
    return explanations
