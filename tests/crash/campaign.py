"""The campaign: where processes are killed, and what must be true afterwards."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.crash.feed import write_file
from tests.crash.recompute import check_everything, orphans
from tests.crash.worker import ALL, DONE, DUE, RETRY, TRACES, Job, report_of
from tests.support.copies import at_home
from tests.support.jvm import Jvm
from tests.support.steps import AFTER, BEFORE, Fuse
from tests.support.workers import KILLED, SECONDS_MAX, Workers

RETRIES_MAX = 8


@dataclass
class Tally:
    """What a campaign has done."""

    kills: int = 0
    jvm_kills: int = 0
    retries: int = 0
    checks: int = 0
    errors: list[str] = field(default_factory=list)


class Bench:
    """Workers and a warm JVM, which is started when it is first needed."""

    def __init__(self, scratch: Path) -> None:
        self.jvm = Jvm(scratch / "jvm")
        self.workers = Workers("tests.crash.worker")
        self.tally = Tally()
        self._names = (f"w{number:05}" for number in count(1))

    def job(self, root: Path, run_id: str, *, fuse: Fuse | None = None, **options: bool | int | str) -> Job:
        gateway = self.jvm.gateway()
        return Job(str(root), next(self._names), run_id, gateway, fuse, **options)  # type: ignore[arg-type]

    def start(self, root: Path, run_id: str, *, fuse: Fuse | None = None, **options: bool | int | str) -> Job:
        job = self.job(root, run_id, fuse=fuse, **options)
        self.workers.start(**job.as_dict())
        return job

    def status(self, job: Job) -> int:
        """How a job has ended. A broken one fails the campaign with its own traceback."""
        status = self.workers.wait(job.name)
        if status is None:
            self.workers.kill(job.name)
            raise AssertionError(f"worker {job} took over {SECONDS_MAX} s")
        if status not in (DONE, RETRY, KILLED):
            raise AssertionError(f"worker {job} is broken ({status}): {report_of(job).error}")
        return status

    def finish(self, root: Path, run_id: str, **options: bool | int | str) -> Job:
        """Run without a fuse, as often as a retry is asked for, until it is done."""
        for _ in range(RETRIES_MAX):
            job = self.start(root, run_id, **options)
            if self.status(job) == DONE:
                return job
            self.tally.retries += 1
            self.tally.errors.append(report_of(job).error)
        raise AssertionError(f"not done after {RETRIES_MAX} tries: {self.tally.errors[-RETRIES_MAX:]}")

    def finish_swept(self, root: Path, run_id: str, *, publish: str = ALL) -> None:
        """The same with a sweep, also where the JVM still does what a killed worker has asked for: parts that
        land after the sweep are the next one's."""
        late = self.jvm.is_asked_by_dead()
        self.finish(root, run_id, publish=publish, sweep=True)
        if late:
            self.jvm.wait_for_dead()
            self.finish(root, run_id, publish=publish, sweep=True)

    def check(self, root: Path, *, published: bool = True) -> None:
        """The tables against the files; and, after a sweep, no part that no seal names."""
        check_everything(root, published=published)
        assert orphans(root) == []
        self.tally.checks += 1

    def prove(self, root: Path) -> list[str]:
        """The verdicts of a replay of everything."""
        return report_of(self.finish(root, "prove", prove=True)).verdicts

    def trace(self, job: Job) -> list[str]:
        """The steps that a job's process has begun."""
        return (Path(job.root) / TRACES / job.name).read_text(encoding="utf-8").split("\n")[:-1]

    def close(self) -> None:
        self.jvm.kill()
        self.workers.close()


@contextmanager
def bench_at(scratch: Path) -> Iterator[Bench]:
    bench = Bench(scratch)
    try:
        yield bench
    finally:
        bench.close()


def feed(root: Path, *, seed: int, first: int, files: int) -> int:
    """Let files land; returns the next number."""
    for number in range(first, first + files):
        write_file(root, number, seed=seed)
    return first + files


def counted_steps(bench: Bench, root: Path, run_id: str) -> list[str]:
    """The durable steps of an uninterrupted run, in order: so a new step is found without being listed.

    What is done twice under one name (an acknowledgement, at the end once more) is one step."""
    steps = bench.trace(bench.finish(root, run_id, sweep=True))
    bench.check(root)
    return list(dict.fromkeys(steps))


