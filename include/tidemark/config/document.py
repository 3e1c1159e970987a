"""A YAML document as a tree of values with positions, and the problems of a pipeline file, with theirs.

The reader supports what a pipeline file needs: mappings, lists and plain values, by YAML 1.2 (`no` and `on`
are text, `010` is ten). It refuses aliases, tags and a second document, so a small file can't expand and
can't name a class. It refuses duplicate keys. Sizes and nesting are bounded before anything is built.

`validated` turns pydantic's errors into problems: a position in the file, a fact and a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import chain
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from tidemark.core.errors import InvalidUsage

COLUMN_NAME: Final = re.compile(r"[^\W\d]\w{0,127}\Z")
"""Letters of any script; some other characters need more than a plain Delta table."""


def shown(value: object, characters_max: int = 60) -> str:
    """A value for a message: quoted, and truncated if long."""
    text = repr(value[: characters_max + 1] if isinstance(value, str) else value)
    return text if len(text) <= characters_max + 2 else f"{text[:characters_max]}…"


def nearest(value: str, known: Iterable[str], *, otherwise: str, cutoff: float = 0.6) -> str:
    """A hint that names the closest known word, or else the text `otherwise`."""
    near = get_close_matches(value[:60], list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise


Path = tuple[str | int, ...]
PROBLEMS_SHOWN_MAX = 50


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake: its position, the fact and the remedy. Lines and columns count from 1; 0 is unknown."""

    file: str
    line: int
    column: int
    path: str
    fact: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        subject = f"{place}: {self.path}: {self.fact}" if self.path else f"{place}: {self.fact}"
        return f"{subject}: {self.hint}" if self.hint else subject


class ConfigInvalid(InvalidUsage):
    """A pipeline file or a recorded configuration is unusable. `problems` has all mistakes."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:PROBLEMS_SHOWN_MAX]]
        if len(self.problems) > PROBLEMS_SHOWN_MAX:
            shown.append(f"and {len(self.problems) - PROBLEMS_SHOWN_MAX} more")
        super().__init__("\n".join(shown))


@dataclass(frozen=True, slots=True)
class Flaw:
    """A broken rule, at a path below the value that the rule checks."""

    path: Path
    fact: str
    hint: str = ""


def raise_flaws(flaws: Iterator[Flaw]) -> None:
    """Raise one pydantic error for all flaws, with their paths in its context."""
    found = tuple(flaws)
    if found:
        text = "; ".join(f"{flaw.fact}: {flaw.hint}" if flaw.hint else flaw.fact for flaw in found)
        raise PydanticCustomError("tidemark_flaws", "{text}", {"text": text, "flaws": found})


def refused(error: InvalidUsage) -> PydanticCustomError:
    """The pydantic error for an `InvalidUsage`, with its fact, its hint and, if known, its offset in the
    text."""
    offset = getattr(error, "offset", None)
    context = {"text": str(error), "fact": error.fact, "hint": error.hint, "offset": offset}
    return PydanticCustomError("tidemark_refused", "{text}", context)


def dotted(path: Path) -> str:
    """`shards[0].keys` for ("shards", 0, "keys")."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


M = TypeVar("M", bound=BaseModel)

FILE_BYTES_MAX: Final = 1_048_576
TEXT_CHARACTERS_MAX: Final = 65_536
NESTING_MAX: Final = 32
NODES_MAX: Final = 100_000

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")


