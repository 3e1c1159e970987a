"""Tidemark's pages in a real Airflow: what a viewer sees of a run, and that nobody else sees anything."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.airflow import Stack
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

    status, page = asked(stack, "/tidemark/pipelines", token)
    assert (status, "static/page.js" in page) == (200, True)
    for path in ("/tidemark/pipelines", "/tidemark/static/page.js", "/tidemark/api/pipelines/shown"):
        assert asked(stack, path)[0] == 401
    plugins = json.loads(asked(stack, "/api/v2/plugins", token)[1])["plugins"]
    views = [view for one in plugins if one["name"] == "tidemark" for view in one["external_views"]]
    assert [view["destination"] for view in views] == ["nav", "dag", "dag_run"]
