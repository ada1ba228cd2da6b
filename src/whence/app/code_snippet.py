"""The Python code that computes what the page shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .model_registry import ServedModel
from .query import Query
from .query_result import ClassificationResult, DetectionResult, GenerationResult, QueryResult

FILE = "'why.html'"


def code(result: QueryResult, model: ServedModel) -> str:
    """Return a program that saves what is shown.

    Example:
        >>> print(code(result, model))
        import whence
        explainer = whence.Explainer.from_pretrained('mine')
        explainer.compare('a gripping film', ['conservative-lrp']).save('why.html')
    """
    imports = ["import whence"]
    given = _input_expression(result.query, model)
    if "MODELS" in model.source_expression + given:
        imports.append("from whence.models import MODELS")
    if isinstance(result, DetectionResult) and result.objects:
        imports.append("from whence.localisation import detect")
    load = f"explainer = whence.Explainer.from_pretrained({model.source_expression})"
    return "\n".join([*imports, load, *_explain_and_save(result, model, given)])


def _explain_and_save(result: QueryResult, model: ServedModel, given: str) -> list[str]:
    query = result.query
    if isinstance(result, GenerationResult):
        token = f"[{result.chosen}]" if query.chosen >= 0 or len(query.methods) > 1 else ""
        max_tokens = len(result.generation)
        return _for_each_method(query, f"explainer.generate({given}, method={{}}, max_new_tokens={max_tokens}){token}")
    if isinstance(result, DetectionResult) and result.objects:
        detection = f"found = detect(explainer, {given})[{result.chosen}]"
        return [detection, *_for_each_method(query, f"explainer({given}, {{}}, found.logit)")]
    if isinstance(result, ClassificationResult) and result.word_explanation is not None:
        return [_explain_word(result, model, given)]
    targets = query.explainer_targets()
    argument = f", {targets!r}" if targets != [None] else ""
    return [f"explainer.compare({given}, {list(query.methods)!r}{argument}).save({FILE})"]


def _for_each_method(query: Query, expression: str) -> list[str]:
    """Return the lines that save an expression, whose ``{}`` is the method, for one method or for each of several."""
    names = list(query.methods)
    if len(names) == 1:
        return [f"{expression.replace('{}', repr(names[0]))}.save({FILE})"]
    return [f"for method in {names!r}:", f"    {expression.replace('{}', 'method')}.save(f'why-{{method}}.html')"]


def _explain_word(result: ClassificationResult, model: ServedModel, given: str) -> str:
    """Return the line that explains one word as :func:`~whence.app.query_result.explain_word` does."""
    word = result.words[result.query.chosen]
    if model.explainer.compares:
        alone = _input_expression(replace(result.query, text=word.text, second=""), model)
        return f"explainer({alone}, 'generic-attention').save({FILE})"
    return f"explainer({given}, 'generic-attention', token={word.positions[0]}).save({FILE})"


def _input_expression(query: Query, model: ServedModel) -> str:
    """Return the input as a Python expression, with the file name of an image."""
    text = repr((query.text, query.second)) if query.second.strip() else repr(query.text)
    if not model.reads_image:
        return text
    if query.upload:
        image = repr(Path(query.upload).name)
    elif model.shipped:
        image = f'{model.source_expression} / "examples" / {query.picture!r}'
    else:
        image = repr(f"{model.source}/examples/{query.picture}")
    return f"{{'image': {image}, 'text': {text}}}" if model.reads_text else image
