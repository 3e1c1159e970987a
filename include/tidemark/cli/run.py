"""The commands that process data: `run`, `replay`, `publish`, `verify`, `rebuild`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.app.workspace import chosen_shards, new_attempt, open_deployment
from tidemark.cli.shared import (
    EXIT_BROKEN,
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    line_per_transaction,
    print_json,
    print_table,
    progress_line,
    rows_text,
    say,
    shown,
)
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import ShardId, Txn
from tidemark.core.ledger import Event
from tidemark.core.publish import Published, UpToDate
from tidemark.core.replay import Difference, Finding
from tidemark.core.seal import Lost, Sealed, SealOutcome
from tidemark.core.text import amount
from tidemark.pipeline.publish import last_published, verify_state
from tidemark.pipeline.publish import rebuild as rebuild_state
from tidemark.pipeline.reclock import only_proves
from tidemark.pipeline.replay import PARTS_DIFFER
from tidemark.pipeline.run import RunReport
from tidemark.pipeline.schema_change import left_out
from tidemark.pipeline.validate import judged_in
from tidemark.ports.source import ReportsSkipped

if TYPE_CHECKING:
    from tidemark.app.deployment import Deployment


_FILES_SHOWN_MAX: Final = 20

ShardOption = Annotated[str | None, typer.Option(help="One shard; all by default.")]


class Mode(StrEnum):
    """The modes of a replay."""

    VERIFY = "verify"
    REPAIR = "repair"


commands: Final = typer.Typer()


@commands.command(name="run", epilog=EXIT_CODES)
def run(
    pipeline: PipelineArgument,
    environment: EnvironmentOption = None,
    max_transactions: Annotated[
        int | None, typer.Option("--max-transactions", "-n", min=1, help="The most transactions to bind.")
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(help="Continue this run, or name a new one. A run owns the transactions that it bound."),
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Replay the run's transactions, as clearing it in Airflow does.")
    ] = False,
    no_publish: Annotated[bool, typer.Option("--no-publish", help="Do not publish.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bind new input, bring every open transaction to its logs, and publish what is due.

    Open transactions come first, regardless of which run began them. Any number of runs may work at once.
    During a long backlog, states that are due are published once a minute. If standard error is no terminal,
    it gets a line per finished transaction.
    """
    from tidemark.app import lineage, metrics
    from tidemark.app.publish import run_and_publish
    from tidemark.app.reports import sentence_of

    attempt = new_attempt(run_id, cleared=prove)
    proves = prove and only_proves(open_deployment(pipeline, environment).pipeline, attempt)
    deployment = open_deployment(pipeline, environment, binds=not proves)
    with (
        progress_line(as_json) as progress,
        lineage.emitted(deployment, attempt.owner.run_id) as emit,
    ):
        with _naming_proposal(deployment, quiet=as_json):
            worked = run_and_publish(
                deployment,
                attempt,
                transactions_max=max_transactions,
                publishes=not no_publish,
                progress=progress,
                decided=line_per_transaction(as_json),
            )
        emit(worked.report)
    report, published = worked.report, worked.published
    metrics.send(metrics.opentelemetry_sink(), lambda: metrics.of_report(deployment, report))
    warned = warnings_of(deployment, report.decided)
    sentence = sentence_of(deployment.pipeline, attempt)
    if as_json:
        result = {"run_id": attempt.owner.run_id, "sentence": sentence, "report": report}
        result |= {"published": published, "warned": warned}
        print_json(
            {**result, "not_taken": passed_over(deployment), "left_out": left_out(deployment.pipeline)}
        )
    else:
        _show_run(deployment, report, warned, published)
        say(sentence, style="bold")
        say(f"checkpoint {report.checkpoint}, run {attempt.owner.run_id}", style="bold")
    exit_unless_passed(report.findings)


@contextmanager
def _naming_proposal(deployment: Deployment, *, quiet: bool) -> Iterator[None]:
    """Where the work fails: a remedy may be about the pipeline file, and another one's settings are in
    charge."""
    try:
        yield
    except TidemarkError:
        if deployment.proposal and not quiet:
            say(deployment.proposal, style="yellow")
        raise