@dataclass(frozen=True, slots=True)
class Node:
    """One value: its path, its position, the position of its key, and its file if that is not the
    document's own."""

    value: Any
    path: Path = ()
    line: int = 0
    column: int = 0
    key_line: int = 0
    key_column: int = 0
    text_line: int = 0
    text_column: int = 0
    file: str = ""

    @property
    def items(self) -> Mapping[str, Node]:
        """The children of a mapping; empty for any other value."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def elements(self) -> tuple[Node, ...]:
        """The elements of a list; empty for any other value."""
        return self.value if isinstance(self.value, tuple) else ()

    def place_of(self, offset: int) -> tuple[int, int]:
        """The line and column of a character in the text if known, else those of the value."""
        if not self.text_line:
            return self.line, self.column
        before = str(self.value)[:offset]
        return self.text_line + before.count("\n"), self.text_column + offset - before.rfind("\n") - 1

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, tuple):
            return tuple(node.plain() for node in self.value)
        return self.value

    def child(self, step: str | int) -> Node | None:
        if isinstance(step, int):
            return self.elements[step] if step < len(self.elements) else None
        return self.items.get(step)

    def with_items(self, items: Mapping[str, Node]) -> Node:
        return replace(self, value=dict(items))

    def merged(self, over: Node) -> Node:
        """This mapping, recursively overridden by the other's keys; any other value is replaced."""
        if not isinstance(self.value, dict) or not isinstance(over.value, dict):
            return over
        items = dict(self.value)
        for name, node in over.value.items():
            items[name] = items[name].merged(node) if name in items else node
        return replace(over, value=items)


@dataclass(slots=True)
class _Open:
    """A collection that has no end event yet."""

    event: Event
    path: Path
    items: dict[str, Node] = field(default_factory=dict)
    list: list[Node] = field(default_factory=list)
    key: ScalarEvent | None = None
    skip: bool = False


class Stop(Exception):
    """Reading can't continue; the problem is recorded."""


