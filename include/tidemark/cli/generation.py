"""`tidemark generation`: replace a pipeline's configuration without downtime."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.app.workspace import new_attempt, open_deployment
from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    ReasonOption,
    print_json,
    print_table,
    progress_line,
    say,
    shown,
)
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import GRACE_SECONDS, Candidate
from tidemark.core.text import numbers, span
from tidemark.pipeline.generation import comparisons

if TYPE_CHECKING:
    from tidemark.app.generation import Generations, Pair
    from tidemark.app.generation_plan import Plan
    from tidemark.core.replay import Difference


SinceOption = Annotated[
    int, typer.Option("--from", min=1, help="The first transaction to read with the new settings.")
]
UntilOption = Annotated[
    int | None, typer.Option("--to", min=1, help="The last one; the others keep their recorded settings.")
]
FromNowOption = Annotated[
    bool,
    typer.Option(
        "--from-now",
        help="Read nothing again: the tables stay as they are, and later input gets the new settings.",
    ),
]
ReplaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--replace",
        help="Agree that this shard gets another key, type or order: it is begun anew at the promotion, and"
        " its consumers stop there until they agree too. Repeat it for several shards.",
        metavar="SHARD",
    ),
]
FollowOption = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Catch up with the pipeline right away.")
]

generation: Final = typer.Typer(
    help="Replace a pipeline's configuration without downtime: plan, start, promote, roll back.",
    no_args_is_help=True,
)

commands: Final = typer.Typer()
commands.add_typer(generation, name="generation")


@generation.command(epilog=EXIT_CODES)
def plan(
    pipeline: PipelineArgument,
    from_now: FromNowOption = False,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the pipeline file would change as a new generation. Changes nothing."""
    from tidemark.app.generation_plan import plan as planned

    found = planned(open_deployment(pipeline, environment), from_now=from_now)
    if as_json:
        print_json(found)
    else:
        _print_plan(found)


