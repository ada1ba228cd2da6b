"""Mutants of a module: its source with one expression changed."""

from __future__ import annotations

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .changes import changes

#: what is not an equation: annotations, messages; nor is the ``strict`` of a zip, which only guards
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: the file, relative to the package: ``rules/linear.py``.
        function: where it is: ``Rules.add``.
        line: its line.
        runs: a line that is run when it matters: of the statement that it is part of, or, for a default value, of the
            function's body.
        nth: which of several in the function that read the same.
        kind: what sort of slip it is.
        before: the expression.
        after: what it became.
        source: the whole module with the change.
    """

    module: str
    function: str
    line: int
    kind: str
    before: str
    after: str
    source: str = field(repr=False)
    runs: int = 0
    nth: int = 1

    @property
    def name(self) -> str:
        """Without the line, so that it outlives edits elsewhere in the file."""
        again = f" ({self.nth})" if self.nth > 1 else ""
        return f"{self.module} {self.function}: {self.before} → {self.after}{again}"


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    text = source.encode()
    seen: Counter[tuple[str, str, str]] = Counter()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function, node, runs in _inside(ast.parse(source)):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = text[begin:end].decode()
        for kind, new in changes(node):
            after = ast.unparse(ast.fix_missing_locations(new))
            put = after if isinstance(new, ast.stmt) else f"({after})"
            changed = (text[:begin] + put.encode() + text[end:]).decode()
            short = " ".join(before.split())
            seen[function, short, after] += 1
            nth = seen[function, short, after]
            yield Mutant(module, function, node.lineno, kind, short, after, changed, runs, nth)


def _inside(tree: ast.Module) -> Iterator[tuple[str, ast.AST, int]]:
    """Every node of a function's body or defaults, with the function's name and a line that is run with it."""
    stack: list[tuple[str, bool, ast.AST, int]] = [("", False, tree, 0)]
    while stack:
        name, within, node, runs = stack.pop()
        if isinstance(node, SKIPPED) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            continue
        if isinstance(node, ast.stmt):
            runs = node.lineno
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}".lstrip(".")
            within = within or isinstance(node, ast.FunctionDef)
            arguments = [node.args] if isinstance(node, ast.FunctionDef) else []
            children: list[ast.AST] = [*arguments, *node.body]  # neither decorators nor what it returns
            runs = _first(node.body)
        elif isinstance(node, ast.arg):
            children = []  # its annotation
        elif isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value else []
        else:
            children = list(ast.iter_child_nodes(node))
        if within:
            yield name, node, runs
        stack += [(name, within, child, runs) for child in reversed(children)]


def _first(body: list[ast.stmt]) -> int:
    """The line of the first statement that is no docstring."""
    doc = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return (body[1] if doc and len(body) > 1 else body[0]).lineno


def chosen(found: list[Mutant], cap: int, seed: int) -> list[Mutant]:
    """At most ``cap`` mutants of each function, drawn by a seed and the function's name; 0 means all."""
    groups: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in found:
        groups[mutant.function].append(mutant)
    kept = []
    for function, group in groups.items():
        random.Random(f"{seed} {group[0].module} {function}").shuffle(group)
        kept += group[:cap] if cap else group
    return sorted(kept, key=lambda m: (m.line, m.before, m.after))