class DocumentReader:
    """Reads one document; `problems` has its errors."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._open: list[_Open] = []
        self._root: Node | None = None
        self._count = 0
        self._lines: list[str] = []

    def read(self, content: bytes) -> Node | None:
        """The tree, or None if there is none; a tree may be incomplete if there are problems."""
        if len(content) > FILE_BYTES_MAX:
            fact = f"the file has {len(content):,} bytes, {FILE_BYTES_MAX:,} at most"
            self.problems.append(Problem(self.file, 0, 0, "", fact, "this is not a pipeline file"))
            return None
        try:
            text = content.decode("utf-8-sig")
            self._lines = text.splitlines()
            for event in self._events(text):
                self._take(event)
        except UnicodeDecodeError as error:
            fact = f"byte {error.start} is not UTF-8"
            self.problems.append(Problem(self.file, 0, 0, "", fact, "save the file as UTF-8"))
            return None
        except Stop:
            return None
        if self._root is None or self._root.value is None:
            self.problems.append(Problem(self.file, 1, 1, "", "the file is empty", "begin with name: …"))
            return None
        return self._root

    def _events(self, text: str) -> Iterator[Event]:
        try:
            yield from yaml.parse(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
            why = " ".join(part for part in (error.context, error.problem) if part)
            hint = "check indentation and quotes"
            self.problems.append(Problem(self.file, line, column, "", f"not YAML, {why}", hint))
            raise Stop from None
        except yaml.YAMLError:
            fact = "not YAML, it has a control character"
            self.problems.append(Problem(self.file, 0, 0, "", fact, "remove control characters"))
            raise Stop from None

    def _note(self, event: Event, path: Path, fact: str, hint: str) -> None:
        self.problems.append(Problem(self.file, *_place(event), dotted(path), fact, hint))

    def _take(self, event: Event) -> None:
        match event:
            case DocumentStartEvent() if self._root is not None:
                self._note(event, (), "a second document begins here", "use one file for each pipeline")
                raise Stop
            case AliasEvent():
                hint = "write the value out, or use defaults"
                self._note(event, self._path(), "aliases are not read", hint)
                self._add(Node(None, self._path()), event)
            case CollectionStartEvent():
                self._begin(event)
            case MappingEndEvent() | SequenceEndEvent():
                done = self._open.pop()
                value = done.items if isinstance(done.event, MappingStartEvent) else tuple(done.list)
                self._add(self._node(value, done.path, done.event), done.event)
            case ScalarEvent():
                self._scalar(event)

    def _begin(self, event: CollectionStartEvent) -> None:
        path = self._path()
        if len(self._open) >= NESTING_MAX:
            self._note(event, (), f"nested more than {NESTING_MAX} deep", "this is not a pipeline file")
            raise Stop
        top = self._open[-1] if self._open else None
        if top is not None and isinstance(top.event, MappingStartEvent) and top.key is None:
            self._note(event, path, "a key is not plain text", "write name: value")
            raise Stop
        self._check_tag(event, path)
        self._open.append(_Open(event, path))

    def _scalar(self, event: ScalarEvent) -> None:
        top = self._open[-1] if self._open else None
        if len(event.value) > TEXT_CHARACTERS_MAX:
            fact = f"a text of {len(event.value):,} characters, {TEXT_CHARACTERS_MAX:,} at most"
            self._note(event, self._path(), fact, "shorten it")
            raise Stop
        if top is not None and isinstance(top.event, MappingStartEvent) and top.key is None:
            self._check_tag(event, top.path)
            top.key = event
            top.skip = event.value in top.items
            if top.skip:
                path = (*top.path, event.value[:60])
                line = top.items[event.value].key_line
                self._note(event, path, f"duplicate key {shown(event.value)}", f"line {line} has it already")
            return
        path = self._path()
        self._check_tag(event, path)
        self._add(self._node(_resolved(event), path, event), event)

    def _check_tag(self, event: ScalarEvent | CollectionStartEvent, path: Path) -> None:
        if event.tag not in (None, "!"):
            self._note(event, path, f"tag {shown(event.tag)} is not read", "write a plain value")

    def _path(self) -> Path:
        if not self._open:
            return ()
        top = self._open[-1]
        if isinstance(top.event, SequenceStartEvent):
            return (*top.path, len(top.list))
        return (*top.path, top.key.value[:60] if top.key is not None else "")

    def _node(self, value: Any, path: Path, event: Event) -> Node:
        text_line, text_column = self._text_place(event) if isinstance(event, ScalarEvent) else (0, 0)
        return Node(value, path, *_place(event), text_line=text_line, text_column=text_column)

    def _text_place(self, event: ScalarEvent) -> tuple[int, int]:
        """The position where a text begins, if the file has its characters unchanged; else zeros."""
        line, column = _place(event)
        if event.style == "|":
            first = self._lines[line] if line < len(self._lines) else ""
            plain = first.strip() and not event.value.startswith(" ")
            return (line + 1, len(first) - len(first.lstrip(" ")) + 1) if plain else (0, 0)
        if event.end_mark is None or event.end_mark.line + 1 != line or event.style == ">":
            return 0, 0
        return line, column + (1 if event.style in ("'", '"') else 0)

    def _add(self, node: Node, event: Event) -> None:
        self._count += 1
        if self._count > NODES_MAX:
            self._note(event, (), f"more than {NODES_MAX:,} values", "this is not a pipeline file")
            raise Stop
        if not self._open:
            self._root = node
            return
        top = self._open[-1]
        if isinstance(top.event, SequenceStartEvent):
            top.list.append(node)
            return
        if top.key is not None and not top.skip:
            line, column = _place(top.key)
            top.items[top.key.value] = replace(node, key_line=line, key_column=column)
        top.key = None


def _place(event: Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)


def _resolved(event: ScalarEvent) -> Any:
    """A plain scalar's value by YAML 1.2's core schema; a quoted scalar is text."""
    text = event.value
    if event.style is not None and event.style != "":
        return text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


# From pydantic's errors to problems.

_KINDS = {
    "string_type": ("text", "put it in quotes"),
    "int_type": ("an integer", "write it without quotes and fractions"),
    "int_from_float": ("an integer", "write it without fractions"),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "float_type": ("a number", "write it without quotes"),
    "tuple_type": ("a list", "write [a, b], or one '- ' line for each"),
    "dict_type": ("a mapping", "write key: value lines"),
    "model_type": ("a mapping", "write key: value lines"),
    "model_attributes_type": ("a mapping", "write key: value lines"),
}


def validated(
    model: type[M], node: Node, *, file: str, extra_keys: Sequence[str] = ()
) -> tuple[M | None, list[Problem]]:
    """The tree as a model, or every problem that the model finds in it."""
    try:
        return model.model_validate(node.plain()), []
    except ValidationError as error:
        found = (_problems_of(one, model, node, file, extra_keys) for one in error.errors(include_url=False))
        return None, list(chain.from_iterable(found))


def _problems_of(
    details: ErrorDetails, model: type[BaseModel], root: Node, file: str, extra_keys: Sequence[str]
) -> Iterator[Problem]:
    loc: Path = tuple(details["loc"])
    context: dict[str, Any] = details.get("ctx") or {}
    if details["type"] == "tidemark_flaws":
        for flaw in context["flaws"]:
            yield problem_at(root, (*loc, *flaw.path), flaw.fact, flaw.hint, file=file)
        return
    if details["type"] == "extra_forbidden":
        fact, hint = _unknown_key(str(loc[-1]), [*known_keys(model, loc[:-1]), *extra_keys])
        yield problem_at(root, loc, fact, hint, file=file, at_key=True)
        return
    if details["type"] in ("union_tag_invalid", "union_tag_not_found"):
        loc = (*loc, str(context["discriminator"]).strip("'"))
    fact, hint = _explained(details, context)
    yield problem_at(root, loc, fact, hint, file=file, offset=context.get("offset"))


def problem_at(
    root: Node, loc: Path, fact: str, hint: str, *, file: str, at_key: bool = False, offset: int | None = None
) -> Problem:
    """A problem at the deepest existing node along a path. Missing keys stay in the problem's path."""
    node, rest = root, list(loc)
    while rest:
        found = node.child(rest[0])
        if found is None and len(rest) > 1 and node.child(rest[1]) is not None:
            found = node  # A union's tag is in pydantic's path, not in the file.
        if found is None:
            break
        node, rest = found, rest[1:]
    path = dotted((*node.path, *rest))
    line, column = (node.key_line, node.key_column) if at_key and not rest else (node.line, node.column)
    if offset is not None and not rest:
        line, column = node.place_of(offset)
    return Problem(node.file or file, line, column, path[:300], fact, hint)


