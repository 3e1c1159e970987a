"""Which modules a `tidemark run` goes through: `python -m bench.walk`.

The command runs in this process over one small file. Told is how many of Tidemark's modules it loads, how
many of them it enters (a function of theirs is called), how many pairs of modules call each other, and how
many of these are in two packages.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from bench.small import PIPELINE, land

OWN = "tidemark."


class Walk:
    """The calls of Tidemark's own functions, by module, in order."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self.steps: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(OWN):
            return
        self.entered[name] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_globals.get("__name__", "").startswith(OWN):
            caller = caller.f_back
        if caller is not None and (before := caller.f_globals["__name__"]) != name:
            self.steps.add((before, name))


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 2 else ""


def walked(folder: Path) -> dict[str, object]:
    """The walk of one run of the command."""
    from tidemark.cli.app import main

    (folder / "in").mkdir()
    (folder / "small.yaml").write_text(PIPELINE)
    land(folder, 0)
    walk = Walk()
    sys.argv = ["tidemark", "run", str(folder / "small.yaml")]
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    loaded = [name for name in sys.modules if name.startswith(OWN)]
    between = [pair for pair in walk.steps if package_of(pair[0]) != package_of(pair[1])]
    return {
        "loaded": len(loaded),
        "entered": len(walk.entered),
        "calls between modules": len(walk.steps),
        "of them between packages": len(between),
        "modules": sorted(walk.entered),
    }


def shown() -> None:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        os.chdir(made)
        print(json.dumps(walked(Path(made)), indent=1))


if __name__ == "__main__":
    shown()
