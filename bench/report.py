"""The comparison as Markdown and as a picture, from its measured numbers: `python -m bench.report`.

`docs/benchmarks.json` is what `bench.peers` measured; `docs/benchmarks.md` and `docs/images/benchmarks.svg`
are made from it and from nothing else.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS = DOCS / "benchmarks.json"
PICTURE = DOCS / "images" / "benchmarks.svg"
KINDS = ("upserts", "with deletes")
EVERY = "publish, every transaction"
TEN = "publish, every ten"
IN_ALL = "commit and publish, every ten"
EACH = "commit and publish, every transaction"
ICEBERG = "Iceberg merge-on-read"
FIRST = "first publish after the load, which makes the index"
OURS = ("commit", TEN, IN_ALL, EVERY, EACH)
ORDER = ("Parquet", *OURS, "tuned MERGE", "naive MERGE", ICEBERG, "delta-rs merge")
DELTA_RS = "delta-rs merge"
PEERS = ("tuned MERGE", ICEBERG, DELTA_RS)
AHEAD = {2_000_000: 1.3, 8_000_000: 3.5, 20_000_000: 8.0}
"""How many times faster than the fastest peer commit and publish are to be, by rows of the table."""
PUBLISH_SECONDS = 0.4
TEN_SECONDS = {8_000_000: 1.2}
FLAT = (
    "Made by `python -m bench.flat --spark --report`, which says how: a publish each for many small batches,"
    " with maintenance as once a day at a publish a minute, and every version kept. After its history's days"
    " only the newest version is needed."
)
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.b{fill:#8c959f}.o{fill:#0969da}.t{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.b{fill:#6e7681}.o{fill:#58a6ff}}"
)


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each contender. The first publish after the load makes the index, which no later one
    does: it is no sample, but a row of its own."""
    samples = {name: found[1:] if name == EVERY else found for name, found in times.items()}
    return {name: statistics.median(found) for name, found in samples.items()}


def seconds_of(size: dict[str, Any], kind: str) -> dict[str, float]:
    """A kind's medians, with what the product costs in all beside what its pieces do."""
    found: dict[str, float] = dict(size[kind]["seconds"])
    found[IN_ALL] = found["commit"] + found[TEN]
    found[EACH] = found["commit"] + found[EVERY]
    return {name: found[name] for name in ORDER if name in found}


def millions(size: dict[str, Any]) -> str:
    return f"{size['rows'] / 1e6:g}M rows"


def table(results: dict[str, Any], kind: str) -> str:
    """Seconds per transaction, one column per size that has been measured."""
    sizes = [size for size in results["sizes"] if kind in size]
    if not sizes:
        return "Not measured."
    lines = [f"| seconds per transaction | {' | '.join(map(millions, sizes))} |"]
    lines.append("| --- |" + " ---: |" * len(sizes))
    columns = [seconds_of(size, kind) for size in sizes]
    rows = {name: " | ".join(f"{column[name]:.2f}" for column in columns) for name in columns[0]}
    if all("all" in size[kind] for size in sizes):
        rows[FIRST] = " | ".join(f"{size[kind]['all'][EVERY][0]:.2f}" for size in sizes)
    return "\n".join([*lines, *(f"| {name} | {cells} |" for name, cells in rows.items())])


def goals(size: dict[str, Any]) -> list[str]:
    """What was aimed at and what was reached, as rows: a goal, the limit, what was found, and whether."""
    lines = []
    for kind in (kind for kind in KINDS if kind in size):
        seconds = seconds_of(size, kind)
        lines.append(_goal(f"{kind}: seconds of a publish", seconds[EVERY], PUBLISH_SECONDS))
        ratio = seconds[EACH] / seconds["commit"]
        lines.append(_goal(f"{kind}: commit and publish against the commit", ratio, 1.4))
        ahead = AHEAD.get(size["rows"], 1.0)
        ratio = seconds[EACH] / min(seconds[peer] for peer in PEERS)
        words = f"{kind}: commit and publish, {ahead:g} times faster than the fastest peer"
        lines.append(_goal(words, ratio, 1 / ahead))
        if size["rows"] in TEN_SECONDS:
            ten = seconds[TEN] * 10
            lines.append(_goal(f"{kind}: seconds of one publish of ten", ten, TEN_SECONDS[size["rows"]]))
        reads = size[kind]["reads"]
        lines.append(_goal(f"{kind}: fresh read against the state's", reads["fresh"] / reads["state"], 1.3))
    if "scan new" in size:
        worn = size["scan state"] / size["scan new"]
        after = f"{size['publishes']} publishes" if "publishes" in size else "publishes"
        lines.append(_goal(f"read of the state after {after} against a new table", worn, 1.2))
    return lines