@generation.command(epilog=EXIT_CODES)
def start(  # noqa: PLR0913, PLR0917 - each is an option
    pipeline: PipelineArgument,
    reason: ReasonOption,
    since: SinceOption = 1,
    until: UntilOption = None,
    from_now: FromNowOption = False,
    replaces: ReplaceOption = None,
    follow: FollowOption = True,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a candidate with the settings of the pipeline file. The pipeline goes on as it is.

    The candidate reads the recorded transactions again, into tables of its own. It can be interrupted:
    `tidemark generation follow` goes on.
    """
    generations = _opened(pipeline, environment)
    begun = generations.start(
        reason=reason, since=since, until=until or 0, from_now=from_now, replaces=replaces or ()
    )
    _begun(generations, begun, follow=follow and not from_now, as_json=as_json)


@commands.command(name="reprocess", epilog=EXIT_CODES)
def reprocess(
    pipeline: PipelineArgument,
    reason: ReasonOption,
    since: SinceOption = 1,
    until: UntilOption = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="Promote the result without a look at it.")
    ] = False,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Process a range of transactions again with today's pipeline file, as a new generation.

    The file needs a higher `generation`. `tidemark generation status --compare` shows the rows that would
    change; `tidemark generation promote` changes them.
    """
    generations = _opened(pipeline, environment)
    begun = generations.start(reason=reason, since=since, until=until or 0)
    _begun(generations, begun, follow=True, as_json=as_json and not promote)
    if promote:
        _promote(generations, as_json=as_json)


@generation.command(epilog=EXIT_CODES)
def follow(
    pipeline: PipelineArgument,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the candidate catch up with the pipeline."""
    generations = _opened(pipeline, environment)
    _follow(generations.pair(generations.required()), quiet=as_json)
    if as_json:
        print_json(_status(generations))


@generation.command(epilog=EXIT_CODES)
def status(
    pipeline: PipelineArgument,
    compare: Annotated[
        bool, typer.Option("--compare", help="Count the rows that would change; needs Spark.")
    ] = False,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the generation in charge, and how far the candidate is."""
    generations = _opened(pipeline, environment)
    found = _status(generations, compare=compare)
    if as_json:
        print_json(found)
        return
    say(f"generation {found['in_charge']} is in charge")
    if found["file"] != found["in_charge"]:
        say(f"the pipeline file has generation {found['file']}, which is not")
    if found["candidate"] is None:
        say("there is no candidate")
        return
    one = found["candidate"]
    say(f"candidate: generation {one['generation']}, {one['reason']}")
    if one["replaces"]:
        say(f"it replaces {', '.join(one['replaces'])}")
    if one["from_now"]:
        say("it reads nothing again; promote it when you want")
        return
    say(f"at transaction {one['txn']} of {one['sealed']}, {one['behind']:,} behind")
    say(f"{one['differs']:,} transactions give other rows than now")
    if one["other_input"]:
        say(f"{one['other_input']:,} were read with other records: it can't be promoted", style="red")
    if compare:
        print_table(
            "rows that would change",
            ("shard", "new", "changed", "gone", "for example"),
            [
                (name, row["new"], row["changed"], row["gone"], "; ".join(row["sample"]))
                for name, row in one["compared"].items()
            ],
        )


@generation.command(epilog=EXIT_CODES)
def promote(
    pipeline: PipelineArgument,
    wait_seconds: Annotated[
        int,
        typer.Option(min=1, help="How long runs may wait for the promotion before they skip it."),
    ] = int(GRACE_SECONDS),
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the candidate in charge: all shards change at one transaction, or none does."""
    _promote(_opened(pipeline, environment), wait_seconds=wait_seconds, as_json=as_json)


@generation.command(epilog=EXIT_CODES)
def abort(
    pipeline: PipelineArgument,
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the candidate and remove all its tables. The pipeline's own are not touched."""
    ended = _opened(pipeline, environment).abort(reason=reason)
    if as_json:
        print_json(ended)
    else:
        say(f"generation {ended.generation} is aborted: {ended.reason}")


@generation.command(epilog=EXIT_CODES)
def rollback(
    pipeline: PipelineArgument,
    reason: ReasonOption,
    replaces: ReplaceOption = None,
    follow: FollowOption = True,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a candidate with the settings before the last promotion, as a new generation.

    It reads everything again, transactions after the promotion included. Promote it to go back.
    """
    generations = _opened(pipeline, environment)
    begun = generations.rollback(reason=reason, replaces=replaces or ())
    _begun(generations, begun, follow=follow, as_json=as_json)


def _opened(pipeline: str, environment: str | None) -> Generations:
    from tidemark.app.generation import Generations

    return Generations(open_deployment(pipeline, environment))


def _begun(generations: Generations, begun: Candidate, *, follow: bool, as_json: bool) -> None:
    if not as_json:
        say(f"generation {begun.generation} is a candidate: {begun.reason}")
    if follow:
        _follow(generations.pair(begun), quiet=as_json)
    if as_json:
        print_json(_status(generations))
    elif follow:
        say("look at it with `tidemark generation status --compare`, then promote or abort it")


def _follow(pair: Pair, *, quiet: bool) -> None:
    with progress_line(quiet) as progress:
        done = list(pair.follow(new_attempt(f"generation-{pair.candidate.folder}"), progress=progress))
    if quiet:
        return
    found = pair.position()
    differ = [one.txn for one in done if one.differs]
    other = [one.txn for one in done if not one.source_equal]
    text = f"followed {len(done):,} transactions, up to {found.txn} of {found.sealed}"
    say(f"{text}; {len(differ):,} give other rows" if done else f"{text}: nothing new")
    if other:
        say(f"read other records than the pipeline did: {numbers(other)}", style="red")


def _example(one: Difference) -> str:
    """A row that would change, by its key, and for each column that would the value now and then."""
    key = ", ".join(f"{name} {shown(text)}" for name, text in one.key.items())
    changes = [f"{name} {shown(now)} -> {shown(then)}" for name, (then, now) in one.values.items()]
    return f"{key}: {', '.join(changes) or one.what}"


def _status(generations: Generations, *, compare: bool = False) -> dict[str, Any]:

    deployment = generations.deployment
    candidate = generations.candidate
    found: dict[str, Any] = {
        "pipeline": deployment.config.name,
        "in_charge": deployment.config.generation,
        "file": deployment.file.generation,
        "candidate": None,
    }
    if candidate is None:
        return found
    pair = generations.pair(candidate)
    at = pair.position()
    seen = comparisons(pair.both)
    found["candidate"] = {
        "generation": candidate.generation,
        "reason": candidate.reason,
        "from_now": candidate.from_now,
        "replaces": list(candidate.replaces),
        "since": candidate.since,
        "until": candidate.until,
        "txn": at.txn,
        "sealed": at.sealed,
        "behind": at.behind,
        "differs": sum(bool(one.differs) for one in seen),
        "other_input": sum(not one.source_equal for one in seen),
    }
    if compare and not candidate.from_now:
        found["candidate"]["compared"] = {
            str(shard): {
                "new": one.inserted,
                "changed": one.changed,
                "gone": one.deleted,
                "sample": [_example(each) for each in one.sample],
            }
            for shard, one in pair.compare().items()
        }
    return found


def _promote(generations: Generations, *, wait_seconds: float = GRACE_SECONDS, as_json: bool) -> None:
    pair = generations.pair(generations.required())
    with progress_line(as_json) as progress:
        done = pair.promote(
            new_attempt(), grace_seconds=wait_seconds, user=getpass.getuser(), progress=progress
        )
    if as_json:
        print_json(done)
        return
    rows = {shard: (one.upserts, one.deletes) for shard, one in done.corrections.items() if one.parts}
    text = ", ".join(f"{shard} {ups:,} new or changed, {gone:,} gone" for shard, (ups, gone) in rows.items())
    say(f"generation {done.generation} is in charge since transaction {done.txn}: {text or 'no row changed'}")


def _print_consumers(found: Plan) -> None:
    corrected = [name for name in found.consumers if name not in found.stops]
    if corrected:
        say(f"consumers that will get the corrections: {', '.join(corrected)}")
    if found.replaced:
        options = " ".join(f"--replace {shard}" for shard in found.replaced)
        say(f"replaced shards are begun anew: start it with {options}", style="yellow")
    if found.stops:
        say(f"consumers that stop there until they agree: {', '.join(found.stops)}", style="yellow")


def _print_plan(found: Plan) -> None:
    say(f"{found.pipeline}: generation {found.generation}, now {found.in_charge}")
    if found.settings:
        print_table(
            "settings",
            ("setting", "now", "then"),
            [(one.name, one.before or "-", one.after or "-") for one in found.settings],
        )
    else:
        say("no setting differs")
    print_table("shards", ("shard", "what becomes of it"), list(found.shards.items()))
    say(found.effort)
    for kind, count in found.decided.items():
        say(f"{count:,} of them {kind}: they stay so")
    if found.until_seconds is not None:
        import time

        from tidemark.app.generation_plan import TOO_SHORT

        left = found.until_seconds - time.time()
        say(f"the oldest input can be read for {span(max(0.0, left))} more")
        if found.expires_first:
            say(TOO_SHORT, style="yellow")
    if found.caveat:
        say(f"input may be gone sooner: {found.caveat}", style="yellow")
    for shard, txn in found.paused.items():
        say(f"shard {shard} waits at transaction {txn}: release it before the promotion")
    _print_consumers(found)
    if found.started is not None:
        say(
            f"generation {found.started} has been started already: promote it, or abort it before another one"
        )
    for why in found.refused:
        say(f"can't be started: {why}", style="red")
    if found.refused:
        raise InvalidUsage(
            f"generation {found.generation} can't be started", hint="nothing has changed; see above"
        )
