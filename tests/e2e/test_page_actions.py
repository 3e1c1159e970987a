"""The actions on Tidemark's pages in a real Airflow, each sent by a real browser: what it commits or starts,
and that the journal has the user and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from scripts.local_airflow.embedded import USER
from tests.e2e.test_pages import picture
from tests.support.airflow import SHARD, Project, Stack
from tests.support.browser import FRAMED, Browser, running_browser
from tests.support.tables import rows_of
from tidemark.app.generation import Generations
from tidemark.app.tasks import open_pipeline, reclock
from tidemark.core.binding import Owner
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Event, JournalEntry
from tidemark.core.seal import Decision
from tidemark.pipeline.context import Attempt, note

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.browser,
]

FOCUS = f"{FRAMED}.activeElement"
ACTIONS: dict[str, dict[str, Any]] = {
    "accept": {"txn": 1},
    "skip": {"txn": 1},
    "release": {"shard": "orders"},
    "replay": {"txn_from": 1, "txn_to": 1},
    "repair": {"txn_from": 1, "txn_to": 1},
    "publish": {},
    "promote": {"candidate": "none"},
    "abort": {"candidate": "none"},
}


def act_by_keyboard(browser: Browser, label: str, reason: str) -> None:
    """Open an action, type the reason, and press its button twice."""
    browser.tab_to(f"{FOCUS}.innerText === {json.dumps(label)}")
    browser.press("Enter")
    browser.wait_for(f"{FOCUS}.type === 'text'", what="the field for the reason")
    browser.type(reason)
    browser.tab_to(f"{FOCUS}.className === 'danger'")
    browser.press("Enter")
    browser.sees(f"Sure? {label}")
    browser.press("Enter")


def open_page(browser: Browser, stack: Stack, *, txn: int | None = None) -> None:
    """The pipeline's tab in Airflow, or the page of a transaction from there, with the focus at its start."""
    browser.open(f"{stack.airflow.url}/dags/decided/plugin/tidemark_pipeline")
    browser.wait_for(f"!!{FRAMED}.querySelector('main')", what="the page's frame")
    browser.sees("Frontiers")
    if txn is not None:
        link = f"{FRAMED}.querySelector('a[href$=\"&txn={txn}\"]')"
        browser.wait_for(f"!!{link}", what=f"transaction {txn} in the list")
        browser.value(f"{link}.click()")
        browser.sees(f"Transaction {txn}\n")
        browser.sees("Journal")
    browser.value("document.querySelector('iframe').focus()")


def entries(project: Project, event: Event, txn: int = 0) -> list[JournalEntry]:
    return [one for one in project.journal(txn) if one.event is event]


def by_whom(entry: JournalEntry) -> tuple[str, str]:
    return entry.detail["user"], entry.detail["reason"]


def started(stack: Stack, dag_id: str, reason: str) -> Any:
    """The run that an action has started, which has its reason as its note."""
    runs = stack.client.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]
    (run,) = [one for one in runs if one["note"] == reason]
    assert run["triggering_user_name"] == USER
    return run


def test_each_action_is_taken_in_a_browser_by_who_has_the_right_and_by_nobody_else(stack: Stack) -> None:
    project, client = stack.projects["decided"], stack.client
    client.unpause("decided")
    project.land([{"id": 1, "status": "new", "amount": -5.0, "op": "U"}])
    stack.ends("decided", client.trigger("decided"), state="failed")
    check_refusals(stack, project)
    with running_browser() as browser:
        browser.resize(1280, 900)
        check_viewer(browser, stack)
        browser.log_in(stack.airflow.url, stack.editor_token)
        check_accept_and_publish(browser, stack, project)
        check_release(browser, stack, project)
        check_replay_and_repair(browser, stack, project)
        check_skip(browser, stack, project)
        check_promote_and_abort(browser, stack, project)
        assert [one for one in browser.complaints if "/tidemark/" in one or "Content Security" in one] == []


def check_refusals(stack: Stack, project: Project) -> None:
    viewer, editor = stack.viewer_token, stack.editor_token
    for verb, named in ACTIONS.items():
        body = {"reason": "not mine to say", **named}
        assert stack.act("decided", verb, "", **body)[0] == 401, verb
        assert stack.act("decided", verb, viewer, **body)[0] == 403, verb
        assert stack.act("decided", verb, editor, origin="https://elsewhere.example", **body)[0] == 403, verb
    assert project.seals() == []
    assert entries(project, Event.REQUESTED) == []


def check_viewer(browser: Browser, stack: Stack) -> None:
    """Where an editor is offered to accept and to skip, a viewer is offered nothing."""
    browser.log_in(stack.airflow.url, stack.viewer_token)
    for txn, text in ((None, "blocked: transaction 1"), (1, "not sealed: ")):
        open_page(browser, stack, txn=txn)
        browser.sees(text, "expect_column_values_to_be_between(amount")
        assert browser.value(f"{FRAMED}.querySelectorAll('.action, button.danger').length") == 0


