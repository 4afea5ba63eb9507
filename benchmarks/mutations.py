"""Small breaks of a module's mathematics, made from its syntax tree: one change in each.

A mutant is named by where and what it is, `rope.rotation:plus:0` the first sum or difference of
that function, so that its name lives through edits of other lines. Docstrings, annotations,
assertions and what an error says are left alone.
"""

import ast
import copy
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

_OPERATORS: dict[type[ast.AST], tuple[str, type[ast.AST]]] = {
    ast.Add: ("plus", ast.Sub),
    ast.Sub: ("plus", ast.Add),
    ast.Mult: ("times", ast.Div),
    ast.Div: ("times", ast.Mult),
    ast.FloorDiv: ("times", ast.Mult),
    ast.Mod: ("times", ast.FloorDiv),
    ast.Pow: ("power", ast.Mult),
    ast.BitAnd: ("logic", ast.BitOr),
    ast.BitOr: ("logic", ast.BitAnd),
    ast.And: ("logic", ast.Or),
    ast.Or: ("logic", ast.And),
    ast.Lt: ("bound", ast.LtE),
    ast.LtE: ("bound", ast.Lt),
    ast.Gt: ("bound", ast.GtE),
    ast.GtE: ("bound", ast.Gt),
    ast.Eq: ("equal", ast.NotEq),
    ast.NotEq: ("equal", ast.Eq),
}
_OTHER_NAMES = {
    one: (kind, other)
    for kind, pairs in {
        "extreme": ("argmax argmin", "max min", "maximum minimum", "any all", "floor ceil"),
        "function": ("cos sin", "sum mean", "softmax log_softmax", "cumsum cumprod", "sqrt exp"),
    }.items()
    for pair in pairs
    for one, other in (pair.split(), pair.split()[::-1])
}
_DTYPES = {
    "jnp.float32": "jnp.bfloat16",
    "np.float32": "np.float16",
    "np.float64": "np.float32",
    "np.int64": "np.int16",
}
_DROPPED = {"norm": r"(\w+_)?(layer)?norm(_\w+)?", "cast": "astype", "constant": "stop_gradient"}


class Mutant(NamedTuple):
    """One change of one module.

    Attributes:
        name: `module.function:kind:number`.
        line: where it begins, from 1.
        source: the module's text with the change.
        removed: the lines that it changes, on one; and
        added: what became of them.
    """

    name: str
    line: int
    source: str
    removed: str
    added: str


