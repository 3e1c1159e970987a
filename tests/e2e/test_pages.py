"""Tidemark's pages in a real Airflow: what a viewer sees of a run, and that nobody else sees anything."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from scripts.local_airflow.embedded import USER
from tests.support.airflow import Stack
from tests.support.browser import FRAMED, Browser, running_browser
from tests.support.waiting import SECONDS_MAX
from tidemark.app.tasks import open_pipeline, reclock
from tidemark.core.binding import Owner
from tidemark.core.ids import WriterToken
from tidemark.core.journal import Event
from tidemark.core.seal import Decision
from tidemark.pipeline.context import Attempt

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.server, pytest.mark.slow]


def asked(stack: Stack, path: str, token: str = "") -> tuple[int, str]:
    """The status and the text that Airflow's API server answers with."""
    request = urllib.request.Request(f"{stack.airflow.url}{path}")
    if token:
        request.add_header("Cookie", f"_token={token}")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_viewer_sees_the_numbers_of_a_run_and_nobody_without_a_login_does(stack: Stack) -> None:
    project, token = stack.projects["shown"], stack.viewer_token
    stack.client.unpause("shown")
    project.land_some()
    run_id = stack.go("shown")
    project.land_some()

    def told(path: str) -> Any:
        status, text = asked(stack, f"/tidemark/api/pipelines{path}", token)
        assert status == 200, text
        return json.loads(text)

    assert set(stack.projects) <= set(told("")["pipelines"]), "every pipeline, and by the marked task alone"
    assert not {"replay", "maintain", "consumer"} & set(told("")["pipelines"])
    found = told("/shown")
    assert (found["bound"], found["sealed"], found["checkpoint"], found["waiting"]["pieces"]) == (1, 1, 1, 1)
    assert (found["shards"][0]["published"], found["last_verdict"]["verdict"]) == (1, "identical")
    (row,) = told("/shown/transactions")["transactions"]
    assert (row["txn"], row["read"], row["quarantined"], row["run"]) == (1, 40, 0, run_id)
    assert told("/shown/transactions/1")["gone"] == ""
    run = told(f"/shown/run?run_id={quote(run_id, safe='')}")
    assert (run["sentence"], run["state"]) == (
        "loaded transaction 1: 40 read = 40 applied + 0 quarantined",
        "success",
    )
    stack.clear("shown", run_id)
    run = told(f"/shown/run?run_id={quote(run_id, safe='')}")
    assert run["sentence"] == "proved 1: identical, 0 bytes written"

    way = f"/dags/shown/dagRuns/{quote(run_id, safe='')}/taskInstances/validate/links"
    links = stack.client.call("GET", way)["extra_links"]
    assert links["Tidemark"].endswith("/tidemark/transaction?dag_id=shown&txn=1")
    at = links["Data Docs"].partition("/tidemark/docs/")[2]
    assert asked(stack, f"/tidemark/docs/{at}", token)[0] == 200
    assert asked(stack, f"/tidemark/docs/{at}")[0] == 401
    made = stack.client.call("GET", "/assets", uri_pattern="x-tidemark://shown/")["assets"]
    producers = {one["name"]: [task["task_id"] for task in one["producing_tasks"]] for one in made}
    assert producers == {"shown.orders": ["checkpoint"], "shown.quarantine": ["checkpoint"]}
    events = stack.client.call("GET", "/assets/events", source_dag_id="shown")["asset_events"]
    assert [one["uri"] for one in events] == ["x-tidemark://shown/orders"], "one, and none for the proof"

    status, page = asked(stack, "/tidemark/pipelines", token)
    assert (status, "static/page.js" in page) == (200, True)
    for path in ("/tidemark/pipelines", "/tidemark/static/page.js", "/tidemark/api/pipelines/shown"):
        assert asked(stack, path)[0] == 401
    plugins = json.loads(asked(stack, "/api/v2/plugins", token)[1])["plugins"]
    views = [view for one in plugins if one["name"] == "tidemark" for view in one["external_views"]]
    assert [view["destination"] for view in views] == ["nav", "dag", "dag_run", "task_instance"]


def picture(browser: Browser, name: str) -> None:
    """Keep a picture where one is asked for: this is how those in docs/images are made."""
    folder = os.environ.get("TIDEMARK_TEST_PICTURES")
    if folder:
        browser.picture(Path(folder) / f"airflow-{name}.png")