def check_accept_and_publish(browser: Browser, stack: Stack, project: Project) -> None:
    """From the list of all pipelines, by the keyboard alone."""
    browser.open(f"{stack.airflow.url}/plugin/tidemark")
    browser.sees("decided", "blocked: transaction 1")
    browser.wait_for(f"!{FRAMED}.body.innerText.includes('loading …')", what="every row")
    picture(browser, "pipelines")
    browser.tab_to(f"{FOCUS}.type === 'search'")
    browser.type("decid")
    browser.wait_for(f"{FRAMED}.querySelectorAll('tbody a').length === 1", what="the filtered list")
    browser.tab_to(f"{FOCUS}.getAttribute('href') === 'pipeline?dag_id=decided'")
    browser.press("Enter")
    browser.sees("Frontiers", "expect_column_values_to_be_between(amount")
    act_by_keyboard(browser, "Accept transaction 1", "a refund, as billing says")
    browser.sees("transaction 1 is accepted; the checkpoint is 1", "Publish now")
    (noted,) = entries(project, Event.ACCEPTED, 1)
    assert by_whom(noted) == (USER, "a refund, as billing says")

    # The run that publishes also takes what waits; the shard's log stops before it.
    project.land([{"id": 2, "status": "odd", "amount": 5.0, "op": "U"}])
    act_by_keyboard(browser, "Publish now", "the board meets")
    browser.sees("publish: run ", "of DAG decided does it")
    picture(browser, "decided")
    (request,) = entries(project, Event.REQUESTED)
    assert (request.detail["what"], by_whom(request)) == ("publish", (USER, "the board meets"))
    run = started(stack, "decided", "the board meets")
    assert run["conf"]["publish"] is True
    stack.ends("decided", run["dag_run_id"])
    assert project.state() == {1: ("new", -5.0)}


def check_release(browser: Browser, stack: Stack, project: Project) -> None:
    log = project.folder / "warehouse" / "decided" / SHARD / "log"
    assert rows_of(log, ("_txn",)) == [(1,)]
    open_page(browser, stack)
    browser.sees("blocked: shard orders at transaction 2")
    act_by_keyboard(browser, "Release orders", "odd is a status now")
    browser.sees("shard orders appended 1 transaction; it has all transactions up to 2")
    assert sorted(rows_of(log, ("_txn",))) == [(1,), (2,)]
    (noted,) = entries(project, Event.RELEASED, 2)
    assert by_whom(noted) == (USER, "odd is a status now")


def check_replay_and_repair(browser: Browser, stack: Stack, project: Project) -> None:
    """Each is a run of the replay DAG. That DAG is paused here, and the page says that the run waits."""
    conf = {"pipeline": "decided", "txn_from": 1, "txn_to": 1, "dry_run": False}
    open_page(browser, stack, txn=1)
    assert browser.value(f"{FRAMED}.body.innerText.includes('Repair')") is False, "nothing differs"
    act_by_keyboard(browser, "Replay", "a doubt")
    browser.sees("replay: run ", "waits until DAG replay_decided is unpaused")
    run = started(stack, "replay_decided", "a doubt")
    assert (run["state"], run["conf"]) == ("queued", {**conf, "mode": "verify"})

    told = {"verdict": "differs", "finding": "a part differs from the seal", "run": "r"}
    note(
        open_pipeline(project.file, None).pipeline,
        Event.VERIFIED, txn=Txn(1), token=WriterToken("r"), detail=told,
    )  # fmt: skip
    open_page(browser, stack, txn=1)
    browser.sees("the last replay differs: a part differs from the seal")
    act_by_keyboard(browser, "Repair", "a disk was mended")
    browser.sees("repair: run ", "waits until DAG replay_decided is unpaused")
    run = started(stack, "replay_decided", "a disk was mended")
    assert run["conf"] == {**conf, "mode": "repair"}
    requests = entries(project, Event.REQUESTED, 1)
    assert [(one.detail["what"], by_whom(one)) for one in requests] == [
        ("replay", (USER, "a doubt")),
        ("repair", (USER, "a disk was mended")),
    ]


def check_skip(browser: Browser, stack: Stack, project: Project) -> None:
    """What is bound and was never staged can only be skipped."""
    project.land_some()
    reclock(open_pipeline(project.file, None, binds=True), Attempt(Owner("by hand"), WriterToken("h")))
    open_page(browser, stack, txn=3)
    browser.sees("open: not sealed yet")
    act_by_keyboard(browser, "Skip transaction 3", "sent twice")
    browser.sees("transaction 3 is skipped; the checkpoint is 3")
    assert project.seals()[-1].decision is Decision.SKIPPED
    (noted,) = entries(project, Event.SKIPPED, 3)
    assert by_whom(noted) == (USER, "sent twice")


def check_promote_and_abort(browser: Browser, stack: Stack, project: Project) -> None:
    config = yaml.safe_load(project.file.read_text())
    config["generation"] = 1
    config["shards"][0]["apply_as_deletes"] = "op = 'X'"
    project.file.write_text(yaml.safe_dump(config))
    seen = Generations(open_pipeline(project.file, None)).start(reason="X deletes, D does not")
    open_page(browser, stack)
    browser.sees("generation 1, 3 behind: X deletes, D does not")
    act_by_keyboard(browser, "Promote generation 1", "it was compared")
    browser.sees("promote: run ", "waits until DAG replace_decided is unpaused")
    conf = started(stack, "replace_decided", "it was compared")["conf"]
    asked = {"pipeline": "decided", "reason": "it was compared", "candidate": seen.identity, "promote": True}
    assert {name: conf[name] for name in asked} == asked
    act_by_keyboard(browser, "Abort generation 1", "a mistake")
    browser.sees("the candidate of generation 1 is aborted; its tables are removed")
    assert Generations(open_pipeline(project.file, None)).candidate is None
    requests = [(one.detail["what"], by_whom(one)) for one in entries(project, Event.REQUESTED)]
    assert requests[1:] == [
        ("promote", (USER, "it was compared")),
        ("abort", (USER, "a mistake")),
    ]
