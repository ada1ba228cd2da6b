"""Changes of one expression: the slips that a rule can be written with.

Each function takes a node of the syntax tree and yields ``(kind, new node)``. A change is what somebody could have
typed: another sign, a factor that is missing, operands the wrong way round, a detach forgotten.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

Change = tuple[str, ast.AST]

SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
FACTORS: dict[type[ast.operator], type[ast.operator]] = {ast.Mult: ast.Div, ast.Div: ast.Mult}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
#: methods of a tensor by the one that is easily taken for it
TWINS = {
    "add_": "sub_", "sub_": "add_", "mul_": "div_", "div_": "mul_", "amin": "amax", "amax": "amin", "min": "max",
    "max": "min", "mean": "sum", "any": "all", "all": "any", "triu": "tril", "tril": "triu",
}  # fmt: skip
#: methods that are easily forgotten: ``x.abs()`` becomes ``x``
FORGOTTEN = (
    "detach", "abs", "sign", "square", "clamp", "nan_to_num_", "masked_fill", "masked_fill_", "relu", "mul_", "div_",
    "add_", "sub_", "sqrt", "rsqrt", "exp", "log", "transpose", "round", "cumsum", "sum_to_size",
)  # fmt: skip


def arithmetic(node: ast.AST) -> Iterator[Change]:
    """Of ``a + b``: the sign, a term left out, operands swapped; of ``a * b``: the factor, a factor left out."""
    if not isinstance(node, ast.BinOp):
        return
    left, right, op = node.left, node.right, type(node.op)
    for kind, table in (("sign", SIGNS), ("factor", FACTORS)):
        if op in table:
            yield kind, ast.BinOp(left, table[op](), right)
    if op in (ast.Add, ast.Sub):
        yield "missing term", left
        yield "missing term", right if op is ast.Add else ast.UnaryOp(ast.USub(), right)
    if op in (ast.Mult, ast.Div):
        yield "missing factor", left
    if op is ast.Mult:
        yield "missing factor", right
    if op in (ast.Sub, ast.Div, ast.MatMult):
        yield "operands swapped", ast.BinOp(right, op(), left)
    if op is ast.FloorDiv:
        yield "factor", ast.BinOp(left, ast.Mult(), right)


def in_place(node: ast.AST) -> Iterator[Change]:
    """Of ``a += b``: the sign; of ``a *= b``: the factor."""
    if isinstance(node, ast.AugAssign):
        for kind, table in (("sign", SIGNS), ("factor", FACTORS)):
            if type(node.op) in table:
                yield kind, ast.AugAssign(node.target, table[type(node.op)](), node.value)


def unary(node: ast.AST) -> Iterator[Change]:
    """A minus or a ``not`` left out."""
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        if isinstance(node.op, ast.USub):
            yield "sign", node.operand
        if isinstance(node.op, ast.Not | ast.Invert):
            yield "condition", node.operand


def conditions(node: ast.AST) -> Iterator[Change]:
    """Comparisons the other way round or off by one, ``and`` for ``or``, branches of a conditional swapped."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARISONS.get(type(op), ()):
                ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
                yield "comparison", ast.Compare(node.left, ops, node.comparators)
    if isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "condition", ast.BoolOp(other_op, node.values)
    if isinstance(node, ast.IfExp):
        yield "condition", ast.IfExp(node.test, node.orelse, node.body)


def constants(node: ast.AST) -> Iterator[Change]:
    """Another number or dimension, a flag turned."""
    value: object = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = -node.operand.value if isinstance(node.operand.value, int | float) else None
    if isinstance(value, bool):
        yield "flag", ast.Constant(not value)
    elif isinstance(value, int):
        yield "number or dimension", ast.Constant(value - 1 if value < 0 else value + 1)
    elif isinstance(value, float):
        yield "number", ast.Constant(1.0 if value == 0 else 2 * value)


def calls(node: ast.AST) -> Iterator[Change]:
    """A method taken for its twin, one forgotten, the two results of a ``where`` swapped, a ``keepdim`` left out."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    name = node.func.attr
    if name in TWINS:
        other = copy.deepcopy(node)
        assert isinstance(other.func, ast.Attribute)
        other.func.attr = TWINS[name]
        yield "another function", other
    if name in FORGOTTEN and not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F")):
        yield f"missing {name}", node.func.value
    if name == "where" and len(node.args) == 3:
        test, yes, no = node.args
        yield "operands swapped", ast.Call(node.func, [test, no, yes], node.keywords)


KINDS: tuple[Callable[[ast.AST], Iterator[Change]], ...] = (
    arithmetic,
    in_place,
    unary,
    conditions,
    constants,
    calls,
)


def changes(node: ast.AST) -> Iterator[Change]:
    """Every change of one node.

    Example:
        >>> [ast.unparse(new) for _, new in changes(ast.parse("a - b", mode="eval").body)]
        ['a + b', 'a', '-b', 'b - a']
    """
    for kind in KINDS:
        yield from kind(node)
