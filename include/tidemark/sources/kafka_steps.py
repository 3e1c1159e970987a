"""Cutting what there is to read of topics into transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemark.core.binding import Step
from tidemark.core.frontier import Frontier
from tidemark.sources.kafka_manifest import KafkaManifest

Offsets = Mapping[str, int]


def steps_of(
    firsts: Offsets, lows: Offsets, ends: Offsets, *, kept: Offsets, notes: KafkaManifest, records_max: int
) -> Iterator[Step]:
    """The lost offsets, if there are any, then the others, at most `records_max` in a transaction. `notes` is
    what all their manifests have in common."""
    reached = dict(firsts)
    lost = {name: (first, lows[name]) for name, first in firsts.items() if first < lows[name]}
    if lost:
        reached |= {name: low for name, (_, low) in lost.items()}
        manifest = notes.reading((name, first, low) for name, (first, low) in lost.items())
        yield Step(Frontier.of({**kept, **reached}), manifest.to_json())
    if all(reached[name] == ends[name] for name in reached) and not lost:
        # Nothing to read. Where the pipeline begins is worth a binding all the same.
        yield Step(Frontier.of({**kept, **reached}), notes.to_json())
    while any(reached[name] < ends[name] for name in reached):
        shares = _shares({name: ends[name] - offset for name, offset in reached.items()}, records_max)
        ranges = [(name, reached[name], reached[name] + share) for name, share in shares.items()]
        reached |= {name: upper for name, _, upper in ranges}
        yield Step(Frontier.of({**kept, **reached}), notes.reading(ranges).to_json())


def _shares(left: Offsets, limit: int) -> dict[str, int]:
    """How many offsets of each partition go into one transaction: equal shares, and what the short ones
    leave over goes to the others."""
    shares: dict[str, int] = {}
    waiting = sorted((offsets, name) for name, offsets in left.items() if offsets)
    for index, (offsets, name) in enumerate(waiting):
        shares[name] = min(offsets, limit // (len(waiting) - index))
        limit -= shares[name]
    return shares