def mutate(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text.

    Args:
        module: its name, which the mutants' names begin with.
        source: its text.
    """
    numbers: dict[str, int] = defaultdict(int)
    found = []
    for where, kind, node, text in _changes(ast.parse(source), module):
        place = f"{where}:{kind}"
        found.append(_mutant(f"{place}:{numbers[place]}", source, node, text))
        numbers[place] += 1
    return found


def _mutant(name: str, source: str, node: ast.expr | ast.stmt, text: str) -> Mutant:
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    changed = head + text.encode() + tail
    whole = b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
    before = b"".join(lines[first : last + 1]).decode()
    return Mutant(name, node.lineno, whole, _on_one_line(before), _on_one_line(changed.decode()))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _changes(node: ast.AST, where: str) -> Iterator[tuple[str, str, ast.expr | ast.stmt, str]]:
    """Function, kind, node and its new text of every change below a node."""
    for child in _children(node):
        inside = where
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inside = f"{where}.{child.name}"
        if isinstance(child, ast.expr | ast.stmt):
            for kind, text in _changes_of(child, node):
                yield inside, kind, child, text
        yield from _changes(child, inside)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that compute something."""
    left_out: tuple[type[ast.AST], ...] = (
        ast.arguments,
        ast.Raise,
        ast.Assert,
        ast.Import,
        ast.ImportFrom,
        ast.JoinedStr,
    )
    if _names_a_type(node):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not isinstance(part, left_out):
                yield part


def _names_a_type(node: ast.AST) -> bool:
    """Whether a statement is like `Number = int | float`."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp() | ast.Subscript()):
            return name[0].isupper()
    return False


def _changes_of(node: ast.expr | ast.stmt, parent: ast.AST) -> Iterator[tuple[str, str]]:
    """Kind and new text of every change of one node itself."""
    match node:
        case ast.BinOp() | ast.AugAssign():
            yield from _operator(node)
        case ast.BoolOp(op=op):
            kind, other = _OPERATORS[type(op)]
            yield kind, f"({ast.unparse(_with(node, op=other()))})"
        case ast.Compare(ops=[op]) if type(op) in _OPERATORS:
            kind, other = _OPERATORS[type(op)]
            yield kind, f"({ast.unparse(_with(node, ops=[other()]))})"
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            yield "negation", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            if not (isinstance(parent, ast.keyword) and parent.arg == "strict"):
                yield "flag", str(not value)  # `zip(strict=True)` is an assertion
        case ast.Constant(value=int()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            value = ast.literal_eval(node)
            counted = isinstance(value, int) and not isinstance(parent, ast.UnaryOp)
            if counted and not (isinstance(parent, ast.keyword) and parent.arg == "axis"):
                yield from (("number", str(value + by)) for by in (1, -1))
        case ast.Attribute():
            yield from _attribute(node)
        case ast.Call():
            yield from _call(node)
        case ast.IfExp(test=test, body=body, orelse=other):
            text = f"({ast.unparse(other)} if {ast.unparse(test)} else {ast.unparse(body)})"
            yield "branches", text
        case ast.Subscript(slice=ast.Slice(lower=low, upper=high, step=None)) if low or high:
            yield "slice", ast.unparse(_with(node, slice=ast.Slice(high, low)))


def _operator(node: ast.BinOp | ast.AugAssign) -> Iterator[tuple[str, str]]:
    lists = ast.List | ast.Tuple | ast.JoinedStr
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    if type(node.op) not in _OPERATORS or any(isinstance(side, lists) for side in sides):
        return
    kind, other = _OPERATORS[type(node.op)]
    text = ast.unparse(_with(node, op=other()))
    yield kind, f"({text})" if isinstance(node, ast.BinOp) else text


def _attribute(node: ast.Attribute) -> Iterator[tuple[str, str]]:
    text = ast.unparse(node)
    if text in _DTYPES:
        yield "dtype", _DTYPES[text]
    elif node.attr in _OTHER_NAMES:
        kind, other = _OTHER_NAMES[node.attr]
        yield kind, ast.unparse(_with(node, attr=other))


def _call(node: ast.Call) -> Iterator[tuple[str, str]]:
    called = ast.unparse(node.func).split(".")[-1]
    first, rest = node.args[:1], node.args[1:]
    for kind, pattern in _DROPPED.items():
        if first and re.fullmatch(pattern, called):
            kept = first[0]
            if kind == "cast" and isinstance(node.func, ast.Attribute):
                kept = node.func.value
            yield kind, ast.unparse(kept)
    if called in ("max", "min") and isinstance(node.func, ast.Name):
        other = ast.Name("min" if called == "max" else "max")
        yield "extreme", ast.unparse(_with(node, func=other))
    if called in ("concatenate", "stack") and first and isinstance(first[0], ast.List):
        turned = ast.List(first[0].elts[::-1])
        yield "order", ast.unparse(_with(node, args=[turned, *rest]))
    if called in ("where", "choose") and len(node.args) == 3:
        yield "order", ast.unparse(_with(node, args=[*first, *rest[::-1]]))
    for keyword in node.keywords:
        axis = ast.unparse(keyword.value)
        if keyword.arg == "axis" and re.fullmatch(r"-?\d", axis):
            other_axis = int(axis) - 1 if int(axis) else 1
            changed = ast.keyword("axis", ast.Constant(other_axis))
            others = [changed if word is keyword else word for word in node.keywords]
            yield "axis", ast.unparse(_with(node, keywords=others))


def _with(node: ast.AST, **changes: object) -> ast.AST:
    """A copy of a node with some fields changed."""
    other = copy.copy(node)
    for name, value in changes.items():
        setattr(other, name, value)
    return other