@pytest.mark.browser
def test_a_viewer_finds_the_pages_in_airflow_with_a_browser(stack: Stack) -> None:
    """At both widths, in light and in dark, as a person goes from page to page, with nothing refused."""
    with running_browser() as browser:
        project = stack.projects["shown"]
        stack.client.unpause("shown")
        project.land([{"id": 1, "status": "new", "amount": 1.5, "op": "U"}])
        run_id = stack.go("shown")
        last = project.seals()[-1].txn
        url = stack.airflow.url
        browser.log_in(url, stack.viewer_token)
        browser.resize(1280, 800)
        browser.open(f"{url}/plugin/tidemark")
        row = f"[...{FRAMED}.querySelectorAll('tbody tr')].find((row) => row.cells[0].innerText === 'shown')"
        browser.wait_for(f"{row}.cells[1].innerText === '{last}'", what="the pipeline's row")
        assert browser.value(f"{row}.cells[3].innerText") == str(last)
        assert browser.value(f"{row}.cells[9].innerText") == "identical"
        assert browser.value(f"{FRAMED}.documentElement.scrollWidth <= 1280") is True
        browser.value(f"{row}.querySelector('a').focus(), {row}.querySelector('a').click()")
        browser.sees("Frontiers", "Transactions")

        browser.resize(1920, 1080)
        browser.value("localStorage.setItem('theme', 'dark')")
        browser.open(f"{url}/dags/shown/plugin/tidemark_pipeline")
        browser.sees("Frontiers", "orders", run_id)
        label = browser.value(f"{FRAMED}.querySelector('svg').getAttribute('aria-label')")
        assert f"bound {last}, sealed {last}, checkpoint {last}" in label
        browser.wait_for(f"{FRAMED}.documentElement.dataset.theme === 'dark'", what="the dark theme")
        first = f"{FRAMED}.querySelector('tbody a[href^=transaction]')"
        browser.wait_for(f"{first}.innerText === '{last}'", what="the newest transaction")
        picture(browser, "pipeline")
        browser.value(f"{first}.click()")
        browser.sees(f"Transaction {last}", "Digests", "shard:orders", f"{project.files:04}.json")
        picture(browser, "transaction")
        browser.value("localStorage.setItem('theme', 'light')")
        browser.open(f"{url}/dags/shown/runs/{quote(run_id, safe='')}/plugin/tidemark_run")
        browser.sees(f"loaded transaction {last}:")
        picture(browser, "run")
        task = f"{url}/dags/shown/runs/{quote(run_id, safe='')}/tasks/validate"
        browser.open(f"{task}/plugin/tidemark_task")
        browser.sees(f"loaded transaction {last}:", "validate", "Transactions")
        assert [one for one in browser.complaints if "/tidemark/" in one or "Content Security" in one] == []


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


@pytest.mark.browser
def test_a_person_with_the_right_decides_by_the_keyboard_alone_and_nobody_else_decides(stack: Stack) -> None:
    project, client, url = stack.projects["decided"], stack.client, stack.airflow.url
    client.unpause("decided")
    project.land([{"id": 1, "status": "new", "amount": -5.0, "op": "U"}])
    run_id = client.trigger("decided")
    stack.ends("decided", run_id, state="failed")
    viewer, editor = stack.viewer_token, stack.editor_token
    for verb, named in ACTIONS.items():
        body = {"reason": "not mine to say", **named}
        assert stack.act("decided", verb, "", **body)[0] == 401, verb
        assert stack.act("decided", verb, viewer, **body)[0] == 403, verb
        assert stack.act("decided", verb, editor, origin="https://elsewhere.example", **body)[0] == 403, verb
    assert project.seals() == []
    assert not [one for one in project.journal(0) if one.event is Event.REQUESTED]

    with running_browser() as browser:
        browser.resize(1280, 900)
        browser.log_in(url, editor)
        browser.open(f"{url}/plugin/tidemark")
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
        (noted,) = [one for one in project.journal(1) if one.event is Event.ACCEPTED]
        assert (noted.detail["user"], noted.detail["reason"]) == (USER, "a refund, as billing says")
        act_by_keyboard(browser, "Publish now", "the board meets")
        browser.sees("publish: run ")
        picture(browser, "decided")
    (asked,) = [one for one in project.journal(0) if one.event is Event.REQUESTED]
    assert (asked.detail["what"], asked.detail["user"]) == ("publish", USER)
    found = client.call("GET", "/dags/decided/dagRuns")["dag_runs"]
    (started,) = [one for one in found if one["dag_run_id"] != run_id]
    assert (started["note"], started["triggering_user_name"]) == ("the board meets", USER)
    stack.ends("decided", started["dag_run_id"])
    project.check()

    # What is bound and was never staged can only be skipped.
    project.land_some()
    reclock(open_pipeline(project.file, None, binds=True), Attempt(Owner("by hand"), WriterToken("h")))
    assert stack.act("decided", "skip", editor, txn=2, reason="sent twice")[0] == 200
    assert project.seals()[-1].decision is Decision.SKIPPED
