"""Standard output whose reader may leave: `tidemark txns p | head -1`."""

from __future__ import annotations

import os
from typing import Any, TextIO


class LeavingReader:
    """A stream for text that goes on when its reader has closed the pipe; what is written then goes nowhere.

    So a command ends as it would have, with the exit code that it would have had: a reader that has seen
    enough is no error, and no reason to break off work either."""

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
        """Let the descriptor itself lead nowhere: what is buffered is flushed to it at the end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
