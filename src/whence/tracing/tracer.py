"""The trace: the user's model runs as it is, and each torch operation is swapped for one with the same value.

:class:`Trace` is a ``TorchFunctionMode``. It knows operations and no method: for every call it finds out what
kind of operation this is, asks the rulebook for the rule of that kind, and notes what happened: attentions,
residual additions, sources, what had a rule and what had not.

The model is not touched. Parameters enter each operation detached, so nothing about them needs to be switched
off and on again, and two threads may explain the same model (in evaluation mode) at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from ..capture.tape import checking
from ..errors import ModelError
from . import operations as ops
from .attention_record import AttentionRecord
from .autograd_graph import AutogradGraph
from .axes import Axes, Axis, Known, descends, follow, fresh, guess
from .composites import COMPOSITE, OPENED, PARTICULAR, exposed, laid_out
from .coverage import EXACT, Coverage
from .custom_autograd import hooks_on_saved_tensors, keep, opened, refuse_checkpoints
from .fused_attention import FusedMap, attend
from .node import Node, walk
from .op_call import Call, Classification, Hold, OutputNode, Rule, RuleResult, as_it_is, map_tensors, tensors_in
from .op_kinds import classified
from .output_head import OutputHead
from .quantised import dequantised, is_quantised
from .recognition.assembled import written
from .recognition.contraction import summed_axes
from .recognition.elementwise import (
    ELEMENTWISE,
    activation,
    is_activation,
    is_mask,
    keep_roots,
    release_roots,
    stacked_activation,
)
from .recognition.lookups import lookup
from .recognition.merged_layers import merged_layers
from .recognition.rewriting import Pattern, equal, rewritten
from .recognition.softmax import LOGARITHMIC, softmax
from .reordering import moved_axes, selected_tokens
from .replay import Recipe
from .residuals import Residual, ResidualList
from .sparse_rows import SparseRows
from .tensor_info import (
    Source,
    attach,
    derive,
    distant,
    edge_of,
    info_of,
    inform,
    is_weight,
    node_of,
    origins,
    past,
)
from .tensor_parallel import is_split, refusal, refuse_split_table, refuse_split_tokens

if TYPE_CHECKING:
    from ..propagation.ledger import Ledger


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]

#: kinds of operations that scores are made by, or that are before these
PRODUCTS = ("matmul", "mix", "attention", "linear", "convolution", "norm")


class Trace(TorchFunctionMode):
    """Runs whatever is called inside it under a rulebook.

    Args:
        rules: the rule of each kind of operation; a kind without one keeps its plain derivative.
        batch: the number of samples.
        maps: whether attention probabilities are needed as tensors (fused attention is then written out).
        fan_out: called with each tensor that a second operation reads.
        names: the name of each parameter, by ``id``.
        replaced: values to put in place of tensors, by the ``seq`` of their nodes in an earlier trace.
        learned: parameters (by ``id``) that are tokens of the model's own, such as DETR's queries: sources, too.
        head: where to keep the operations behind the last block.
        hold: how records hold a value: as it is, or to be recomputed (checkpoints).
        ledger: makes the ledger, given the batch axis and ``hold``.
        heads: whether all attention heads are needed: a model that is split over processes is then refused.

    Example:
        >>> with Trace({}, batch=2) as trace:
        ...     output = model(trace.input("x", x))
        >>> len(trace.attentions)
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        batch: int,
        maps: bool = False,
        fan_out: Callable[[Tensor, Node], None] | None = None,
        names: Mapping[int, str] | None = None,
        replaced: Mapping[int, Tensor] | None = None,
        learned: frozenset[int] = frozenset(),
        head: OutputHead | None = None,
        hold: Hold = as_it_is,
        ledger: Callable[[Axis, Hold], Ledger] | None = None,
        heads: bool = False,
    ) -> None:
        super().__init__()
        self.rules = rules
        self.batch = Axis(batch)
        self.autograd_graph = AutogradGraph(self.batch)
        self.maps = maps
        self.fan_out = fan_out
        self.names = names or {}
        self.replaced = dict(replaced or {})  # each leaves when it is put in its place
        self.placed: dict[int, Tensor] = {}  # those that were
        self.learned = learned
        self.head = head
        self.asking: set[int] = set()  # parameters that some attention's queries are made of, and of nothing else
        self.coverage = Coverage()
        self.hold = hold
        self.ledger = None if ledger is None else ledger(self.batch, hold)
        self.heads = heads
        self.is_split = False  # whether each process computes with slices of the weights (tensor parallelism)
        self.attentions: list[AttentionRecord] = []
        self.pieces = False  # whether some attention is in pieces that are not followed (a sliding window)
        self.last_linear: tuple[Node, tuple[Any, ...]] | None = None  # what it made, and what of
        self.residuals = ResidualList(light=not maps)
        self.sources: list[Source] = []
        self.entry: Tensor | None = None  # what the first attention reads, where no residual says so
        self._mixers: dict[int, int] = {}  # seq of the node that an attention wrote -> its index
        self._early: list[Tensor] | None = []  # tensors made before the first attention
        self._seq = 0
        # the patterns by which calls are being run in their usual form; without a rule that reads weights, a sum of
        # linear layers is as good as one, and takes no memory for the weight of that
        self._forms: list[Pattern] = [] if "linear" in rules else [merged_layers]
        self._held: list[Tensor] = []  # what exponentials were taken of since the last residual addition
        self.sparse_rows = SparseRows()
        self._hidden = False  # whether something was made while gradients were switched off
        self._constants: dict[int, Tensor] = {}
        self._inputs: dict[int, str] = {}

    def __enter__(self) -> Trace:
        self._hooks = hooks_on_saved_tensors()
        super().__enter__()
        return self

    # -- sources -----------------------------------------------------------------------------------------------

    def input(self, name: str, value: Tensor) -> Tensor:
        """A user's tensor, ready to enter the model: a float tensor becomes a source of relevance."""
        tensor = value.detach().clone()
        node = self._node("input", (), guess(tensor.shape, (), self.batch))
        self._inputs[node.seq] = name
        return self._source(name, tensor, node, embedded=False) if tensor.is_floating_point() else attach(tensor, node)

    def _source(self, name: str, leaf: Tensor, node: Node, embedded: bool) -> Tensor:
        """A leaf at which relevance can be read, and the copy of it that the model may overwrite."""
        if self._has(node.seq, leaf):
            leaf = self._leaf(node.seq)
        self.sources.append(Source(name, attach(leaf.requires_grad_(), node), embedded))
        with torch.enable_grad():
            copy = leaf.clone()
            node = self._node("structural", (node,), node.axes)
            if self._has(node.seq, copy):
                with torch._C.DisableTorchFunction():
                    copy = self._leaf(node.seq).clone()
            return self.autograd_graph.attach(copy, node)

    def _embed(self, call: Call) -> Tensor:
        """Rows looked up for the user's integers are where relevance can be read."""
        rows: Tensor = call.run().detach()
        origin = next((n for n in call.nodes if n is not None), None)
        if origin is None:
            return rows
        node = self._node("embedding", (origin,), self._follow(call, [rows])[0])
        while origin.parents and (origin.kind in ("structural", "selecting") or origin.name in ("one_hot", "argmax")):
            origin = origin.parents[0]
        return self._source(self._inputs.get(origin.seq, ""), rows, node, embedded=True)

    # -- the mode ----------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs:
            args, kwargs = ops.usual_arguments(args, kwargs)
        if hasattr(func, "impl_aten"):  # a primitive of torch's references, which has no derivative of its own
            with self:
                return func.impl_aten(*args, **kwargs)
        op = ops.operation(func)
        if op.name in ops.PASSIVE or (op.name in ops.IDENTITY and not kwargs.get("training", True)):
            return func(*args, **kwargs)
        if kwargs.get("inplace"):  # F.relu(x, inplace=True)
            op = op._replace(inplace=True)
        tensors = tensors_in(*args, *kwargs.values())
        if [t for t in tensors if type(t) is not Tensor and isinstance(t, torch.nn.Parameter)]:
            given = args, kwargs
            args, kwargs = map_tensors(given, self._constant)
            self._compare(op, func, given, (args, kwargs))
            tensors = [self._constant(t) for t in tensors]
        if self.rules and self._hidden and [t for t in tensors if info_of(t).visible is not None]:
            args, kwargs = map_tensors((args, kwargs), opened)
            tensors = tensors_in(*args, *kwargs.values())
        traced = [t for t in tensors if t.requires_grad]
        if len(traced) > 1:
            traced = list({id(t): t for t in traced}.values())
        nodes = [self._known(t) for t in tensors]
        if not traced and nodes.count(None) == len(nodes):
            if self.is_split and op.name == "embedding":
                refuse_split_table(tensors)
            result = func(*args, **kwargs)
            derive(tensors_in(result), op.name, tensors)
            return result
        func = laid_out(func) if op.name in PARTICULAR else func
        call = Call(op.name, "", func, args, kwargs, self.batch, tensors, nodes, traced, op.inplace)
        return self._embed(call) if op.name == "embedding" and not traced else self._dispatch(call, op)

    def _dispatch(self, call: Call, op: ops.Operation) -> Any:
        """Run a call, the primitive operations that it is composed of, or the same call in its usual form."""
        looked_up = lookup(call)
        if looked_up is not None:
            with self:
                return looked_up()
        refuse_checkpoints(call.traced, self._hooks)
        if call.traced and (call.traced[0].is_nested or "nested" in op.name):
            raise ModelError(
                "The model computes with nested (jagged) tensors, in which Whence does not follow samples and tokens. "
                "Give it padded tensors and a mask."
            )
        composite = self._composite(call, op)
        if composite is not None:
            with torch.enable_grad(), self:
                result = composite(*call.args, **call.kwargs)
                return call.args[0].copy_(result) if op.inplace else result
        if op.inplace and op.name in ("mul", "div") and len(call.traced) > 1 and call.apart():
            return self._overwrite(call)
        form = next(rewritten(call, self._forms), None) if call.traced else None
        if form is not None:
            if op.inplace and form.pattern is not written and call.apart():
                return self._overwrite(call)
            parts = self.attentions  # keeps what they hold alive until the form was run
            self._withdraw(form.replaces)
            self._forms.append(form.pattern)
            try:
                with torch.enable_grad(), self:
                    made = form.run()
                    if op.inplace:
                        return call.args[0].copy_(made)
                    return made.contiguous() if isinstance(made, Tensor) else made
            finally:
                self._forms.pop()
                del parts
        if torch.is_grad_enabled():
            return self._perform(call)
        self._hidden = True
        with torch.enable_grad():  # the model has switched gradients off (a frozen backbone)
            return self._perform(call) if op.inplace else keep(self._perform(call))

    def _overwrite(self, call: Call) -> Tensor:
        """Run an in-place operation as one that makes a new tensor, and copy that into its target."""
        target: Tensor = call.args[0]
        with torch.enable_grad():
            previous = attach(target.clone(), node_of(target))
            if target.requires_grad:  # what others have read before is part of its gradient
                inform(previous, edge=get_gradient_edge(target))
            node_of(target).refers_to(previous, anew=True)
            with self:
                return target.copy_(call.func(previous, *call.args[1:], **call.kwargs))

    def _withdraw(self, products: list[Node]) -> None:
        """Take back the records of attentions and residual sums that turn out to be parts of something else."""
        self.residuals.withdraw(products)
        gone = {self._mixers.pop(node.seq) for node in products if node.seq in self._mixers}
        if gone:
            kept = [i for i in range(len(self.attentions)) if i not in gone]
            self.attentions = [self.attentions[i] for i in kept]
            self._mixers = {seq: kept.index(i) for seq, i in self._mixers.items()}

    def _known(self, tensor: Tensor) -> Node | None:
        node, made_by, *_ = info_of(tensor)
        known = node if node is not None and node.batch is self.batch else None
        if not tensor.requires_grad:
            return known
        maker = type(tensor.grad_fn).__name__
        if known is not None and made_by == maker:
            return known
        # made by code that torch functions do not show: a custom autograd function
        refuse_split_tokens(tensor)
        parents = self.autograd_graph.behind(tensor) or (() if known is None else (known,))
        self.coverage.foreign(maker, max(len(parents), self.autograd_graph.inputs(tensor)), known is None)
        sources = [(p.axes, [math.prod(atom.size for atom in dim) for dim in p.axes]) for p in parents]
        axes = guess(tensor.shape, sources, self.batch) if known is None else known.axes
        node = self._node("foreign", parents, axes)
        node.describe(maker, parents)
        return node_of(self.autograd_graph.attach(tensor, node))

    def _constant(self, tensor: Tensor) -> Tensor:
        """A parameter, detached, under its name; a quantised one by the numbers that it stands for."""
        if type(tensor) is Tensor or not isinstance(tensor, torch.nn.Parameter):
            return tensor
        constant = self._constants.get(id(tensor))
        if constant is None and id(tensor) in self.learned:
            node = self._node("input", (), tuple(fresh(n) for n in tensor.shape))
            constant = self._constants[id(tensor)] = self._source("", tensor.detach().clone(), node, embedded=False)
            node_of(constant).mark(learned=True)
        if constant is None:
            if is_split(tensor):
                self._split(tensor)
            name = self.names.get(id(tensor), "")
            value = dequantised(tensor) if is_quantised(tensor) else tensor.detach()
            constant = inform(value, parameter=tensor, name=name, made_of=frozenset({id(tensor)}))
            self._constants[id(tensor)] = constant
        return constant

    def _compare(self, op: ops.Operation, func: Callable[..., Any], given: _Arguments, plain: _Arguments) -> None:
        """Let coverage know of a layer that differs from the one with dequantised weights: it rounds its input, too."""
        if op.name != "linear" or not any(map(is_quantised, tensors_in(*given[0]))):
            return
        with torch.no_grad(), checking():
            if not equal(func(*plain[0], **plain[1]), func(*given[0], **given[1])):
                self.coverage.rounds()

    def _split(self, weight: Tensor) -> None:
        """Note that the model is split over processes; sums for the ledger would be those of one process."""
        self.is_split, self.ledger = True, None
        if self.heads:
            raise refusal(self.names.get(id(weight), "a weight"), weight)

    def _composite(self, call: Call, op: ops.Operation) -> Callable[..., Any] | None:
        if op.name in COMPOSITE:
            return COMPOSITE[op.name]
        if op.name == "zeros_like" and call.nodes[0] is not None and call.nodes[0].learned:  # queries from nothing
            return lambda x, **_: x * 0
        if op.name in OPENED and hasattr(call.func, "__code__"):
            return exposed(call.func)
        if op.name not in ops.ATTENTION:
            return None
        rule = self.rules.get("attention")
        learned = info_of(call.argument(2, "value")).node is None  # values that no token is part of
        return attend if self.maps or learned or (rule is not None and not rule.accepts(call)) else None

    def _classify(self, call: Call) -> AttentionRecord | None:
        """Find out what kind of operation a call is; return the record of an attention, if it is one."""
        call.classify(classified(call))
        if call.kind == "unknown" and str(getattr(call.func, "__module__", "")).startswith("torch._ops"):
            self.coverage.suspect(str(call.func), len(call.traced))
        record = AttentionRecord.of(call) if call.kind == "mix" else None
        if call.kind == "mix" and record is None:
            self.pieces = True
        return record

    def _region(self, call: Call) -> Call | None:
        """The softmax or the activation that a call completes, as one operation on the tensor that it is of."""
        if not call.traced:
            return None
        found = softmax(call) or stacked_activation(call)
        if found is None and is_activation(call):
            with torch.no_grad():
                value = call.func(*call.args, **call.kwargs)
            found = activation(call, value)
        return found

    def _perform(self, written: Call) -> Any:
        """Run an operation by its rule, and note what happened."""
        own = written.copy()  # as the model has it
        call = self._region(written) or written
        record = None if call.composed else self._classify(call)
        own.classify(Classification(call.kind))
        rule = self.rules.get(call.kind) if call.traced else None
        before = self._before_overwriting(call) if call.inplace else None
        target = next(iter(call.args), None)
        apart = call.inplace and self._apart(call, rule)
        layer = rule is None and self.sparse_rows.takes(call)  # it enters its bias into the ledger by itself
        watched = self.ledger.watch(call, rule) if self.ledger is not None and call.traced and not layer else None
        found = self._run_layer(call) if layer else RuleResult(call.run()) if rule is None else rule.apply(call)
        result = found.output
        if apart and isinstance(target, Tensor):
            result = target.copy_(found.output)
            call.write_to(target)
        if rule is not None and call.name == "getitem" and ops.is_stretch(call.args[1]):
            inform(result, whole=call.args[:2])  # a rule's result is no view of what it was taken from
        if self.replaced and isinstance(result, Tensor) and self._has(self._seq + 1, result):
            result = self._put(call, result)
        if before is not None:
            call.read_first(before)
        outputs = self._note(call, own, rule, found, result)
        if outputs:
            self._record(call, rule, record, found, outputs[0])
        if self.head is not None:
            self.head.record(call, result, outputs)
        if outputs and watched is not None:
            watched(attach(found.output, node_of(outputs[0])) if apart else outputs[0])
        if call.inplace:
            self._write_back(result)
        return result

    def _run_layer(self, call: Call) -> RuleResult:
        """Run a linear layer without a rule, whose backward pass leaves out rows that carry nothing."""
        placed = OutputNode()
        took = None if self.ledger is None else self.ledger.bias(call, placed)
        return RuleResult(self.sparse_rows.run(call, took), on_output=placed.set)

    def _write_back(self, part: Any) -> None:
        """Write a slice that was overwritten back to its tensor, if a rule has made it no view of that."""
        slice_of = info_of(part).whole if isinstance(part, Tensor) else None
        if slice_of is not None:
            with self:
                whole, index = slice_of
                whole[index] = part

    def _record(
        self, call: Call, rule: Rule | None, record: AttentionRecord | None, found: RuleResult, output: Tensor
    ) -> None:
        """Record an attention, and the linear layer that may turn out to be the last."""
        if rule is None and call.name == "linear" and call.args and call.args[0].requires_grad:
            self.last_linear = node_of(output), (*call.args, call.kwargs.get("bias"))[:3]
        if record is not None:
            self._attention(call, output, record, found.attention_map)
        elif call.kind == "attention":
            shown = found.attention_map if isinstance(found.attention_map, FusedMap) else None
            self._attention(call, output, AttentionRecord.fused(call, shown))

    def _before_overwriting(self, call: Call) -> Tensor | None:
        """Save the value that an in-place operation overwrites, for those who need it."""
        target, node = call.args[0], call.nodes[0]
        if node is not None and node.kept and not target._is_view():
            target.data = target.detach().clone()  # who needs the old value keeps the old memory
            node.move()
        return self._keep(call) if target.requires_grad else None

    def _keep(self, call: Call) -> Tensor | None:
        """What records hold of a tensor that is about to be overwritten is its value before that."""
        target: Tensor = call.args[0]
        holders = [self, *self.residuals, *self.attentions]
        held = [(holder, name) for holder in holders for name, value in vars(holder).items() if value is target]
        if not held and call.kind != "add":
            return None
        before = past(target)
        for holder, name in held:
            setattr(holder, name, before)
        return before

    def _has(self, seq: int, tensor: Tensor) -> bool:
        """Whether there is a value to put in a tensor's place."""
        return seq in self.replaced and self.replaced[seq].shape == tensor.shape

    def _put(self, call: Call, result: Tensor) -> Tensor:
        """Put the value that replaces a result in its place."""
        if not call.inplace and any(result is t for t in call.tensors):  # nothing new is made
            return result
        leaf = self._leaf(self._seq + 1)
        return call.args[0].copy_(leaf) if call.inplace else leaf.clone()

    def _leaf(self, seq: int) -> Tensor:
        """The value that takes a tensor's place, from which the model goes on."""
        leaf = self.placed[seq] = self.replaced.pop(seq).detach().clone().requires_grad_()
        return leaf

    def _apart(self, call: Call, rule: Rule | None) -> bool:
        """Turn an in-place operation into one that makes a new tensor, where a rule or the ledger needs the old value.

        Returns:
            Whether that was done: the target is then to take the value and the history of the result.
        """
        watched = self.ledger is not None and bool(call.traced) and call.kind not in EXACT
        if (rule is None and not watched) or not call.apart():
            return False
        target: Tensor = call.args[0]
        if target.requires_grad:
            previous = attach(target.clone(), node_of(target))
            call.replace([previous if t is target else t for t in call.traced])
        return True

    # -- what happened -----------------------------------------------------------------------------------------

    def _node(self, kind: str, parents: tuple[Node, ...], axes: Axes) -> Node:
        self._seq += 1
        return Node(self._seq, kind, parents, axes, self.batch)

    def _follow(self, call: Call, outputs: list[Tensor]) -> list[Axes]:
        """Axes of the outputs; beside tensors that depend on the input, constants have no say."""
        moved = moved_axes(call, outputs[0], self.batch) if len(outputs) == 1 else None
        if moved is not None:
            return [moved]
        had = {id(t) for t in call.traced}  # before the call: what was empty may depend on the input by now
        known: list[Known] = [
            (n.axes if n is not None and (id(t) in had or not had or edge_of(t) is not t) else ((),) * t.dim(), t.shape)
            for t, n in zip(call.tensors, call.nodes, strict=True)
        ]
        return follow(call.name, call.func, call.args, call.kwargs, known, [t.shape for t in outputs], self.batch)

    def _note(self, call: Call, own: Call, rule: Rule | None, found: RuleResult, result: Any) -> list[Tensor]:
        """Attach a node to every tensor that an operation made; return those tensors.

        Args:
            call: the operation as it was run.
            own: the operation as the model has it.
            rule: by which it was run.
            found: what the rule returned.
            result: what the model goes on with.
        """
        outputs = self._outputs(call, result)
        if not outputs:
            return []
        if own.name == "copy" and own.tensors[0].shape == own.tensors[1].shape:  # nothing of the target is left
            own = replace(own, tensors=own.tensors[1:], nodes=own.nodes[1:], traced=own.traced[-1:])
            found = replace(found, blocked=found.blocked | {id(call.tensors[0])})
        parents = tuple([n for n in own.nodes if n is not None])
        live = tuple([node_of(t) for t in call.traced if id(t) not in found.blocked])
        weighted = call.kind in ("linear", "convolution") and any(map(is_weight, call.tensors))
        flows, described = self._described(own)
        constant = call.kind in ("linear", "attention") and call.name not in ops.WEIGHING
        made_of = origins([t for t in call.tensors if not t.requires_grad]) if constant else frozenset[int]()
        if own.kind == "function" or own.name in LOGARITHMIC:
            self._held += own.traced
        if call.kind not in ELEMENTWISE:
            release_roots(own.tensors)
        for i, (tensor, dims) in enumerate(zip(outputs, self._follow(own, outputs), strict=True)):
            node = self._node(call.kind, parents, dims)
            recipe = Recipe.of(own, described, i)
            node.describe(own.name, flows, weighted, recipe, live if tensor.requires_grad else (), made_of)
            node.inherit(call)
            keep_roots(tensor, node, own.tensors)
            self._attach(call, tensor, node)
            if found.on_output is not None:
                found.on_output(node)
        for tensor in found.saved:
            (node_of(outputs[0]) if tensor is found.output else node_of(tensor)).keep_value()
        if call.traced and any(t.requires_grad for t in outputs):
            self._reached(call, None if found.plain else rule, outputs)
        return outputs

    @staticmethod
    def _outputs(call: Call, result: Any) -> list[Tensor]:
        """The tensors that an operation made, or overwrote; not those that it was given."""
        if call.inplace:
            return [call.args[0]]
        given = {id(t) for t in call.tensors}
        return [t for t in tensors_in(result) if id(t) not in given]

    @staticmethod
    def _described(own: Call) -> tuple[tuple[Node, ...], dict[int, Node]]:
        """The nodes that a call's result depends on, and those to put in the place of tensors in its recipe."""
        depends = own.traced or own.tensors
        pairs = [(t, n) for t, n in zip(own.tensors, own.nodes, strict=True) if n is not None]
        known = {id(t): n for t, n in pairs if any(t is other for other in depends)}
        flows = tuple({n.seq: n for n in known.values()}.values()) if len(known) > 1 else tuple(known.values())
        return flows, known | {id(t): n for t, n in pairs if not t.requires_grad and is_mask(n)}

    def _attach(self, call: Call, tensor: Tensor, node: Node) -> None:
        """Let a node travel with the tensor that a call made."""
        self.autograd_graph.attach(tensor, node)
        if call.inplace and tensor.requires_grad and tensor._is_view():
            self._written_into(tensor)

    def _reached(self, call: Call, rule: Rule | None, outputs: list[Tensor]) -> None:
        """Note an operation whose result depends on the input: coverage, readers, residual additions."""
        made = [node_of(t) for t in outputs if t.requires_grad]
        self.coverage.count(made, call.name, call.kind, None if rule is None else rule.name)
        self._check_attention(call, node_of(outputs[0]))
        if not call.composed:  # its steps were counted
            self._uses(call)
        if self._early is not None:
            self._early += outputs
        self.residuals.note(call, outputs[0], self._inside)
        if node_of(outputs[0]).residual:
            self._held.clear()
            self._place(self.residuals[-1])

    def _check_attention(self, call: Call, node: Node) -> None:
        """Let coverage list products over tokens that are no attention map times values, and attention without softmax.

        A product over tokens that a softmax is taken of later is one of queries and keys (of features).
        """
        if call.kind == "softmax":
            scores = [n for n in call.nodes if n is not None]
            behind = walk(scores, lambda n: () if n.kind in PRODUCTS else n.flows)
            self.coverage.trust(n for n in behind if n.kind == "matmul")
        elif call.kind == "matmul" and any(descends(dim, self._token_axes()) for dim in summed_axes(call)):
            self.coverage.doubt(node, f"{call.name} over tokens")
        elif call.kind == "mix" and call.probabilities is not None:
            map_ = node_of(call.probabilities)
            if not map_.exponential or map_.moved_from().kind in ("mix", "matmul"):  # a product of maps is a map
                self.coverage.doubt(node, "attention without softmax")

    def _token_axes(self) -> set[Axis]:
        """The axes of the user's tokens or pixels."""
        found = [(source.tensor.dim(), node_of(source.tensor).axes) for source in self.sources]
        dims = [dim for n, axes in found for dim in (axes[2:] if n > 3 else axes[1:-1])]
        return {atom for dim in dims for atom in dim} - {self.batch}

    def _place(self, residual: Residual) -> None:
        """Let the maps of attentions whose queries are some tokens of the stream have rows for all of its tokens."""
        selection = residual.selection
        found = None if selection is None else selected_tokens(selection, node_of(residual.trunk))
        for i in residual.attentions:
            if found is not None:
                self.attentions[i].place(*found)

    def _written_into(self, view: Tensor) -> None:
        """A tensor of which a view was overwritten is made of what was written there, too."""
        base, node = view._base, node_of(view)
        assert base is not None
        if node.kind == "add":  # perhaps a residual sum, which is not followed from the slice to its tensor
            self.coverage.count([node], "add in a slice", "unknown", None)
        old = info_of(base).node
        if old is not None and old.batch is self.batch and old.kind != "discrete":
            self.autograd_graph.attach(base, self._node("structural", (node, old), old.axes))
        else:  # it was empty
            axes = guess(base.shape, [(node.axes, view.shape)], self.batch)
            self.autograd_graph.attach(base, self._node("structural", (node,), axes))

    def _uses(self, call: Call) -> None:
        """Count who reads a tensor; the second reader makes it a fan-out."""
        for tensor, node in zip(call.tensors, call.nodes, strict=True):
            if node is None or (call.name == "copy" and tensor is call.args[0]):  # overwritten, not read
                continue
            if node.read_by(call.kind) == 2 and self.fan_out is not None and tensor.requires_grad:
                self.fan_out(tensor, node)

    def _attention(
        self, call: Call, output: Tensor, record: AttentionRecord, leaf: FusedMap | Tensor | None = None
    ) -> None:
        """Add the record of an attention.

        Args:
            call: the attention.
            output: what it made.
            record: its record.
            leaf: a rule's leaf in the place of its probabilities.
        """
        node = node_of(output)
        node.keep_value()
        met = record.queried(node, self._constants)  # a bias that the model keeps was made in an earlier run
        record.complete(output if self.maps else distant(output), self.hold(output.detach()), leaf)
        if self._forms:  # a form may compute it again
            self._withdraw([n for n in self._mixed_nodes() if n.parents == node.parents])
        self.asking |= {p for p in met if record.shape[1] in self._constants[p].shape}
        self._mixers[node.seq] = len(self.attentions)
        for operand in node.parents:
            operand.claim(len(self.attentions))
        self.attentions.append(record)
        if self._early is not None:
            self.entry, self._early = self._common(call), None

    def _mixed_nodes(self) -> list[Node]:
        """The nodes of what attentions have made so far."""
        return [node_of(record.output) for record in self.attentions if record.output is not None]

    def _common(self, call: Call) -> Tensor | None:
        """The last tensor from which everything that the first attention reads derives."""
        given = {node_of(source.tensor).seq for source in self.sources if source.name}
        ends = [n for n in call.nodes if n is not None and n.ancestors() & given]  # not the model's own queries
        candidates = [source.tensor for source in self.sources] + (self._early or [])
        for tensor in reversed(candidates):
            node = node_of(tensor)
            if (
                ends
                and tensor.requires_grad
                and all(end.seq > node.seq and end.between(node) is not None for end in ends)
            ):
                projected = node.weighted and not any(n.weighted for end in ends for n in end.paths(node))
                before = node.flows[0].tensor if projected and node.flows else None  # of packed keys and values
                return tensor if before is None else before
        return None

    def _inside(self, nodes: list[Node]) -> list[int]:
        """The attentions among some nodes, by index."""
        return sorted(self._mixers[n.seq] for n in nodes if n.seq in self._mixers)