def _unknown_key(key: str, known: Sequence[str]) -> tuple[str, str]:
    hint = nearest(key, known, otherwise=f"known keys are {', '.join(known)}", cutoff=0.55)
    return f"unknown key {shown(key)}", hint


def _explained(details: ErrorDetails, context: dict[str, Any]) -> tuple[str, str]:
    kind, value = details["type"], details["input"]
    if kind == "tidemark_refused":
        return str(context["fact"]), str(context["hint"])
    if kind == "missing":
        return "a required key is missing", f"add {details['loc'][-1]}"
    if kind == "union_tag_not_found":
        return "a required key is missing", f"add {str(context['discriminator']).strip(chr(39))}"
    if kind in ("literal_error", "union_tag_invalid"):
        tags = " or ".join(str(context.get("expected_tags", "")).rsplit(", ", 1))
        allowed, value = str(context.get("expected", tags)), context.get("tag", value)
        names = allowed.replace("'", "").replace(" or ", ", ").split(", ")
        hint = nearest(str(value), names, otherwise="use one of these")
        return f"{shown(value)} is not {allowed}", hint
    if kind in _KINDS:
        wanted, hint = _KINDS[kind]
        return f"expected {wanted}, found {_described(value)}", hint
    message = details["msg"]
    return f"{message[:1].lower()}{message[1:]}, found {_described(value)}", ""


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else shown(value)


def known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that the model knows at a path of pydantic's, which includes list indexes and union tags."""
    models = [model]
    for step in path:
        if isinstance(step, int):
            continue
        inner = [
            found
            for current in models
            for name, info in current.model_fields.items()
            if (info.alias or name) == step
            for found in _models_in(info.annotation)
        ]
        # A union's tag selects one of its models.
        tagged = [one for one in models if step in get_args(_annotation(one, "type"))]
        models = inner or tagged or models
    return [info.alias or name for current in models for name, info in current.model_fields.items()]


def _annotation(model: type[BaseModel], name: str) -> Any:
    return model.model_fields[name].annotation if name in model.model_fields else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]
