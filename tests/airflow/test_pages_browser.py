"""The pages in a real browser, over a real control plane, in a frame with the sandbox that Airflow's have:
what a person clicks is done, and what hostile people have written is shown as text."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from tests.airflow.test_pages_actions import Rig, candidate_of, rig  # noqa: F401
from tests.airflow.test_pages_api import HOSTILE
from tests.support.browser import FRAMED, Browser, running_browser
from tests.support.waiting import wait_until
from tidemark.app.consume import leases_of
from tidemark.app.tasks import open_pipeline
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.lease import HolderToken
from tidemark.core.ledger import Event
from tidemark.core.reading import lease_name
from tidemark.pipeline.context import note

pytestmark = [pytest.mark.airflow, pytest.mark.browser]

PICTURES = os.environ.get("TIDEMARK_TEST_PICTURES")
"""Where pictures go, if any are asked for; then with words that one would read."""
BROKEN = "expect_column_values_to_be_between(amount, min_value=0) does not hold: 1 of 1 rows"
DOER = f"{FRAMED}.querySelector('.action[data-open=yes] button.danger')"
"""The button of the action that is open."""
SANDBOX = "allow-scripts allow-same-origin allow-forms"


@contextmanager
def served(app: FastAPI, answers: threading.Event | None = None) -> Iterator[str]:
    """Airflow's page with a frame, and the pages below it, at an address of their own. The API answers once
    `answers` is set."""
    outer = FastAPI()

    @outer.middleware("http")
    async def held(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        while answers is not None and "/api/" in request.url.path and not answers.is_set():
            await asyncio.sleep(0.02)
        return await call_next(request)

    @outer.get("/shown")
    def shown(page: str) -> HTMLResponse:
        return HTMLResponse(
            f'<iframe sandbox="{SANDBOX}" src="tidemark/{page}" width="1260" height="900" style="border: 0">'
        )

    outer.mount("/tidemark", app)
    server = uvicorn.Server(uvicorn.Config(outer, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, what="the server", pause_seconds=0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def button(label: str) -> str:
    return f"[...{FRAMED}.querySelectorAll('button')].find((one) => one.innerText === {json.dumps(label)})"


def picture(browser: Browser, name: str) -> None:
    if PICTURES:
        browser.picture(Path(PICTURES) / f"airflow-{name}.png")


def test_the_pictures_show_readers_steps_and_the_newest_transactions(rig: Rig) -> None:  # noqa: F811
    count = 12 if PICTURES else 3
    for _ in range(count):
        rig.work()
    rig.file.write_text(rig.file.read_text() + "alarms: {behind: 0s}\n")
    (rig.folder / "landing" / "later.json").write_text('{"id": 99}\n')
    leases = leases_of(open_pipeline(rig.file, None))
    leases.take(lease_name("billing", ShardId("points")), HolderToken("worker-1"), start=Txn(2))
    with running_browser() as browser, served(rig.client.app) as url:  # type: ignore[arg-type]
        browser.resize(1280, 920)
        browser.log_in(url, "ann")
        browser.open(f"{url}/shown?page=pipelines")
        small = f"{FRAMED}.querySelectorAll('svg.spark')"
        bars = f"[...{small}].map((one) => one.querySelectorAll('rect').length)"
        browser.wait_for(f"JSON.stringify({bars}) === '[{count},{count}]'", what="two small pictures")
        browser.sees("behind: 1 file waits")
        fits = "(one) => one.scrollWidth <= one.clientWidth"
        picture(browser, "pipelines")
        assert browser.value(f"[...{FRAMED}.querySelectorAll('html, .scroll')].every({fits})") is True
        browser.open(f"{url}/shown?page=pipeline%3Fdag_id%3Dmine")
        browser.sees("points → billing", "Readers", "worker-1")
        picture(browser, "readers")
        assert browser.value(f"{FRAMED}.querySelectorAll('svg.mark').length") == count, "steps in each row"
        browser.value(f"{FRAMED}.querySelector('summary').click()")
        browser.sees("Every transaction from 1 on stays readable.")
        held = f"{FRAMED}.activeElement.getAttribute('href')"
        row = f"{FRAMED}.querySelector('tbody a[href^=transaction]')"
        browser.value(f"{row}.focus(), {row}.replaceWith({row}.cloneNode(true), 'drawn before')")
        browser.value(f"{row}.focus()")
        browser.value(f"{FRAMED}.dispatchEvent(new Event('visibilitychange'))")
        browser.wait_for(f"!{FRAMED}.body.innerText.includes('drawn before')", what="the refresh")
        browser.wait_for(f"{held} === 'transaction?dag_id=mine&txn={count}'", what="the focus, given back")
        browser.open(f"{url}/shown?page=transaction%3Fdag_id%3Dmine%26txn%3D2")
        browser.sees("Steps", "staged", "judged", "in the log of points", "Expectations")
        assert browser.value(f"{FRAMED}.querySelectorAll('svg.steps rect').length") == 3
        picture(browser, "steps")
        assert [one for one in browser.complaints if "favicon" not in one] == []


def test_a_red_transaction_is_accepted_with_a_reason_and_two_clicks(rig: Rig) -> None:  # noqa: F811
    rig.work()
    why, reason = (
        (f"{HOSTILE} is no amount", HOSTILE) if not PICTURES else (BROKEN, "a refund, as billing says")
    )
    rig.work(failed=(why,))
    with running_browser() as browser, served(rig.client.app) as url:  # type: ignore[arg-type]
        browser.resize(1280, 920)
        browser.log_in(url, "ann")
        browser.open(f"{url}/shown?page=pipeline%3Fdag_id%3Dmine")
        browser.sees("blocked: transaction 2", why, "Frontiers")
        assert browser.value(f"{FRAMED}.querySelectorAll('.action, img').length") == 0, "a viewer can't act"
        browser.log_in(url, "eve")
        browser.open(f"{url}/shown?page=pipeline%3Fdag_id%3Dmine")
        browser.open(f"{url}/shown?page=transaction%3Fdag_id%3Dmine%26txn%3D2")
        browser.sees(f"not sealed: {why}", "Ways out:", 'tidemark skip mine 2 --reason "..."')
        browser.open(f"{url}/shown?page=pipeline%3Fdag_id%3Dmine")
        accept = "Accept transaction 2"
        browser.wait_for(f"!!{button(accept)}", what="the action")
        browser.value(f"{button(accept)}.click()")
        assert browser.value(f"{DOER}.disabled") is True, "not without a reason"
        browser.value(f"{FRAMED}.activeElement.value = {json.dumps(reason)}")
        browser.value(f"{FRAMED}.activeElement.dispatchEvent(new Event('input'))")
        browser.value(f"{DOER}.click()")
        assert browser.value(f"{DOER}.innerText") == f"Sure? {accept}"
        assert [str(seal.decision) for seal in rig.seals] == ["committed"], "one click decides nothing"
        picture(browser, "action")
        browser.value(f"{DOER}.click()")
        browser.sees("transaction 2 is accepted; the checkpoint is 2")
        assert (str(rig.seals[-1].decision), rig.seals[-1].reason) == ("accepted", reason)
        browser.open(f"{url}/shown?page=transaction%3Fdag_id%3Dmine%26txn%3D2")
        browser.sees("user: eve", f"reason: {reason}", "Replay", "0 met; by", why)
        assert browser.value(f"{FRAMED}.querySelectorAll('img').length") == 0
        picture(browser, "decided")

        check_sampled_keys(browser, rig, url)
        check_abort(browser, rig, url)
        assert [one for one in browser.complaints if "favicon" not in one] == []


def check_sampled_keys(browser: Browser, rig: Rig, url: str) -> None:  # noqa: F811
    """The keys of a red replay, for who may edit the DAG."""
    works = open_pipeline(rig.file, None).pipeline
    told = {"verdict": "differs", "finding": "2 rows differ", "run": "r"}
    keys = [{"shard": "points", "key": {"id": HOSTILE}, "what": "value"}]
    for event, detail in ((Event.VERIFIED, told), (Event.SAMPLED, {"keys": json.dumps(keys)})):
        note(works, event, txn=Txn(2), token=WriterToken("r"), detail=detail)
    browser.open(f"{url}/shown?page=transaction%3Fdag_id%3Dmine%26txn%3D2")
    browser.sees("the last replay differs: 2 rows differ", "Some of the keys", f"id = {HOSTILE}", "Repair")
    assert browser.value(f"{FRAMED}.querySelectorAll('img').length") == 0
    picture(browser, "sample")
    browser.log_in(url, "ann")
    browser.open(f"{url}/shown?page=transaction%3Fdag_id%3Dmine%26txn%3D2")
    browser.sees("1 key is on record; only users who may edit the DAG see them")
    assert browser.value(f"{FRAMED}.body.innerText.includes('id = ')") is False
    browser.log_in(url, "eve")


def check_abort(browser: Browser, rig: Rig, url: str) -> None:  # noqa: F811
    """A candidate is shown, and ended by an action."""
    seen = candidate_of(rig)
    browser.open(f"{url}/shown?page=pipelines")
    browser.sees("Candidate", "generation 1, 2 behind")
    browser.open(f"{url}/shown?page=pipeline%3Fdag_id%3Dmine")
    browser.sees("generation 1, 2 behind: other types", "Promote generation 1", "Abort generation 1")
    picture(browser, "candidate")
    browser.value(f"{button('Abort generation 1')}.click()")
    browser.value(f"{FRAMED}.activeElement.value = 'a mistake'")
    browser.value(f"{FRAMED}.activeElement.dispatchEvent(new Event('input'))")
    browser.value(f"{DOER}.click(), {DOER}.click()")
    browser.sees("the candidate of generation 1 is aborted; its tables are removed")
    assert rig.journal(0)[-1][1]["candidate"] == seen.identity
    browser.wait_for(f"!{button('Promote generation 1')}", what="no promotion of what is no more")


def test_a_held_transaction_says_that_it_waits_and_is_released_where_it_is_read(rig: Rig) -> None:  # noqa: F811
    rig.work(held={ShardId("points"): HOSTILE})
    with running_browser() as browser, served(rig.client.app) as url:  # type: ignore[arg-type]
        browser.log_in(url, "eve")
        browser.open(f"{url}/shown?page=transaction%3Fdag_id%3Dmine%26txn%3D1")
        browser.sees(
            f"sealed, but held: shard points: {HOSTILE}", 'tidemark release mine points --reason "..."'
        )
        browser.value(f"{button('Release points')}.click()")
        browser.value(f"{FRAMED}.activeElement.value = 'looked at'")
        browser.value(f"{FRAMED}.activeElement.dispatchEvent(new Event('input'))")
        browser.value(f"{DOER}.click(), {DOER}.click()")
        browser.sees("shard points appended 1 transaction; it has all transactions up to 1")
        browser.wait_for(f"!{FRAMED}.body.innerText.includes('but held')", what="a page that is in order")
        event, detail = rig.journal(1)[-1]
        assert (event, detail["user"], detail["reason"]) == ("released", "eve", "looked at")


def test_a_page_says_that_it_loads_that_there_is_nothing_and_what_is_wrong(rig: Rig) -> None:  # noqa: F811
    answers = threading.Event()
    with running_browser() as browser, served(rig.client.app, answers) as url:  # type: ignore[arg-type]
        browser.resize(1280, 920)
        browser.log_in(url, "ann")

        def opens(page: str) -> None:
            browser.open(f"{url}/shown?page={page}")

        opens("pipeline%3Fdag_id%3Dmine")
        main = f"{FRAMED}.querySelector('main')"
        browser.wait_for(f"{main}.ariaBusy === 'true' && {main}.innerText === 'Loading …'", what="loading")
        answers.set()
        tables = rig.folder / "warehouse" / "mine"
        browser.sees("Frontiers", f"Nothing is bound yet in {tables}, as", "No consumer is known here.")
        cells = browser.value(f"[...{FRAMED}.querySelectorAll('td')].map((one) => one.innerText)")
        assert cells[:4] == ["points", "0", "", "0"], "a log that is not there has no version"
        opens("pipelines")
        browser.sees("mine", "none")
        browser.value(f"{FRAMED}.querySelector('input').value = 'x'")
        browser.value(f"{FRAMED}.querySelector('input').dispatchEvent(new Event('input'))")
        browser.sees("No pipeline has this in its name.")
        opens("pipeline%3Fdag_id%3Dplain")
        browser.sees("DAG 'plain' runs no pipeline of Tidemark's")
        assert browser.value(f"{FRAMED}.querySelectorAll('[role=alert]').length") == 0
        for page, said in (
            ("pipeline", "This address names no pipeline."),
            ("transaction%3Fdag_id%3Dmine", "This address names no transaction."),
            ("run%3Fdag_id%3Dmine", "This address names no run."),
            ("transaction%3Fdag_id%3Dmine%26txn%3Dx", "txn: Input should be a valid integer"),
            ("transaction%3Fdag_id%3Dmine%26txn%3D7", "transaction 7 is not bound: nothing is bound yet"),
        ):
            opens(page)
            browser.sees(said)

        text = rig.file.read_text()
        rig.file.write_text("name: mine\nsource: {}\n")
        opens("pipelines")
        browser.sees("mine", "mine.yaml")
        opens("pipeline%3Fdag_id%3Dmine")
        browser.wait_for(
            f"{FRAMED}.querySelector('[role=alert]')?.innerText.includes('mine.yaml')", what="why"
        )
        refresh = f"{FRAMED}.dispatchEvent(new Event('visibilitychange'))"
        rig.file.write_text(text)
        browser.value(refresh)
        browser.sees("Frontiers")
        rig.file.write_text("name: [")
        browser.value(refresh)
        browser.sees("not refreshed: ", "Frontiers")
        rig.file.unlink()
        opens("pipelines")
        browser.sees("this API server can't read the pipeline file", "under the same paths as the workers")
        browser.log_in(url, "bob")
        opens("pipelines")
        browser.sees("There is no pipeline whose DAG you may view.")
