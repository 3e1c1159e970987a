"""From pydantic's errors to problems: the place in the file, a fact in plain words, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidemark.config.document import Node
from tidemark.config.problems import Path, Problem, dotted
from tidemark.config.text import nearest, shown

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
    model: type[BaseModel], node: Node, *, file: str, extra_keys: Sequence[str] = ()
) -> Iterator[Problem]:
    """Every problem that the model finds in the tree; nothing when it is valid."""
    try:
        model.model_validate(node.plain())
    except ValidationError as error:
        for details in error.errors(include_url=False):
            yield from _problems_of(details, model, node, file, extra_keys)


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
    """A problem at the deepest written place along a path. A key that is not there is named all the same."""
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
    """The keys that the model knows at a path; pydantic's path, with list indexes and union tags."""
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
        # A union's tag says which of its models is meant.
        tagged = [one for one in models if step in get_args(_annotation(one, "type"))]
        models = inner or tagged or models
    return [info.alias or name for current in models for name, info in current.model_fields.items()]


def _annotation(model: type[BaseModel], name: str) -> Any:
    return model.model_fields[name].annotation if name in model.model_fields else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]
