"""Laws of the acknowledgement tracker, over random streams. Checks Invariant 10.

The reference keeps the whole history and works everything out from it anew at each step, from the
words of the rule: when did the shard last have all it needed, which commit came next, what has it
flushed. It shares nothing with the tracker but the positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.core.checkpoint import Acknowledged, FlushPosition, FlushTracker, SourceTxn
from tidemark.core.ids import ShardId

SHARDS = [ShardId(name) for name in "abcd"]
COMMIT_OP = 100

# The reference is slow on purpose, and a busy machine is slower still.
law = settings(deadline=None)


def at(txn: int, op: int) -> FlushPosition:
    return FlushPosition(SourceTxn(txn), op)


@dataclass(frozen=True)
class Row:
    shard: ShardId
    txn: int
    op: int


@dataclass(frozen=True)
class Commit:
    txn: int
    shards: frozenset[ShardId]
    reach: dict[ShardId, tuple[int, int]] = field(hash=False)


@dataclass(frozen=True)
class Flush:
    shard: ShardId
    txn: int
    op: int


@dataclass(frozen=True)
class Removal:
    shard: ShardId


Event = Row | Commit | Flush | Removal


@st.composite
def streams(draw: st.DrawFn, *, removals: bool = True) -> list[Event]:
    """Source transactions one after the other, rows announced or not, flushes anywhere in between."""
    events: list[Event] = []
    txn = 0
    for _ in range(draw(st.integers(1, 8))):
        txn += draw(st.integers(1, 3))
        rows: dict[ShardId, tuple[int, int]] = {}
        for shard in draw(st.lists(st.sampled_from(SHARDS), max_size=4)):
            op = len(rows) * 10 + draw(st.integers(0, 9))
            op = max(op, rows.get(shard, (txn, 0))[1])
            rows[shard] = (txn, op)
            events.append(Row(shard, txn, op))
            events.extend(draw(st.lists(flushes(txn), max_size=1)))
        unannounced = draw(st.sets(st.sampled_from(SHARDS))) - rows.keys()
        reach = {**rows, **dict.fromkeys(unannounced, (txn, COMMIT_OP))}
        events.append(Commit(txn, frozenset(reach), reach))
        after: st.SearchStrategy[Event] = flushes(txn)
        if removals:
            after = st.one_of(flushes(txn), st.builds(Removal, st.sampled_from(SHARDS)))
        events.extend(draw(st.lists(after, max_size=4)))
    return events


def flushes(txn: int) -> st.SearchStrategy[Flush]:
    ops = st.one_of(st.integers(0, 60), st.sampled_from([0, COMMIT_OP, COMMIT_OP + 1]))
    return st.builds(Flush, st.sampled_from(SHARDS), st.integers(max(1, txn - 3), txn), ops)


def tell(tracker: FlushTracker, event: Event) -> Acknowledged | None:
    match event:
        case Row(shard, txn, op):
            tracker.received(shard, at(txn, op))
            return None
        case Commit(txn, shards, _):
            return tracker.committed(at(txn, COMMIT_OP), shards, now_seconds=0)
        case Flush(shard, txn, op):
            return tracker.flushed(shard, at(txn, op), now_seconds=0)
        case Removal(shard):
            return tracker.removed(shard)


def own_part(history: list[Event], shard: ShardId) -> list[Event]:
    """The commits and flushes that the shard took part in since it was last removed."""
    own: list[Event] = []
    for event in history:
        match event:
            case Removal(removed) if removed == shard:
                own = []
            case Commit(_, shards, _) if shard in shards:
                own.append(event)
            case Flush(flushed, _, _) if flushed == shard:
                own.append(event)
    return own


def flushed_by(own: list[Event]) -> tuple[int, int]:
    return max(((event.txn, event.op) for event in own if isinstance(event, Flush)), default=(0, 0))


def aligned(own: list[Event], shard: ShardId) -> tuple[int, int]:
    """What the shard has flushed, where all it needs of the last commit counts as that commit's own op: a
    flush between the two adds nothing."""
    position, commit = (0, 0), None
    for event in own:
        if isinstance(event, Flush):
            position = max(position, (event.txn, event.op))
        elif isinstance(event, Commit):
            commit = event
        if commit is not None and position >= commit.reach[shard]:
            position = max(position, (commit.txn, COMMIT_OP))
    return position


def is_caught_up(own: list[Event], shard: ShardId) -> bool:
    commits = [event for event in own if isinstance(event, Commit)]
    return not commits or flushed_by(own) >= commits[-1].reach[shard]


def floor_of(own: list[Event], shard: ShardId) -> int:
    """Lagging: the first commit after it last had everything, less one, or what it flushed into."""
    caught_up = max(cut for cut in range(len(own) + 1) if is_caught_up(own[:cut], shard))
    began = next(event.txn for event in own[caught_up:] if isinstance(event, Commit))
    return max(began - 1, flushed_by(own)[0])


def reports(history: list[Event]) -> bool:
    """Whether the last event is one that may report: see the rule in the module's docstring."""
    before, event = history[:-1], history[-1]
    match event:
        case Row():
            return False
        case Commit():
            return all(is_caught_up(own_part(history, shard), shard) for shard in SHARDS)
        case Flush(shard, txn, op):
            own = own_part(before, shard)
            return not is_caught_up(own, shard) and (txn, op) > aligned(own, shard)
        case Removal(shard):
            return not is_caught_up(own_part(before, shard), shard)


