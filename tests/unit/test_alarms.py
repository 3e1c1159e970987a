"""Which parts of a status are an alarm, what each says to do, and that nobody is told of one twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tidemark.config import load_pipeline
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_NONE, WriterToken
from tidemark.core.ledger import Event, JournalEntry
from tidemark.core.status import (
    KINDS,
    LOST,
    Alarm,
    Blocked,
    CandidateStatus,
    Input,
    Limits,
    Proof,
    Quarantined,
    SourceStatus,
    Stalled,
    Status,
    Times,
    alarms_of,
    decide_notices,
    limits_in,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
LIMITS = Limits(
    behind_seconds=3_600.0,
    quarantine=True,
    quarantine_share=0.05,
    wal_bytes=10**9,
    replayable_seconds=2 * 86_400.0,
    candidate_seconds=2 * 86_400.0,
)
WELL = Status(
    pipeline="p",
    bound=9,
    sealed=9,
    checkpoint=9,
    generation=0,
    open=(),
    stalled=(),
    shards=(),
    at=NOW,
    last_sealed=Times(NOW - 2 * DAY, NOW - 2 * DAY),
    waiting=Input(known=True, pieces=1, oldest=NOW - timedelta(minutes=5), unit="files"),
    source=SourceStatus("", "", "", (), "", "", retained_bytes=10**9),
    quarantined=Quarantined(5, NOW, 10, 100, 5),
    replayable=(Proof(1, 8, gone="aged out"), Proof(9, 9, until=NOW + timedelta(hours=1))),
)
ILL = {
    "blocked": {"blocked": (Blocked("shard a at transaction 3", NOW, "a bad amount", 3, "a"),)},
    "stalled": {"stalled": (Stalled("transaction 9", NOW - DAY, "it is bound and not sealed"),)},
    "behind": {"waiting": Input(known=True, pieces=2, oldest=NOW - DAY, unit="files")},
    "wal": {"source": SourceStatus("", "", "", ("shard a",), "", "", retained_bytes=10**9 + 1)},
    "replayable": {"replayable": (Proof(9, 9, until=NOW - DAY),)},
    "quarantine": {"quarantined": Quarantined(6, NOW, 10, 100, 6)},
    "candidate": {"candidate": CandidateStatus(1, "4.1", "new rules", False, 3, NOW - 3 * DAY)},
}


def test_a_pipeline_that_is_well_has_no_alarm() -> None:
    """An idle pipeline's input goes in time; that of old transactions has gone. Neither is an alarm."""
    assert alarms_of(WELL, LIMITS) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_each_alarm_rings_above_its_limit_and_names_a_remedy(kind: str) -> None:
    ill = replace(WELL, **ILL[kind])  # type: ignore[arg-type]
    (alarm,) = alarms_of(ill, LIMITS)
    assert alarm.kind == kind
    assert len(alarm.remedy) > 20
    assert str(alarm) == f"{kind}: {alarm.fact}; {alarm.remedy}"
    off = replace(LIMITS, **dict.fromkeys(("blocked", "stalled", "quarantine"), False))
    none = dict.fromkeys(("behind_seconds", "wal_bytes", "replayable_seconds", "candidate_seconds"))
    assert alarms_of(ill, replace(off, **none)) == (), "what has no limit never rings"


def test_the_most_urgent_alarm_comes_first() -> None:
    together = {name: value for ill in ILL.values() for name, value in ill.items()}
    ill = replace(WELL, **together)  # type: ignore[arg-type]
    assert [alarm.kind for alarm in alarms_of(ill, LIMITS)] == list(KINDS)


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (Blocked("shard a at transaction 3", None, "w", 3, "a"), "tidemark release p a --reason"),
        (Blocked("transaction 3", None, "w", 3), "tidemark accept p 3` or `tidemark skip p 3"),
        (Blocked("the pipeline file does not fit", None, "w"), "tidemark check p"),
        (Blocked(LOST, None, "the history ends with 2"), "restore the table, or run `tidemark recover"),
    ],
)
def test_what_is_blocked_has_a_way_out_of_its_own(stop: Blocked, words: str) -> None:
    (alarm,) = alarms_of(replace(WELL, blocked=(stop,)), LIMITS)
    assert words in alarm.remedy


def test_input_of_an_open_transaction_that_ends_soon_is_an_alarm_whenever_it_was_bound() -> None:
    found = replace(WELL, bound=10, open=(10,), replayable=(Proof(10, 10, until=NOW + DAY),))
    (alarm,) = alarms_of(found, LIMITS)
    assert (alarm.subject, "lost" in alarm.remedy) == ("transaction 10", True)
    (alarm,) = alarms_of(replace(found, replayable=(Proof(10, 10, gone="no file"),)), LIMITS)
    assert "no file" in alarm.fact