@commands.command(name="replay", epilog=EXIT_CODES)
def replay(
    pipeline: PipelineArgument,
    txn_from: Annotated[int, typer.Option("--from", min=1, help="The first transaction.")] = 1,
    txn_to: Annotated[
        int | None, typer.Option("--to", min=1, help="The last transaction; all by default.")
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="verify writes nothing; repair restores lost parts from identical input.")
    ] = Mode.VERIFY,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read recorded input again and prove what was written.

    Answers per transaction: identical, differs, input gone, not comparable, or lost. The verdicts go to the
    journal; no row is written. Where a shard differs, up to ten of its keys are shown with what differs.
    """
    from tidemark.app.reports import for_environment
    from tidemark.app.tasks import differing_rows, replay_range

    deployment = open_deployment(pipeline, environment)
    attempt = new_attempt()
    with progress_line(as_json) as progress:
        findings, restored = replay_range(
            deployment, attempt, txn_from=txn_from, txn_to=txn_to, mode=mode.value, progress=progress
        )
        rows = differing_rows(deployment, attempt, findings, progress=progress)
    if as_json:
        print_json({"findings": findings, "restored": restored, "differing_rows": rows})
    else:
        show_findings(findings)
        show_differences(rows)
        if restored:
            print_table("", ("txn", "shard", "restored part"), restored)
        passed = sum(finding.passed for finding in findings)
        say(f"{passed} of {len(findings)} transactions are identical", style="bold")
        if damaged := [one.txn for one in findings if one.why == PARTS_DIFFER]:
            how = f"--from {damaged[0]} --to {damaged[-1]} --mode repair{for_environment(environment)}"
            say(f"to restore the parts: tidemark replay {pipeline} {how}", style="yellow")
    exit_unless_passed(findings)


@commands.command(name="publish", epilog=EXIT_CODES)
def publish(
    pipeline: PipelineArgument,
    shard: ShardOption = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish the states now, regardless of their publish policies."""
    from tidemark.app.publish import publish_now

    deployment = open_deployment(pipeline, environment)
    done = publish_now(deployment, new_attempt(), chosen_shards(deployment, shard))
    if as_json:
        print_json(done)
    for name, outcome in {} if as_json else done.items():
        say(f"state of {name}: {_published(outcome)}")


