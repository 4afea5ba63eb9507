"""The mutants of a piece of code: which there are, that each changes one thing, and their names."""

import ast

import pytest

from benchmarks.mutations import mutate

CASES = [
    ("a + b", ["(a - b)"]),
    ("a - b * c", ["(a + b * c)", "a - (b / c)"]),
    ("a // b % c", ["(a // b // c)", "(a * b) % c"]),
    ("a**b", ["(a * b)"]),
    ("a < b", ["(a <= b)"]),
    ("a == b", ["(a != b)"]),
    ("a & ~b", ["(a | ~b)", "a & (b)"]),
    ("a and not b", ["(a or not b)", "a and (b)"]),
    ("a is None", []),
    ("f(a, flag=True)", ["f(a, flag=False)"]),
    ("zip(a, b, strict=True)", []),
    ("f(3, -1)", ["f(4, -1)", "f(2, -1)", "f(3, 0)", "f(3, -2)"]),
    ("f(0.5, 'text')", []),
    ("f(a, axis=-1)", ["f(a, axis=-2)"]),
    ("f(a, axis=0)", ["f(a, axis=1)"]),
    ("f(a, axis=2)", ["f(a, axis=1)"]),
    ("a[b:]", ["a[:b]"]),
    ("a[:b]", ["a[b:]"]),
    ("jnp.argmax(a)", ["jnp.argmin(a)"]),
    ("max(a, b)", ["min(a, b)"]),
    ("jnp.zeros(a, jnp.float32)", ["jnp.zeros(a, jnp.bfloat16)"]),
    ("a.astype(b)", ["a"]),
    ("self.hidden_norm(a)", ["a"]),
    ("rms_norm(a, b, c)", ["a"]),
    ("jax.lax.stop_gradient(a)", ["a"]),
    ("a if b else c", ["(c if b else a)"]),
    ("jnp.concatenate([a, b])", ["jnp.concatenate([b, a])"]),
    ("jnp.where(a, b, c)", ["jnp.where(a, c, b)"]),
]


@pytest.mark.parametrize(("code", "expected"), CASES, ids=[code for code, _ in CASES])
def test_one_thing_is_changed_at_a_time(code, expected):
    source = f"def f(a, b, c):\n    return {code}\n"
    found = mutate("m", source)
    assert sorted(mutant.added for mutant in found) == sorted(f"return {text}" for text in expected)
    for mutant in found:
        ast.parse(mutant.source)
        assert mutant.removed == f"return {code}"
        assert mutant.source.replace(mutant.added, mutant.removed) == source


def test_a_name_says_where_and_which_and_lives_through_other_lines():
    body = "class C:\n    def f(self, a):\n        b = a + 1.0\n        return b - a\n"
    names = [mutant.name for mutant in mutate("m", body)]
    assert names == ["m.C.f:plus:0", "m.C.f:plus:1"]
    longer = "ONE = 1.0\n\n\ndef g(a):\n    return a - ONE\n\n\n" + body
    assert [mutant.name for mutant in mutate("m", longer)] == ["m.g:plus:0", *names]
    assert [mutant.line for mutant in mutate("m", longer)] == [5, 10, 11]


def test_what_computes_nothing_is_left_alone():
    source = (
        '"""Of 1 + 2."""\n'
        "Number = int | float\n"
        "def f(a: int | None, b: int = 2) -> int | None:\n"
        '    """Not 1."""\n'
        "    assert a > 0\n"
        '    raise ValueError(f"{a + 1}" + "!")\n'
    )
    assert mutate("m", source) == []


def test_code_on_several_lines_is_changed_where_it_stands():
    source = "x = f(\n    a,\n    b\n    + c,  # é\n)\n"
    (mutant,) = mutate("m", source)
    assert mutant.source == "x = f(\n    a,\n    (b - c),  # é\n)\n"
    assert (mutant.removed, mutant.added) == ("b + c, # é", "(b - c), # é")
