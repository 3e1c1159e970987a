"""Expectations in a file of their own: `expectations: suites/orders.yaml` instead of a list.

The file is YAML or JSON: a list of expectations, or a mapping with nothing but `expectations`. It takes the
place of the name that stands for it before anything is checked, so its mistakes are reported with its own
lines, and a binding records what it said, not where it lay. Its path is relative and stays inside the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tidemark.config.document import DocumentReader, Node
from tidemark.config.explain import problem_at
from tidemark.config.paths import read_named
from tidemark.config.problems import Problem
from tidemark.core.errors import InvalidUsage

KEY: Final = "expectations"
_HINT: Final = "write a path relative to the project, or list the expectations here"


@dataclass(slots=True)
class SuiteReader:
    """Puts suites in the place of their files' names; `problems` has what was wrong with any."""

    file: str
    root: Path
    problems: list[Problem] = field(default_factory=list)

    def expanded(self, tree: Node) -> Node:
        """The tree with every suite read in: of the shards, of `defaults`, of the tables' overrides."""
        items = dict(tree.items)
        if "defaults" in items:
            items["defaults"] = self._settings(items["defaults"])
        if "shards" in items:
            items["shards"] = self._list(items["shards"])
        tables = items.get("tables")
        overrides = tables.child("overrides") if tables is not None else None
        if tables is not None and overrides is not None:
            items["tables"] = tables.with_items({**tables.items, "overrides": self._list(overrides)})
        return tree.with_items(items)

    def _list(self, node: Node) -> Node:
        if not isinstance(node.value, tuple):
            return node
        return replace(node, value=tuple(self._settings(element) for element in node.elements))

    def _settings(self, node: Node) -> Node:
        named = node.child(KEY) if isinstance(node.value, dict) else None
        if named is None or not isinstance(named.value, str):
            return node
        suite = self._suite(named, node)
        return node.with_items({**node.items, KEY: suite})

    def _suite(self, named: Node, settings: Node) -> Node:
        """The suite that a name stands for; an empty one, beside a problem, where it can't be read."""
        nothing = replace(named, value=())
        try:
            place, content = read_named(named.value, root=self.root, hint=_HINT)
        except InvalidUsage as error:
            self.problems.append(problem_at(settings, (KEY,), error.fact, error.hint, file=self.file))
            return nothing
        return self._read(content, place, nothing)

    def _read(self, content: bytes, file: str, nothing: Node) -> Node:
        reader = DocumentReader(file)
        tree = reader.read(content)
        self.problems += reader.problems
        if tree is None:
            return nothing
        inner = tree.child(KEY) if set(tree.items) == {KEY} else None
        suite = inner or tree
        if not isinstance(suite.value, tuple):
            hint = "begin with '- type: …', or with expectations: and nothing else"
            self.problems.append(problem_at(suite, (), "the suite is not a list", hint, file=file))
            return nothing
        return _of_file(suite, file)


def _of_file(node: Node, file: str) -> Node:
    """The tree, every value of which remembers the file that it was written in."""
    value = node.value
    if isinstance(value, Mapping):
        value = {name: _of_file(child, file) for name, child in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_of_file(child, file) for child in value)
    return replace(node, value=value, file=file)
