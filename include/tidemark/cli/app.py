"""The root of the `tidemark` command: its global options, its list of commands, and its errors.

A command's module is imported only when that command is used: a run without work spends most of its time on
imports. Standard output may be closed early, as in `tidemark txns p | head -1`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tidemark import __version__
from tidemark.cli.shared import EXIT_RETRY, exit_code_of
from tidemark.core.errors import TidemarkError


class LeavingReader:
    """A text stream that discards its output after the reader has closed the pipe.

    A closed pipe is no error: the command completes its work and ends with its usual exit code."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._forget()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._forget()

    def _forget(self) -> None:
        """Redirect the descriptor itself to /dev/null, because buffered text is flushed to it at the end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


MODULES: Final = {
    "init": "tidemark.cli.definitions",
    "check": "tidemark.cli.definitions",
    "run": "tidemark.cli.run",
    "replay": "tidemark.cli.run",
    "publish": "tidemark.cli.run",
    "verify": "tidemark.cli.run",
    "rebuild": "tidemark.cli.run",
    "status": "tidemark.cli.status",
    "txns": "tidemark.cli.status",
    "show": "tidemark.cli.status",
    "journal": "tidemark.cli.status",
    "cuts": "tidemark.cli.status",
    "read": "tidemark.cli.rows",
    "quarantine": "tidemark.cli.rows",
    "leases": "tidemark.cli.rows",
    "skip": "tidemark.cli.operations",
    "accept": "tidemark.cli.operations",
    "release": "tidemark.cli.operations",
    "watermark": "tidemark.cli.operations",
    "maintain": "tidemark.cli.operations",
    "recover": "tidemark.cli.operations",
    "generation": "tidemark.cli.generation",
    "reprocess": "tidemark.cli.generation",
    "doctor": "tidemark.cli.doctor",
    "consumers": "tidemark.cli.rows",
    "source": "tidemark.cli.definitions",
    "spark": "tidemark.cli.operations",
}
"""The commands in the order of `--help`, each with its module."""

OBJECTS_PER_COLLECTION: Final = 50_000
# Click's exception for usage errors. Newer versions of Typer contain a copy of click, older ones use click
# itself. A public exception of Typer inherits from the right one in both.
_MISTAKE: Final[Any] = next(kind for kind in typer.BadParameter.mro() if kind.__name__ == "ClickException")


class Commands(Mapping[str, Any]):
    """The commands by their names; a lookup imports the command's module."""

    def __getitem__(self, name: str) -> Any:
        return commands_of(MODULES[name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


@cache
def commands_of(module: str) -> Mapping[str, Any]:
    """The commands of a module."""
    commands = get_group(import_module(module).commands).commands
    _unwrap(commands)
    return commands


def _unwrap(commands: Mapping[str, Any]) -> None:
    """Join the lines of each paragraph of the help texts, so that they wrap at the terminal's width."""
    for command in commands.values():
        command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        _unwrap(getattr(command, "commands", {}))


class Root(TyperGroup):
    """The main command. It imports its commands when they are used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands: Any = Commands()
        self.commands = commands


app = typer.Typer(
    name="tidemark",
    cls=Root,
    help="Upsert change streams into Delta Lake on Spark, and prove what was written.",
    epilog="Begin with `tidemark init NAME`. `tidemark COMMAND --help` explains a command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tidemark {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that belong to no command."""


def main() -> None:
    """Run the command line. A `TidemarkError` is printed and ends it with the exit code of its family."""
    # Otherwise pydantic searches every installed package for plugins before the first validation.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Nearly all objects of a short command belong to modules and stay, so frequent collections free nothing.
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    stdout = sys.stdout
    output: Any = LeavingReader(stdout)
    sys.stdout = output
    try:
        if "--json" in sys.argv:
            _run_for_machines()
        app()
    except TidemarkError as error:
        fail(error.fact, error.hint, exit_code_of(error))
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise  # Without a path, the message would not help; the traceback may.
        hint = "check the path, its permissions and the disk's room, then retry"
        fail(f"{error.filename}: {error.strerror}", hint, EXIT_RETRY)
    finally:
        output.flush()
        sys.stdout = stdout
        gc.freeze()  # The process is about to end: a last collection would only take time.


def _run_for_machines() -> NoReturn:
    """Run the command line with JSON errors, also for usage errors."""
    try:
        code = app(standalone_mode=False, prog_name="tidemark")
    except _MISTAKE as mistake:
        message = mistake.format_message()
        context = getattr(mistake, "ctx", None)
        hint = f"`{context.command_path} --help` explains it" if context is not None else ""
        fail(message[:1].lower() + message[1:].rstrip("."), hint, mistake.exit_code)
    except typer.Abort:
        fail("aborted", "", EXIT_RETRY)
    # Outside of standalone mode, the command returns the code of a `typer.Exit`, or None.
    sys.exit(code if isinstance(code, int) else 0)


def fail(fact: str, hint: str, exit_code: int) -> NoReturn:
    """End the command with an error on standard error: two lines for people or, with --json, an object."""
    if "--json" in sys.argv:
        body = {"error": fact, "what_to_do": hint, "exit_code": exit_code}
        typer.echo(json.dumps(body, ensure_ascii=False), err=True)
    else:
        typer.secho(f"error: {fact}", err=True, fg="red")
        if hint:
            typer.echo(f"what to do: {hint}", err=True)
    sys.exit(exit_code)
