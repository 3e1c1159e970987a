from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.config.document import DocumentReader, Node


def read(text: str | bytes) -> tuple[Node | None, list[str]]:
    reader = DocumentReader("f.yaml")
    node = reader.read(text.encode() if isinstance(text, str) else text)
    return node, [str(problem) for problem in reader.problems]


def test_values_follow_yaml_1_2_and_remember_their_places() -> None:
    node, problems = read("a: no\nb: [on, 010, 0.5, ~, 'x']\nc:\n  d: true\n")
    assert not problems
    assert node is not None
    assert node.plain() == {"a": "no", "b": ("on", 10, 0.5, None, "x"), "c": {"d": True}}
    deep = node.child("c").child("d")
    assert (deep.path, deep.line, deep.column, deep.key_line, deep.key_column) == (("c", "d"), 4, 6, 4, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: duplicate key 'a': line 1 has it already"),
        ("a: &x 1\nb: *x\n", "f.yaml:2:4: b: aliases are not read"),
        ("a: !!python/object:os.system x\n", "f.yaml:1:4: a: tag"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document"),
        ("a: [1, 2\n", "not YAML"),
        ("a:\n\t- 1\n", "not YAML"),
        ("? [a]\n: 1\n", "a key is not plain text"),
        ("a: \x00\n", "not YAML"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        (b"a: \xff\n", "byte 3 is not UTF-8"),
        ("a: " + "[" * 50_000, "nested more than 32 deep"),
        ("a: " + "x" * 100_000, "a text of 100,000 characters"),
        (b"a: " + b"x" * 10_000_000, "the file has 10,000,003 bytes"),
    ],
)
def test_what_a_pipeline_file_does_not_need_is_refused_with_its_place(text: str | bytes, said: str) -> None:
    _, problems = read(text)
    assert any(said in problem for problem in problems), problems
    assert all(len(problem) < 300 for problem in problems)


def test_a_billion_laughs_is_refused_in_no_time() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    _, problems = read("\n".join(lines))
    assert problems


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_bytes_are_a_tree_or_problems(content: bytes) -> None:
    node, problems = read(content)
    assert (node is not None) or problems
