"""Answers visitors' questions: in turn, from what is kept where it can, and for as long as they want to know."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..counterfactuals.counterfactual import counterfactual
from ..counterfactuals.result import Counterfactual
from ..errors import MethodError, ModelError, TargetError, WhenceError
from ..evaluation.random_order_test import Trial, trial
from ..explainer.explainer import Explainer
from ..explainer.generation import Generation
from ..explanations.explanation import Explanation, Explanations
from ..localisation import detect
from ..results.input_origin import ImageOrigin
from ..targets.specs import every
from .cancellable import CancelledError, Running, Work
from .fair_queue import Turns
from .limits import Limits
from .log import Log
from .model_registry import Served, Shelf
from .query import Question
from .query_result import Classified, Detected, Found, Outcome, Written, of_word
from .result_cache import Kept

T = TypeVar("T")
Several = TypeVar("Several", bound=Iterable[Explanation])
OBJECT = 1024  # bytes that a detection takes, about
THREADS = 64  # each visitor's work waits in one; how many compute is up to the turns

FAILED = "Something went wrong in the server; it was written to its log. Try again, or another method."


class DefectError(WhenceError):
    """What should not have happened, as visitors are told of it."""


class Desk:
    """Where all questions arrive.

    Args:
        shelf: the models.
        limits: what may be asked.
        log: where it is written down.
        places: how many explanations are computed at once, each by a copy of the model of its own.
    """

    def __init__(self, shelf: Shelf, limits: Limits | None = None, log: Log | None = None, places: int = 1) -> None:
        self.shelf, self.limits, self.log = shelf, limits or Limits(), log or Log()
        self.turns = Turns(places)
        self._copies = {name: served.copies(places) for name, served in shelf.items()}
        self.kept = Kept()
        self._pool = ThreadPoolExecutor(THREADS, "whence")
        self._works: dict[tuple[str, str], Work] = {}
        self._lock, self._drawing = threading.Lock(), threading.Lock()

    # -- work --------------------------------------------------------------------------------------------------------

    def start(self, visitor: str, task: Callable[[Work], T], what: str = "explain") -> Running[T]:
        """Begin a piece of work; what this visitor had asked for before under the same name is no longer wanted."""
        work, key = Work(), (visitor, what)
        with self._lock:
            before, self._works[key] = self._works.get(key), work
        if before is not None:
            before.cancel("")

        def whole() -> T:
            try:
                return task(work)
            finally:
                with self._lock:
                    if self._works.get(key) is work:
                        del self._works[key]

        return Running(self._pool, work, whole)

    def guarded(self, do: Callable[[], T]) -> T:
        """What it comes to; of a defect its place is logged, and its message only with inputs, as it may quote them."""
        try:
            return do()
        except WhenceError:
            raise
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))
            self.log("failure", str(error), error=type(error).__name__, traceback=where)
            raise DefectError(FAILED) from error

    def cancel(self, visitor: str) -> None:
        """End all that a visitor asked for."""
        with self._lock:
            mine = [work for (who, _), work in self._works.items() if who == visitor]
        for work in mine:
            work.cancel()

    def close(self) -> None:
        """End all that anyone asked for."""
        with self._lock:
            works = list(self._works.values())
        for work in works:
            work.cancel("The server has ended.")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _done(self, visitor: str, work: Work, what: str, question: Question, do: Callable[[Explainer], T]) -> T:
        """One unit of work, in its turn, by the copy of the model that is free, written down."""
        with self.turns.turn(visitor, work.check) as place:
            start, outcome = time.perf_counter(), "done"
            try:
                return do(self._copies[question.model][place])
            except Exception as error:
                outcome = type(error).__name__
                raise
            finally:
                spent = round(1000 * (time.perf_counter() - start))
                self.log(what, question.text + question.second, model=question.model, ms=spent, outcome=outcome)

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(
        self, visitor: str, question: Question, work: Work, said: Callable[[Found], None] = lambda _: None
    ) -> Outcome:
        """What there is to show.

        Args:
            visitor: who asks.
            question: what.
            work: asked before each step whether to go on.
            said: called as each method is done.
        """
        served = self.shelf[question.model]
        question.checked(served, self.limits)
        if served.writes:
            return self._written(visitor, question, served, work)
        if served.finds:
            return self._detected(visitor, question, served, work)

        def made(method: str) -> Explanations:
            return self._by(visitor, question, served, method, work)

        outcome = Classified(question, self._by_each(question, work, "", made, said))
        if 0 <= question.chosen < len(outcome.words):
            work.begin("one word")
            outcome.word = self._of_word(visitor, question, served, outcome, work)
        return outcome

    def _kept(self, key: Hashable, make: Callable[[], Several]) -> Several:
        found: Several | None = self.kept.get(key)
        if found is None:
            found = make()
            self.kept.add(key, found)
        return found

    def _by(self, visitor: str, question: Question, served: Served, method: str, work: Work) -> Explanations:
        given = question.input(served)
        return self._kept(
            ("explain", *question.about, method, question.targets),
            lambda: self._done(
                visitor, work, f"explain {method}", question,
                lambda one: _explained(one, given, method, question.wanted()),
            ),
        )  # fmt: skip

    def _of_word(
        self, visitor: str, question: Question, served: Served, outcome: Classified, work: Work
    ) -> Explanation:
        """Where in the picture one word of the text points."""
        word = outcome.words[question.chosen]
        given = question.input(served)
        return self._kept(
            ("word", *question.about, question.chosen),
            lambda: self._done(
                visitor, work, "explain word", question, lambda one: Explanations([of_word(one, given, word)])
            ),
        )[0]  # fmt: skip

    def _written(self, visitor: str, question: Question, served: Served, work: Work) -> Outcome:
        """What a language model writes, and what each token came from."""
        most = self.limits.tokens
        generations: list[Generation] = []

        def made(method: str) -> Explanations:
            generations.append(self._kept(
                ("generate", *question.about, method),
                lambda: self._done(
                    visitor, work, f"generate {method}", question,
                    lambda one: one.generate(question.text, method=method, max_new_tokens=most),
                ),
            ))  # fmt: skip
            return Explanations()

        found = self._by_each(question, work, "writing, then ", made)
        if not generations:
            raise ModelError(found[0].refused)
        return Written(question, generations, [one for one in found if one.refused])

    def _by_each(
        self, question: Question, work: Work, step: str, made: Callable[[str], Iterable[Explanation]],
        said: Callable[[Found], None] = lambda _: None,
    ) -> list[Found]:  # fmt: skip
        """What each method makes of it, or why it refuses."""
        found = []
        for i, method in enumerate(question.methods):
            of = f" ({i + 1} of {len(question.methods)})" if len(question.methods) > 1 else ""
            work.begin(f"{step}{method}{of}")
            try:
                found.append(Found(method, list(made(method))))
            except (ModelError, MethodError, TargetError) as error:
                found.append(Found(method, refused=str(error)))
            said(found[-1])
        return found

    def _detected(self, visitor: str, question: Question, served: Served, work: Work) -> Outcome:
        """What a detector finds, and what the chosen object rests on."""
        given = question.input(served)
        work.begin("looking for objects")
        found = self.kept.get(("detect", *question.about))
        if found is None:
            found = self._done(visitor, work, "detect", question, lambda one: detect(one, given))
            self.kept.add(("detect", *question.about), found, OBJECT * len(found))
        picture = next(o for o in served.explainer.read(given).origins.values() if isinstance(o, ImageOrigin))
        if not found:
            return Detected(question, found, picture, [])
        chosen = found[min(max(question.chosen, 0), len(found) - 1)]

        def made(method: str) -> Explanations:
            return self._kept(
                ("object", *question.about, method, chosen.query),
                lambda: self._done(
                    visitor, work, f"explain {method}", question,
                    lambda one: Explanations([one(given, method, chosen.logit)]),
                ),
            )  # fmt: skip

        return Detected(question, found, picture, self._by_each(question, work, f"{chosen.label}: ", made))

    def flip(self, visitor: str, question: Question, work: Work) -> Counterfactual:
        """The smallest change that flips the prediction."""
        served = self.shelf[question.model]
        question.checked(served, self.limits)
        work.begin("looking for the smallest change")
        given, method = question.input(served), question.methods[0]
        return self._done(
            visitor, work, "counterfactual", question,
            lambda one: counterfactual(one, given, method, budget=self.limits.budget),
        )  # fmt: skip

    def trial(self, visitor: str, question: Question, work: Work, e: Explanation) -> Trial:
        """An explanation against random orders."""
        served = self.shelf[question.model]
        work.begin("asking the model about parts of the input")
        given = question.input(served)
        return self._done(visitor, work, "trial", question, lambda one: trial(one, given, e))

    def file(self, visitor: str, question: Question, work: Work, ending: str) -> bytes:
        """All that is shown, as a file; figures are drawn one after the other."""
        whole = self.answer(visitor, question, work).whole
        work.begin("drawing")
        with self.turns.turn(visitor, work.check), self._drawing:
            return whole.content(f".{ending}")


def _explained(explainer: Explainer, given: Any, method: str, wanted: Iterable[Any]) -> Explanations:
    """An explanation for each target, with what happened inside where that can be said."""
    targets = every(wanted)
    try:
        return _several(explainer(given, method, targets, inside=True))
    except CancelledError:
        raise
    except WhenceError:
        return _several(explainer(given, method, targets))


def _several(found: Any) -> Explanations:
    assert isinstance(found, Explanations)
    return found