@commands.command(name="verify", epilog=EXIT_CODES)
def verify(
    pipeline: PipelineArgument,
    shard: ShardOption = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read each state completely, and prove that it has what was published: every row, and each key once."""

    deployment = open_deployment(pipeline, environment)
    proven = []
    for name in chosen_shards(deployment, shard):
        last = verify_state(deployment.control, deployment.state(), name)
        proven.append({"shard": name, "published": last})
        if not as_json:
            say(f"state of {name}: {_proven(last)}")
    if as_json:
        print_json(proven)


@commands.command(name="rebuild", epilog=EXIT_CODES)
def rebuild(
    pipeline: PipelineArgument,
    shard: Annotated[str | None, typer.Option(help="The shard; optional if the pipeline has one.")] = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild a state from its log, in one commit, and compare the checksums."""

    deployment = open_deployment(pipeline, environment)
    (name,) = chosen_shards(deployment, shard or deployment.config.only_shard.name)
    before = last_published(deployment.control, name)
    deployment.control.log(name).head()  # Rejects an unfit pipeline file before Spark starts.
    token, generation = new_attempt().token, deployment.config.generation
    after = rebuild_state(deployment.control, deployment.state(), name, token=token, generation=generation)
    same = before is not None and before.txn == after.txn and before.commit.digest == after.commit.digest
    if as_json:
        print_json({"before": before, "after": after, "same_rows": same})
        return
    rows = f"{amount(after.commit.digest.count, 'row')} at transaction {after.txn}"
    compared = "the same rows as recorded before" if same else "recorded again"
    say(f"state of {name}: rebuilt with {rows}, {compared}")


def _show_run(
    deployment: Deployment,
    report: RunReport,
    warned: Mapping[Txn, tuple[str, ...]],
    published: Mapping[ShardId, object],
) -> None:

    show_decided(report.decided)
    show_passed_over(deployment)
    for shard, last in left_out(deployment.pipeline).items():
        say(f"shard {shard} is not in the pipeline file and stays at transaction {last}")
    if deployment.proposal:
        say(deployment.proposal, style="yellow")
    for txn, warnings in warned.items():
        say(f"transaction {txn} warns: {'; '.join(warnings)}", style="yellow")
    show_findings(report.findings)
    for shard, what in published.items():
        say(f"state of {shard}: {_published(what)}")


def _published(outcome: object) -> str:

    match outcome:
        case Published():
            return f"published up to transaction {outcome.txn}, version {outcome.version}"
        case UpToDate(txn):
            return f"up to date at transaction {txn}"
        case _:
            return "not due"


def show_decided(decided: tuple[SealOutcome, ...]) -> None:
    """Print one line per transaction."""

    rows = []
    for outcome in decided:
        if isinstance(outcome, Sealed | Lost):
            seal = outcome.seal if isinstance(outcome, Sealed) else outcome.winner
            by = "this run" if isinstance(outcome, Sealed) else seal.token
            rows.append((seal.txn, seal.decision, seal.source.count, rows_text(seal.shards) or "-", by))
    if rows:
        print_table("", ("txn", "decision", "read", "rows per shard", "decided by"), rows)


def show_findings(findings: tuple[Finding, ...]) -> None:
    rows = [(f.txn, f.verdict, "; ".join(filter(None, (f.why, *map(str, f.mismatches))))) for f in findings]
    if rows:
        print_table("", ("txn", "verdict", ""), rows)


def show_differences(found: tuple[Difference, ...]) -> None:
    """Print one line per column that differs, or per key that is only in the input or only in the table."""
    rows = []
    for one in found:
        key = ", ".join(f"{name}={shown(text)}" for name, text in one.key.items())
        values = [(name, *map(shown, sides)) for name, sides in one.values.items()]
        rows += [(one.txn, one.shard, key, one.what, *columns) for columns in values or [("", "", "")]]
    if rows:
        print_table("", ("txn", "shard", "key", "what", "column", "in the input", "in the table"), rows)


def exit_unless_passed(findings: tuple[Finding, ...]) -> None:
    if any(not finding.passed for finding in findings):
        raise typer.Exit(code=EXIT_BROKEN)


def _proven(last: Published | None) -> str:
    if last is None:
        return "nothing is published yet"
    return f"{amount(last.commit.digest.count, 'row')} as published at transaction {last.txn}, each key once"


def passed_over(deployment: Deployment) -> dict[str, str]:
    """The input that the source has skipped, by name, each with the reason."""

    source = deployment.pipeline.source
    return {one.name: one.reason for one in source.skipped} if isinstance(source, ReportsSkipped) else {}


def show_passed_over(deployment: Deployment) -> None:
    found = list(passed_over(deployment).items())
    for name, reason in found[:_FILES_SHOWN_MAX]:
        say(f"not taken: {name}, {reason}", style="yellow")
    if len(found) > _FILES_SHOWN_MAX:
        say(f"and {amount(len(found) - _FILES_SHOWN_MAX, 'more file')}; --json has them all", style="yellow")


def warnings_of(deployment: Deployment, decided: tuple[SealOutcome, ...]) -> dict[Txn, tuple[str, ...]]:
    """The warnings of expectations with `action: warn`, for each transaction that this run sealed."""

    if not any(shard.expectations for shard in deployment.config.shards):
        return {}
    journal = deployment.control.journal
    journal.head()
    found = {
        entry.txn: judged_in(entry).gated.opinion.warned
        for outcome in decided
        if isinstance(outcome, Sealed)
        for entry in journal.find(str(outcome.seal.txn))
        if entry.event is Event.JUDGED and entry.token == outcome.seal.token
    }
    return {txn: reasons for txn, reasons in found.items() if reasons}