def kill_at(bench: Bench, root: Path, run_id: str, fuse: Fuse) -> None:
    """A worker that must die at its fuse."""
    job = bench.start(root, run_id, fuse=fuse, sweep=True)
    status = bench.status(job)
    assert status == KILLED, f"{fuse} was not met: {report_of(job)}, steps {bench.trace(job)}"
    bench.tally.kills += 1


def chain(
    bench: Bench, folder: Path, *, seed: int, cycles: Sequence[int], after_each: bool = True
) -> Iterator[Path]:
    """Runs that are tried again and again, killed before and after every step in turn (scenario P3).

    What is durable after a step is durable before the next one too, so without `after_each` a run is killed
    before every step and after the last: half the kills, which differ only where steps overlap.

    Each cycle lets so many files land. What a kill leaves behind is copied and yielded, so that it can be
    finished by itself; the chain goes on from where it was killed."""
    calm, killed = folder / "calm", folder / "killed"
    landed = 0
    for cycle, files in enumerate(cycles):
        for root in (calm, killed):
            feed(root, seed=seed, first=landed, files=files)
        landed += files
        steps = counted_steps(bench, calm, f"run-{cycle}")
        for step in steps:
            for when in (BEFORE, AFTER) if after_each or step == steps[-1] else (BEFORE,):
                kill_at(bench, killed, f"run-{cycle}", Fuse(when, name=step))
                copy = folder / f"{cycle}-{when}-{step.replace(' ', '_').replace('/', '.')}"
                copy_left(killed, copy)
                at_home(copy)
                yield copy
        bench.finish_swept(killed, f"run-{cycle}")
        bench.check(killed)


def copy_left(root: Path, copy: Path) -> None:
    """What a kill has left behind. Of the parts that nobody has sealed some may be missing: the JVM may be
    at them still, and renames and removes them meanwhile."""
    for folder, _, names in os.walk(root):
        place = copy / Path(folder).relative_to(root)
        place.mkdir(parents=True)
        for name in names:
            with suppress(FileNotFoundError):
                shutil.copy2(Path(folder) / name, place / name)


def finish_copy(bench: Bench, copy: Path, *, check: bool) -> None:
    """Finish what a kill left behind by a run of its own, and compare it; or only clear it away."""
    if check:
        bench.finish(copy, "another", sweep=True)
        bench.check(copy)
    shutil.rmtree(copy)


def random_cycle(bench: Bench, root: Path, *, rng: random.Random, cycle: int, take_jvm: bool) -> None:
    """Two workers at once on one pipeline, one or both killed at a random moment, then a resume.

    Some die at a random step of their own, which gives every step the same chance however short it is;
    some at a random time; with `take_jvm`, all of them and the JVM die together."""
    jobs = []
    for worker in range(2):
        at_step = not take_jvm and rng.random() < 0.5
        fuse = Fuse(rng.choice([BEFORE, AFTER]), number=rng.randrange(1, 40)) if at_step else None
        jobs.append(bench.start(root, f"cycle-{cycle}-{worker}", fuse=fuse, publish=DUE))
    delay = rng.uniform(0.05, 3.0)
    bench.workers.wait(jobs[0].name, seconds=delay)
    if take_jvm:
        bench.jvm.kill()
        bench.tally.jvm_kills += 1
    victims = jobs if take_jvm or rng.random() < 0.3 else [rng.choice(jobs)]
    for job in victims:
        bench.workers.kill(job.name)
    for job in jobs:
        # Without its JVM a worker may have failed in any way before the signal came.
        status = bench.workers.wait(job.name) if take_jvm else bench.status(job)
        bench.tally.kills += status == KILLED
        bench.tally.retries += status == RETRY


def flow(bench: Bench, root: Path, *, seed: int, cycles: int, jvm_kills: Sequence[int] = ()) -> int:
    """Cycles of flow, kill, resume with 2 workers at once (scenario P1); returns how many files landed."""
    rng = random.Random(seed)
    landed = 0
    for cycle in range(cycles):
        landed = feed(root, seed=seed, first=landed, files=rng.randrange(1, 3))
        random_cycle(bench, root, rng=rng, cycle=cycle, take_jvm=cycle in jvm_kills)
        # Now and then the next cycle comes before anybody has cleared up after this one.
        if rng.random() < 0.7:
            bench.finish_swept(root, f"cycle-{cycle}-0", publish=DUE)
            bench.check(root, published=False)
    bench.finish_swept(root, "last")
    bench.check(root)
    return landed
