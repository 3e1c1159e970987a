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

from tests.support.airflow import Stack
from tests.support.browser import FRAMED, Browser, running_browser
from tests.support.waiting import SECONDS_MAX

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
