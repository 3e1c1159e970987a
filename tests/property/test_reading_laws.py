"""Laws of the shard reader's account, over random logs and schedules.

Checks Invariant 11 and Invariant 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.core.ids import Txn
from tidemark.core.log import ReadPlan, plan_read
from tidemark.core.reading import Fetch, ReadAccount, ReadTxn
from tidemark.core.seal import Part

WORKERS = ["w1", "w2", "w3"]

Log = dict[int, tuple[Part, ...]]

# A busy machine must not fail a law.
law = settings(deadline=None)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Which transactions touch the shard, and with how many parts; the rest is stepped over."""
    touched = draw(st.sets(st.integers(1, 12), min_size=1))
    return {
        txn: tuple(Part(f"log/{txn}-{n}.parquet", 1, 10) for n in range(draw(st.integers(0, 3))))
        for txn in sorted(touched)
    }


def account_of(log: Log, *, start: int = 1, ahead_parts_max: int = 100) -> ReadAccount:
    account = ReadAccount(start=Txn(start), ahead_parts_max=ahead_parts_max)
    for txn, parts in log.items():
        if txn >= start:
            account.listed(Txn(txn), parts)
    return account


def complete_upper(log: Log, fetched: Iterable[str]) -> int:
    """By brute force: the first transaction with a part that isn't here."""
    here = set(fetched)
    lacking = [txn for txn, parts in log.items() if any(part.path not in here for part in parts)]
    return min(lacking, default=max(log) + 1)


def deliver(account: ReadAccount, into: list[ReadTxn], *, count: int | None = None) -> None:
    """Deliver all that is ready, or the first few; nothing that comes may be half or out of order."""
    ready = account.deliverable()
    if ready is None:
        return
    upper = ready.upper if count is None else min(ready.upper, Txn(ready.lower + count))
    into.extend(txn for txn in ready.txns if txn.txn < upper)
    account.delivered(upper)


def whole(log: Log, *, start: int = 1) -> list[ReadTxn]:
    return [ReadTxn(Txn(txn), parts) for txn, parts in log.items() if txn >= start]


def run(account: ReadAccount, data: st.DataObject, into: list[ReadTxn], *, steps: int) -> list[Fetch]:
    """Random work for some steps: hand out, end, give back, deliver. Returns what is still fetched."""
    flying: list[Fetch] = []
    for _ in range(steps):
        match data.draw(st.sampled_from(["take", "take", "end", "end", "end", "deliver"])):
            case "take":
                if (taken := account.next_fetch(data.draw(st.sampled_from(WORKERS)))) is not None:
                    flying.append(taken)
            case "deliver":
                deliver(account, into, count=data.draw(st.sampled_from([None, 1, 2])))
            case "end" if flying:
                fetch = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
                if data.draw(st.sampled_from(["fetched", "fetched", "abandoned"])) == "fetched":
                    assert account.fetched(fetch)
                else:
                    assert account.abandoned(fetch)
                assert not account.fetched(fetch)
    return flying


def finish(account: ReadAccount, into: list[ReadTxn], flying: Sequence[Fetch] = ()) -> None:
    for fetch in flying:
        assert account.fetched(fetch)
    while (fetch_next := account.next_fetch("last")) is not None:
        account.fetched(fetch_next)
        deliver(account, into)
    deliver(account, into)


@law
@given(logs(), st.data())
def test_r2_any_completion_order_gives_the_same_frontier(log: Log, data: st.DataObject) -> None:
    account = account_of(log)
    fetches = []
    while (fetch := account.next_fetch("w1")) is not None:
        fetches.append(fetch)
    done: list[str] = []
    for fetch in data.draw(st.permutations(fetches)):
        assert account.frontier == complete_upper(log, done)
        account.fetched(fetch)
        done.append(fetch.part.path)
    assert account.frontier == max(log) + 1


@law
@given(logs(), st.data())
def test_r1_the_frontier_never_passes_a_missing_part(log: Log, data: st.DataObject) -> None:
    """Invariant 11: everything before the lowest missing one is delivered, and nothing from it on."""
    account = account_of(log)
    fetches = []
    while (fetch := account.next_fetch("w1")) is not None:
        fetches.append(fetch)
    lost = data.draw(st.sets(st.sampled_from(fetches))) if fetches else set()
    into: list[ReadTxn] = []
    for fetch in data.draw(st.permutations(fetches)):
        account.missing(fetch, "gone") if fetch in lost else account.fetched(fetch)
        deliver(account, into)
        for missing in account.missing_parts:
            assert account.frontier <= missing.txn
    deliver(account, into)
    upper = min((int(fetch.txn) for fetch in lost), default=max(log) + 1)
    assert account.frontier == account.delivered_upper == upper
    assert into == [txn for txn in whole(log) if txn.txn < upper]
    assert (account.frozen is None) == (not lost)
    assert account.frozen is None or account.frozen.txn == upper
    # Skipping what is lost, with a reason, thaws it; what was whole is still delivered whole.
    for txn in sorted({fetch.txn for fetch in lost}):
        account.skipped(txn, "approved")
    deliver(account, into)
    gone = {int(fetch.txn) for fetch in lost}
    expected = [ReadTxn(t.txn, (), "approved") if t.txn in gone else t for t in whole(log)]
    assert into == expected
    assert account.delivered_upper == max(log) + 1


@law
@given(logs(), st.integers(1, 5), st.data())
def test_r2_every_txn_is_delivered_whole_once_and_in_order(log: Log, ahead: int, data: st.DataObject) -> None:
    account, into = account_of(log, ahead_parts_max=ahead), list[ReadTxn]()
    finish(account, into, run(account, data, into, steps=data.draw(st.integers(0, 60))))
    assert into == whole(log)
    assert account.delivered_upper == max(log) + 1


@law
@given(logs(), st.data())
def test_r3_shut_down_anywhere_the_next_reader_goes_on_exactly_there(log: Log, data: st.DataObject) -> None:
    first, into = account_of(log), list[ReadTxn]()
    flying = run(first, data, into, steps=data.draw(st.integers(0, 40)))
    first.drain()
    frontier = first.frontier
    for fetch in flying:
        assert first.next_fetch(fetch.worker) is None
        assert first.abandoned(fetch)
    assert first.frontier == frontier
    if data.draw(st.booleans()):
        deliver(first, into)
    second = account_of(log, start=first.delivered_upper)
    finish(second, into)
    assert into == whole(log)


@law
@given(logs(), st.data())
def test_r5_snapshot_and_listen_give_everything_exactly_once(log: Log, data: st.DataObject) -> None:
    upper = max(log) + 1
    since = data.draw(st.integers(1, upper))
    as_of = data.draw(st.integers(since - 1, upper - 1))
    plan = plan_read(as_of=Txn(as_of), since=Txn(since), upper=Txn(upper))
    assert isinstance(plan, ReadPlan)
    snapshot = [txn for txn in whole(log) if plan.covers(txn.txn)]
    listened: list[ReadTxn] = []
    account = account_of(log, start=plan.listen_from)
    finish(account, listened, run(account, data, listened, steps=data.draw(st.integers(0, 30))))
    assert snapshot + listened == whole(log)
    # Nothing that only a fold is left of is asked for one by one.
    assert all(txn.txn >= since for txn in listened)
