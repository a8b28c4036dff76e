"""Faults that are put into source code one at a time: signs, bounds, off-by-one, dropped terms, swapped extremes.

Each is a replacement of a few characters, so that the file around it stays as it was. Annotations, docstrings, imports
and what only type checkers read are left alone.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
FACTORS = {ast.Mult: ("*", "/"), ast.Div: ("/", "*")}
BOUNDS = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
EQUALITY = {ast.Eq: ("==", "!="), ast.NotEq: ("!=", "==")}
SWAPPED = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin",
    "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "mean": "median", "median": "mean",
    "median_low": "median_high", "log": "log1p", "log1p": "log", "exp": "expm1", "expm1": "exp",
}  # fmt: skip
CONFIDENT = 0.5
"""A number between this and 1 is a confidence or a share: what is left to 1 is doubled."""


@dataclass(frozen=True)
class Fault:
    """One replacement: where, what stood there, and what stands there instead."""

    operator: str
    line: int
    column: int
    before: str
    after: str

    def put_into(self, source: str) -> str:
        """Return the source with the fault in it.

        Raises:
            ValueError: What was there is not there any more.
        """
        lines = source.splitlines(keepends=True)
        text = lines[self.line - 1].encode()
        end = self.column + len(self.before.encode())
        if text[self.column : end] != self.before.encode():
            raise ValueError(f"line {self.line} has no {self.before!r} at {self.column}")
        lines[self.line - 1] = (text[: self.column] + self.after.encode() + text[end:]).decode()
        return "".join(lines)


def faults(source: str) -> list[Fault]:
    """Return all faults that can be put into a source, in order."""
    tree = ast.parse(source)
    skipped = _skipped(tree)
    tokens = _operators(source)
    results = {
        fault
        for node in ast.walk(tree)
        if id(node) not in skipped
        for fault in _of(node, source, tokens)
    }  # fmt: skip
    return sorted(results, key=lambda fault: (fault.line, fault.column, fault.operator))


def _of(node: ast.AST, source: str, tokens: list[tuple[int, int, str]]) -> Iterator[Fault]:
    match node:
        case ast.BinOp():
            yield from _of_arithmetic(node, source, tokens)
        case ast.Compare():
            yield from _of_comparison(node, tokens)
        case ast.BoolOp(op=op, values=values):
            words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            for left, right in pairwise(values):
                yield from _replaced("and/or", words, left, right, tokens)
        case ast.UnaryOp(op=ast.USub()):
            yield Fault("sign", node.lineno, node.col_offset, "-", "+")
        case ast.UnaryOp(op=ast.Not()):
            yield Fault("not", node.lineno, node.col_offset, "not ", "")
        case ast.Constant():
            yield from _of_number(node, source)
        case ast.Name(id=name, ctx=ast.Load()) if name in SWAPPED:
            yield Fault("swapped", node.lineno, node.col_offset, name, SWAPPED[name])
        case ast.Attribute(attr=name) if name in SWAPPED:
            column = (node.end_col_offset or 0) - len(name)
            yield Fault("swapped", node.end_lineno or 0, column, name, SWAPPED[name])


def _of_arithmetic(node: ast.BinOp, source: str, tokens: list[tuple[int, int, str]]) -> Iterator[Fault]:
    if isinstance(node.left, ast.JoinedStr) or _is_text(node.left) or _is_text(node.right):
        return
    table = {**SIGNS, **FACTORS}
    if type(node.op) not in table:
        return
    words = table[type(node.op)]
    yield from _replaced("sign" if type(node.op) in SIGNS else "factor", words, node.left, node.right, tokens)
    right = ast.get_source_segment(source, node.right)
    one_line = node.left.end_lineno == node.right.lineno == node.right.end_lineno
    if right is not None and one_line and node.left.end_col_offset is not None and node.left.end_lineno is not None:
        line = (
            source.splitlines()[node.left.end_lineno - 1].encode()[node.left.end_col_offset :].decode(errors="replace")
        )
        cut = line[: (node.right.end_col_offset or 0) - node.left.end_col_offset]
        while cut.count("(") > cut.count(")") and line[len(cut) : len(cut) + 1] == ")":
            cut += ")"
        if cut.isascii() and cut.count("(") == cut.count(")"):
            yield Fault("dropped term", node.left.end_lineno, node.left.end_col_offset, cut, "")


def _of_comparison(node: ast.Compare, tokens: list[tuple[int, int, str]]) -> Iterator[Fault]:
    sides = [node.left, *node.comparators]
    for operator, (left, right) in zip(node.ops, pairwise(sides), strict=True):
        if type(operator) in BOUNDS:
            yield from _replaced("bound", BOUNDS[type(operator)], left, right, tokens)
        elif type(operator) in EQUALITY:
            yield from _replaced("equality", EQUALITY[type(operator)], left, right, tokens)


def _of_number(node: ast.Constant, source: str) -> Iterator[Fault]:
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        return
    text = ast.get_source_segment(source, node)
    if text is None:
        return
    if isinstance(node.value, int):
        yield Fault("off by one", node.lineno, node.col_offset, text, str(node.value + 1))
    elif CONFIDENT < node.value < 1:
        yield Fault("confidence", node.lineno, node.col_offset, text, repr(round(1 - 2 * (1 - node.value), 12)))
    elif node.value:
        yield Fault("constant", node.lineno, node.col_offset, text, repr(node.value * 1.5))


def _replaced(
    operator: str, words: tuple[str, str], left: ast.expr, right: ast.expr, tokens: list[tuple[int, int, str]]
) -> Iterator[Fault]:
    """Return the fault in the operator that stands between two expressions, brackets and line breaks aside."""
    begin, end = (left.end_lineno or 0, left.end_col_offset or 0), (right.lineno, right.col_offset)
    for line, column, text in tokens:
        if begin <= (line, column) < end and text == words[0]:
            yield Fault(operator, line, column, *words)
            return


def _operators(source: str) -> list[tuple[int, int, str]]:
    """Return operators and keywords with their place, columns in bytes as in the syntax tree."""
    lines = source.splitlines()
    results = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.OP, tokenize.NAME}:
            line, column = token.start
            results.append((line, len(lines[line - 1][:column].encode()), token.string))
    return results


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _skipped(tree: ast.Module) -> set[int]:
    """Return what is not worth a fault: annotations, decorators, texts' formats, and what only type checkers read."""
    roots: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            roots.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            roots += [*node.decorator_list, *([node.returns] if node.returns else [])]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            roots += [node.annotation] if node.annotation is not None else []
        elif isinstance(node, ast.JoinedStr):
            roots.append(node)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            roots.append(node.exc)
    return {id(inner) for root in roots for inner in ast.walk(root)}