def flatness(results: dict[str, Any]) -> list[str]:
    """How much the largest table's publish costs against the smallest one's, as rows of goals."""
    lines = []
    for kind in KINDS:
        found = [seconds_of(size, kind)[EVERY] for size in results["sizes"] if kind in size]
        if len(found) > 1:
            lines.append(_goal(f"{kind}: slowest publish against the fastest", max(found) / min(found), 1.5))
    return lines


def _goal(words: str, found: float, limit: float) -> str:
    return f"| {words} | {limit:.2f} | {found:.2f} | {'yes' if found <= limit else 'no'} |"


def _when(results: dict[str, Any]) -> str:
    """When each size was measured, and how busy the machine was then."""
    sizes = results["sizes"]
    return "; ".join(f"{millions(size)}: {size['at']}, load average up to {size['load']}" for size in sizes)


def _counted(results: dict[str, Any]) -> str:
    """How many publishes of ten batches there were, and what the medians leave out."""
    if "tens" not in results:
        return "one publish of ten batches"
    return f"the first publish, which makes the index, is not among them; {results['tens']} publishes of ten"


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    checks = [
        same
        for size in results["sizes"]
        for kind in KINDS
        if kind in size
        for same in size[kind]["same_rows"].values()
    ]
    checked = bool(checks) and all(checks)
    lines = [
        "# Benchmarks",
        "",
        "Made by `python -m bench.peers`; don't edit. What each contender does is said there.",
        "",
        f"Measured on a machine with {results['cores']} cores that others used too ({_when(results)}),"
        f" Spark's heap {results['memory']}; {versions}. Batches of 50,000 records from JSON files, medians"
        f" of {results['batches']}; {_counted(results)} and one naive MERGE per kind. Read the ratios,"
        " not the seconds: all contenders took turns in one session.",
        "",
        f"Every peer's table had the rows of the state: {'yes' if checked else '**no**'}.",
        "",
        "![seconds per transaction](images/benchmarks.svg)",
    ]
    for kind in KINDS:
        title = "Upserts" if kind == "upserts" else "Upserts with 5 % deletes"
        lines += ["", f"## {title}", "", table(results, kind)]
    for size in results["sizes"]:
        lines += ["", f"## Aimed at and reached, {millions(size)}", ""]
        lines += ["| goal | at most | found | reached |", "| --- | ---: | ---: | --- |", *goals(size)]
    if flatness(results):
        lines += ["", "## Aimed at and reached, over all sizes", ""]
        lines += ["| goal | at most | found | reached |", "| --- | ---: | ---: | --- |", *flatness(results)]
    if "flat" in results:
        lines += ["", "## After ten thousand publishes", "", FLAT, "", results["flat"]["words"], ""]
        header, *rows = (f"| {' | '.join(row)} |" for row in results["flat"]["lines"])
        lines += [header, "|" + " ---: |" * len(results["flat"]["lines"][0]), *rows]
    return "\n".join(lines) + "\n"


def picture(results: dict[str, Any]) -> str:
    """Bars of seconds per transaction, a block per size; readable on light and on dark."""
    width, label, bar, gap = 760, 270, 16, 6
    parts: list[str] = []
    y = 24
    for size in results["sizes"]:
        seconds = seconds_of(size, "upserts")
        scale = (width - label - 70) / max(seconds.values())
        parts.append(f'<text class="t" x="8" y="{y}">{millions(size)}, upserts: seconds each</text>')
        y += 10
        for name, value in seconds.items():
            ours = "o" if name in OURS else "b"
            length = max(value * scale, 1)
            parts.append(f'<text x="{label - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
            parts.append(
                f'<rect class="{ours}" x="{label}" y="{y}" width="{length:.1f}" height="{bar}" rx="2"/>'
            )
            parts.append(f'<text x="{label + length + 6:.1f}" y="{y + 13}">{value:.2f}</text>')
            y += bar + gap
        y += 26
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">'
    title = "<title>Seconds per transaction, by table size</title>"
    return "\n".join([head, title, f"<style>{_STYLE}</style>", *parts, "</svg>"]) + "\n"


def write_report(results: dict[str, Any]) -> None:
    """Write report and picture."""
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture(results), encoding="utf-8")
    (DOCS / "benchmarks.md").write_text(markdown(results), encoding="utf-8")


if __name__ == "__main__":
    write_report(json.loads(RESULTS.read_text(encoding="utf-8")))
