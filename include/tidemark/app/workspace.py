"""The pipelines of a project: found by name or by file, and opened for the command and for Python.

Pipeline files are searched in `$TIDEMARK_PIPELINES`, or else in `include/pipelines`, `pipelines` and the
current folder. Opening a pipeline starts no Spark. The first step that needs rows uses the given session or
starts one.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.app.deployment import Deployment
    from tidemark.config import LoadedPipelines, PipelineConfig
    from tidemark.core.ids import ShardId
    from tidemark.pipeline.context import Attempt

    AnyPipeline = PipelineConfig | Deployment | str | Path

PIPELINES_FOLDERS: Final = ("include/pipelines", "pipelines", ".")


def pipeline_folders() -> list[str]:
    """The folders that are searched for pipeline files."""
    chosen = os.environ.get("TIDEMARK_PIPELINES")
    return [chosen] if chosen else [folder for folder in PIPELINES_FOLDERS if Path(folder).is_dir()]


def find_files(pipeline: str | None) -> list[Path]:
    """The files of the pipeline with this name, invalid ones too; without a name, all files of the first
    folder that has any. Empty if there are none."""
    from tidemark.config import load_pipelines

    for folder in pipeline_folders():
        loaded = load_pipelines(folder)
        named = [name for name, config in loaded.pipelines.items() if config.name == pipeline]
        chosen = [*loaded.pipelines, *loaded.errors]
        if pipeline is not None:
            chosen = named or _broken(folder, loaded, pipeline)
        if chosen:
            return [Path(folder) / name for name in sorted(chosen)]
    return []


def _broken(folder: str, loaded: LoadedPipelines, pipeline: str) -> list[str]:
    """The invalid files of the pipeline: those that contain its name, else those that are named like it."""
    from tidemark.config import name_in

    given = {file: name_in(Path(folder) / file) for file in loaded.errors}
    named = [file for file, name in given.items() if name == pipeline]
    return named or [file for file in given if Path(file).stem == pipeline]


def load_pipeline(pipeline: str | Path, environment: str | None = None) -> PipelineConfig:
    """The checked configuration of a pipeline, by the path of its file or by its name in the folders of
    pipeline files. Nothing is opened and no engine is loaded.

    `ConfigInvalid`, with all problems, if the pipeline's files are invalid; `InvalidUsage` if there are none.
    """
    from tidemark.config import ConfigInvalid, load_pipelines
    from tidemark.config import load_pipeline as load_file

    if isinstance(pipeline, Path) or pipeline.endswith((".yaml", ".yml")):
        return load_file(Path(pipeline), environment)
    folders = pipeline_folders()
    known: list[str] = []
    unusable: list[str] = []
    for folder in folders:
        loaded = load_pipelines(folder, environment)
        for config in loaded.pipelines.values():
            if config.name == pipeline:
                return config
            known.append(config.name)
        broken = _broken(folder, loaded, pipeline)
        if broken:
            raise ConfigInvalid(problem for file in broken for problem in loaded.errors[file].problems)
        unusable += [str(Path(folder) / file) for file in loaded.errors]
    listed = ", ".join(sorted(set(known))) or "none"
    others = f" besides {', '.join(unusable)}, which can't be used (`tidemark check`)" if unusable else ""
    raise InvalidUsage(
        f"no pipeline {pipeline[:80]!r} in {', '.join(folders)}",
        hint=f"there are: {listed}{others}; or give the path of a pipeline file",
    )


def find_names(environment: str | None) -> list[str]:
    """The names of the pipelines in the first folder that has any.

    `ConfigInvalid` if a file is invalid; `InvalidUsage` if there is no pipeline."""
    from tidemark.config import load_pipelines

    folders = pipeline_folders()
    for folder in folders:
        loaded = load_pipelines(folder, environment)
        for error in loaded.errors.values():
            raise error
        if loaded.pipelines:
            return sorted(config.name for config in loaded.pipelines.values())
    raise InvalidUsage(f"no pipelines in {', '.join(folders)}", hint="give the path of a pipeline file")


def open_deployment(
    pipeline: AnyPipeline,
    environment: str | None = None,
    *,
    spark: SparkSession | None = None,
    cores: int | None = None,
    binds: bool = False,
) -> Deployment:
    """Open a pipeline, given as a configuration, by its name or by its file's path; an open one is returned
    as it is. `binds` asks the source for its tables first, if the file leaves them to the source.

    Without a `spark` session, the first step that needs one uses `$TIDEMARK_SPARK_MASTER`, the warm Spark, or
    a new local Spark with these `cores`."""
    from tidemark.app.deployment import Deployment, discovered
    from tidemark.config import PipelineConfig

    if isinstance(pipeline, Deployment):
        return pipeline
    config = pipeline if isinstance(pipeline, PipelineConfig) else load_pipeline(pipeline, environment)
    if binds:
        config = discovered(config)
    return Deployment(config, lambda: _session(config.name, cores) if spark is None else spark)


def _session(name: str, cores: int | None) -> SparkSession:
    from tidemark.runtime.machine import home
    from tidemark.spark import connect_server
    from tidemark.spark.session import build_session, connect_session

    chosen = os.environ.get("TIDEMARK_SPARK_MASTER")
    server = connect_server.find() if not chosen else None
    if server is not None and server.is_alive:
        return connect_session(server.url, token=server.token)
    if server is not None:
        ended = f"the warm Spark, process {server.pid}, has ended; this command starts its own Spark"
        sys.stderr.write(f"{ended} (`tidemark spark start`)\n")
    master = chosen or f"local[{cores or '*'}]"
    if master.startswith("sc://"):
        return connect_session(master)
    log_file = home() / "logs" / "spark.log"
    return build_session(f"tidemark {name}", master=master, log_file=log_file)


def new_attempt(run_id: str | None = None, *, cleared: bool = False) -> Attempt:
    """An attempt of a run that is started by hand. Without a run id, the run is a new one."""
    from tidemark.app.deployment import new_token
    from tidemark.core.binding import Owner
    from tidemark.pipeline.context import Attempt

    token = new_token()
    owner = Owner(run_id or f"{getpass.getuser()}-{token}")
    return Attempt(owner, token, cleared)


def chosen_shards(deployment: Deployment, shard: str | None) -> tuple[ShardId, ...]:
    """One shard by its name, or all."""
    from tidemark.core.ids import ShardId

    if shard is None:
        return deployment.shards
    return (ShardId(deployment.config.shard(shard).name),)