def reference(history: list[Event]) -> int:
    lagging = [shard for shard in SHARDS if not is_caught_up(own_part(history, shard), shard)]
    if lagging:
        return min(floor_of(own_part(history, shard), shard) for shard in lagging) - 1
    return max((event.txn for event in history if isinstance(event, Commit)), default=0)


def safe_upper(history: list[Event]) -> int:
    """The first source transaction that isn't durable everywhere: what may never be acknowledged."""
    unsafe = [
        commit.txn
        for shard in SHARDS
        for commit in own_part(history, shard)
        if isinstance(commit, Commit) and flushed_by(own_part(history, shard)) < commit.reach[shard]
    ]
    ends = [event.txn + 1 for event in history if isinstance(event, Commit)]
    return min(unsafe, default=max(ends, default=1))


@law
@given(streams())
def test_the_tracker_says_what_the_brute_force_reference_says(events: list[Event]) -> None:
    tracker, expected = FlushTracker(), 0
    for count, event in enumerate(events, start=1):
        report = tell(tracker, event)
        history = events[:count]
        now = reference(history) if reports(history) else expected
        assert report is None or report.txn == now > expected
        assert report is not None or now <= expected
        expected = max(expected, now)
        assert tracker.acknowledged.txn == expected
        lagging = {lag.shard for lag in tracker.lagging()}
        assert lagging == {shard for shard in SHARDS if not is_caught_up(own_part(history, shard), shard)}


@law
@given(streams())
def test_the_acknowledgement_never_regresses_and_never_passes_an_unflushed_transaction(
    events: list[Event],
) -> None:
    tracker, last = FlushTracker(), 0
    for count, event in enumerate(events, start=1):
        report = tell(tracker, event)
        if report is not None:
            assert last < report.txn < safe_upper(events[:count])
            last = report.txn
            # A position is told exactly when all is durable, and it is then the last commit's own.
            commits = [event.txn for event in events[:count] if isinstance(event, Commit)]
            assert (report.position == at(commits[-1], COMMIT_OP)) == (report.txn == commits[-1])
            assert report.position is not None or report.txn < commits[-1]


@law
@given(streams(), st.permutations(SHARDS))
def test_when_everything_is_flushed_the_last_commit_is_acknowledged(
    events: list[Event], order: list[ShardId]
) -> None:
    tracker = FlushTracker()
    for event in events:
        tell(tracker, event)
    last = max(event.txn for event in events if isinstance(event, Commit))
    for shard in order:
        tell(tracker, Flush(shard, last, COMMIT_OP))
    assert tracker.acknowledged == Acknowledged(SourceTxn(last), at(last, COMMIT_OP))
    assert tracker.lagging() == ()


@law
@given(streams(removals=False), st.data())
def test_flushes_of_several_shards_may_come_in_any_order(events: list[Event], data: st.DataObject) -> None:
    commits = [event for event in events if isinstance(event, Commit)]
    last = commits[-1].txn
    some = [Flush(shard, last, data.draw(st.integers(0, COMMIT_OP - 1))) for shard in SHARDS]
    shuffled = data.draw(st.permutations(some))
    ends = []
    for order in (some, shuffled):
        tracker = FlushTracker()
        for commit in commits:
            tracker.committed(at(commit.txn, COMMIT_OP), commit.shards, now_seconds=0)
        for flush in order:
            tell(tracker, flush)
        ends.append((tracker.acknowledged, tracker.lagging()))
    assert ends[0] == ends[1]


@law
@given(streams(removals=False))
def test_a_flush_before_the_commit_fragment_counts_as_much_as_one_after_it(events: list[Event]) -> None:
    """Each shard flushes right after its last row, or only after the commit: the end is the same."""
    early, late = FlushTracker(), FlushTracker()
    for event in events:
        if isinstance(event, Flush):
            continue
        for tracker in (early, late):
            tell(tracker, event)
        if isinstance(event, Row):
            assert early.flushed(event.shard, at(event.txn, event.op), now_seconds=0) is None
        else:
            assert isinstance(event, Commit)
            for shard, reach in sorted(event.reach.items()):
                if reach[1] == COMMIT_OP:
                    early.flushed(shard, at(*reach), now_seconds=0)
                late.flushed(shard, at(*reach), now_seconds=0)
            assert early.acknowledged == late.acknowledged
            assert early.acknowledged.txn == event.txn


@law
@given(streams(removals=False), st.data())
def test_a_tracker_rebuilt_from_durable_facts_is_safe_and_ends_the_same(
    events: list[Event], data: st.DataObject
) -> None:
    tracker = FlushTracker()
    crash = data.draw(st.integers(0, len(events)))
    for event in events[:crash]:
        tell(tracker, event)
    acknowledged = tracker.acknowledged.txn
    durable: dict[ShardId, FlushPosition] = {}
    for event in events[:crash]:
        if isinstance(event, Flush):
            known = durable.get(event.shard, at(event.txn, event.op))
            durable[event.shard] = max(known, at(event.txn, event.op))
    rebuilt = FlushTracker(acknowledged=acknowledged, flushed=durable)
    # The source sends everything above the acknowledged transaction again; the shards go on flushing.
    history: list[Event] = [event for event in events[:crash] if isinstance(event, Flush)]
    for count, event in enumerate(events):
        if isinstance(event, Flush) and count < crash:
            continue
        history.append(event)
        report = tell(rebuilt, event)
        assert report is None or acknowledged < report.txn < safe_upper(history)
    last = max(event.txn for event in events if isinstance(event, Commit))
    for shard in SHARDS:
        tell(rebuilt, Flush(shard, last, COMMIT_OP))
    assert rebuilt.acknowledged.txn == last