def test_a_source_that_could_not_be_asked_rings_and_one_that_was_not_asked_does_not() -> None:
    (alarm,) = alarms_of(replace(WELL, waiting=Input(trouble="the folder is gone")), LIMITS)
    assert alarm.fact == "the folder is gone"
    assert alarms_of(replace(WELL, waiting=Input(), asked=False), LIMITS) == ()
    assert len(alarms_of(replace(WELL, waiting=Input()), LIMITS)) == 1


def test_an_alarm_stays_the_same_while_its_age_and_counts_change() -> None:
    for kind, ill in ILL.items():
        found = replace(WELL, **ill)  # type: ignore[arg-type]
        later = replace(found, at=NOW + timedelta(minutes=7))
        (first,), (second,) = alarms_of(found, LIMITS), alarms_of(later, LIMITS)
        assert first.identity == second.identity, kind


def entry(number: int, event: Event, alarm: str) -> JournalEntry:
    return JournalEntry(number, TXN_NONE, event, WriterToken("w"), {"alarm": alarm})


def test_a_candidate_may_stay_for_its_time_and_is_told_what_ends_it() -> None:
    def told(one: CandidateStatus) -> list[tuple[str, str]]:
        return [(alarm.fact, alarm.remedy) for alarm in alarms_of(replace(WELL, candidate=one), LIMITS)]

    young = CandidateStatus(1, "4.1", "new rules", False, 3, NOW - DAY)
    assert told(young) == []
    ((fact, remedy),) = told(replace(young, started=NOW - 3 * DAY))
    assert "3 transactions behind" in fact
    assert "generation follow p` or `tidemark generation promote p` or" in remedy
    ((fact, remedy),) = told(replace(young, started=NOW - 3 * DAY, behind=0))
    assert ("caught up" in fact, "follow" in remedy) == (True, False)


def test_an_alarm_is_new_once_and_again_when_it_was_over() -> None:
    one, other = Alarm("blocked", "shard a", "f", "r"), Alarm("behind", "input", "f", "r")
    entries: list[JournalEntry] = []
    assert decide_notices((one, other), entries).new == (one, other)
    entries.append(entry(1, Event.ALARM, one.identity))
    found = decide_notices((one, other), entries)
    assert (found.new, found.still, found.over) == ((other,), (one,), ())
    found = decide_notices((), entries)
    assert (found.new, found.still, found.over) == ((), (), (one.identity,))
    entries.append(entry(2, Event.ALARM_OVER, one.identity))
    assert decide_notices((), entries).over == ()
    assert decide_notices((one,), entries).new == (one,)


def test_words_ask_for_alarms_by_their_own_limits_or_those_of_the_file() -> None:
    assert limits_in("all", LIMITS) == LIMITS
    assert limits_in("", LIMITS) == Limits(blocked=False, stalled=False)
    asked = limits_in("blocked, behind, wal=2GB, quarantine=24h", LIMITS)
    assert (asked.blocked, asked.stalled, asked.behind_seconds) == (True, False, 3_600.0)
    assert (asked.wal_bytes, asked.quarantine_within_seconds) == (2 * 10**9, 86_400.0)
    assert (limits_in("quarantine", LIMITS).quarantine_share, limits_in("wal", LIMITS).wal_bytes) == (
        None,
        10**9,
    )
    with pytest.raises(InvalidUsage, match="sets no limit for 'behind'"):
        limits_in("behind", Limits())


FILE = """\
name: p
source: {type: files, path: in, format: json}
shards: [{name: t, schema: "a INT", keys: [a]}]
"""


def test_a_pipeline_file_sets_limits_and_what_it_sets_is_no_part_of_the_recorded_configuration(
    tmp_path: Path,
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(FILE)
    plain = load_pipeline(file)
    limits = plain.alarms.limits
    assert (limits.stalled_seconds, limits.behind_seconds, limits.wal_bytes) == (900, 172_800, 10**10)
    assert (limits.quarantine_share, limits.replayable_seconds) == (0.05, 172_800)
    file.write_text(FILE + "alarms: {stalled: 2h, behind: null, quarantine: 24h}\n")
    own = load_pipeline(file)
    limits = own.alarms.limits
    assert (limits.stalled_seconds, limits.behind_seconds) == (7_200, None)
    assert (limits.quarantine_share, limits.quarantine_within_seconds) == (None, 86_400)
    assert own.canonical_json() == plain.canonical_json()
    file.write_text(FILE + "alarms: {behind: soon}\n")
    with pytest.raises(InvalidUsage, match="'soon' is not a length of time"):
        load_pipeline(file)
