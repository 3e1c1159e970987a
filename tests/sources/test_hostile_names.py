"""File names that mean something to a shell, a URI, a template, a glob or a terminal are only names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sources.harness import Landing, files_of
from tidemark.core.errors import InvariantViolation
from tidemark.sources.files.bound_files import Manifest

TAKEN = [
    "$(touch hacked).json", "-rf.json", "; rm -rf x.json", "`id`.json", "a\tb.json", "a\nb.json", "a b.json",
    "a%2e%2e%2fb.json", "a&b=c?d#e.json", "a'b\"c.json", "a\\b.json", "a{b,c}[d]*.json", "\u202egpj.json",
    "\u1e9e\U0001f600.json", "{{ conn.x.password }}.json", "${HOME}.json", "~.json",
    "'; DROP TABLE t; --.json", "x" * 250 + ".json",
]  # fmt: skip
LEFT_OUT = ["file:x.json", "_hidden.json", ".hidden.json", "part.json~"]


def test_hostile_names_are_bound_as_they_are_and_each_once(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for name in (*TAKEN, *LEFT_OUT):
        landing.put(name, f"{name!r}\n")
    landing.put("..d/..json", "x\n")
    (binding,) = landing.bind(landing.source())
    assert [file.name for file in files_of(binding)] == sorted(TAKEN)
    assert Manifest.from_json(binding.manifest).to_json() == binding.manifest
    source = landing.source()
    assert source.inspect(binding) == ""
    assert landing.run() == []
    (tmp_path / TAKEN[0]).write_text("other content, longer than before\n")
    assert repr(TAKEN[0]) in landing.source().inspect(binding)


@pytest.mark.parametrize("name", ["../x.json", "/etc/passwd", "a//b", "a/../b", "", "a\0b"])
def test_a_name_that_leads_out_is_never_read(name: str) -> None:
    file = {"seq": 0, "name": name, "size": 1, "hash": "", "mtime_ns": 0}
    with pytest.raises(InvariantViolation, match="is outside the source's folder"):
        Manifest.from_json(json.dumps({"kind": "files", "format": "json", "files": [file]}))
