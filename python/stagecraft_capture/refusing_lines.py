"""Lines of the user's Python that look at the batch's numbers to refuse some (`if labels.max() >= n: raise`,
`assert not x.isnan().any()`): no graph can. As torch's own checks, they do not look while a module is
followed; in eager mode they have looked at the samples."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from types import FrameType

from .errors import OURS, TORCH

Span = tuple[tuple[int, int], tuple[int, int]]  # (line, column) of the first character, and behind the last


def asking_frame() -> tuple[FrameType, Span] | None:
    """The user's, that asks for the truth of a tensor, and where in its file it does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, OURS)):
        frame = frame.f_back
    if frame is None:
        return None
    line, end, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if line is None or end is None or column is None or end_column is None:
        return None
    return frame, ((line, column), (end, end_column))


def asking_statement() -> tuple[FrameType, Span, ast.stmt | None] | None:
    """asking_frame(), with the innermost statement that asks."""
    asking = asking_frame()
    if asking is None:
        return None
    frame, at = asking
    text = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    return frame, at, innermost(statements_of(text), at)


def answer_here() -> tuple[bool, str] | None:
    """What the line that asks for the truth of a tensor has to hear to refuse nothing, and its place; None
    where it does something else with it."""
    asking = asking_statement()
    if asking is None:
        return None
    frame, at, statement = asking
    code = frame.f_code
    answer = None if statement is None else answer_of(statement)
    return (
        None if answer is None else (answer, f'File "{code.co_filename}", line {at[0][0]}, in {code.co_name}')
    )


@functools.lru_cache(maxsize=64)
def statements_of(text: str) -> list[ast.stmt]:
    try:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    except (SyntaxError, ValueError):
        return []


def span(node: ast.stmt) -> Span:
    last = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), last


def innermost(statements: list[ast.stmt], asking: Span) -> ast.stmt | None:
    around = [s for s in statements if span(s)[0] <= asking[0] and asking[1] <= span(s)[1]]
    return max(around, key=lambda s: (span(s)[0], tuple(-part for part in span(s)[1])), default=None)


def answer_of(statement: ast.stmt) -> bool | None:
    """To every question of its condition; None where they need several."""
    if isinstance(statement, ast.Assert):
        wanted = set(answers(statement.test, True))
    elif isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise):
        if not all(isinstance(each, (ast.Assign, ast.Expr)) for each in statement.body[:-1]):
            return None
        wanted = set(answers(statement.test, False))
    else:
        return None
    return wanted.pop() if len(wanted) == 1 else None


def answers(test: ast.expr, wanted: bool) -> Iterator[bool]:
    """Of its parts that may be tensors."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from answers(test.operand, not wanted)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from answers(part, wanted)
    elif not (isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))):
        yield wanted
