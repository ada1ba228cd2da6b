"""A look inside a run."""

from __future__ import annotations

from whence.methods.registry import create
from whence.readout.map_walk import visit_gradients
from whence.runs.forward import forwarded
from whence.runs.model_inputs import prepare


def traced(model, inputs, method, target=None, **options):
    """The method and the run that ``whence.explain`` would read, before it is read."""
    chosen = create(method, options)
    with forwarded(model, *prepare(model, inputs), chosen, [target]) as (run,):
        return chosen, run


def looked_at(run):
    """Each attention's map and its gradient, by index, in the order in which they are shown."""
    found = {}
    visit_gradients(run, lambda i, _, A, gradient: found.__setitem__(i, (A.clone(), gradient.clone())))
    return found
