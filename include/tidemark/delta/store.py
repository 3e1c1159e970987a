"""The files of one Delta table, on a local disk or in an object store, behind one address.

delta-rs's own file handler is used for both, so that a table's data and its log are reached with the
same options. Bytes in, bytes out: no pyarrow thread ever calls back into Python, which is what can
abort a process at its exit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

from deltalake._internal import DeltaFileSystemHandler


def local_path(uri: str) -> Path | None:
    """The folder that an address means on this machine, or None for an object store."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return None if "://" in uri else Path(uri)


class Store:
    """Whole files below a table's root."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self._uri = uri
        self._options = dict(storage_options)
        self._handler: DeltaFileSystemHandler | None = None
        self.folder = local_path(uri)

    @property
    def local(self) -> bool:
        return self.folder is not None

    def make_root(self) -> None:
        """A local table needs its folder to be there; an object store knows no folders."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def _files(self) -> DeltaFileSystemHandler:
        if self._handler is None:
            self._handler = DeltaFileSystemHandler(self._uri, self._options)
        return self._handler

    def put(self, path: str, data: bytes) -> None:
        """Write one file whose name nobody else uses. OSError when it can't be."""
        stream = self._files().open_output_stream(path)
        stream.write(data)
        stream.close()  # type: ignore[attr-defined]

    def get(self, path: str) -> bytes:
        """The whole file. FileNotFoundError when there is none, OSError when it can't be read."""
        data: bytes = self._files().open_input_file(path).read()  # type: ignore[call-arg]
        return data

    def has(self, path: str) -> bool:
        """Whether the file is there. OSError when that can't be told."""
        try:
            self._files().open_input_file(path)
        except FileNotFoundError:
            return False
        return True

    def listed(self) -> dict[str, int]:
        """Every file below the root with its size; none where there is no root."""
        infos = self._files().get_file_info_selector("", True, True)
        return {info.path: info.size for info in infos if info.size is not None}

    def folders(self) -> list[str]:
        """The names of the folders at the root; none where there is no root."""
        if self.folder is not None:
            return (
                sorted(one.name for one in self.folder.iterdir() if one.is_dir())
                if self.folder.is_dir()
                else []
            )
        infos = self._files().get_file_info_selector("", True, False)
        return sorted(info.path.strip("/") for info in infos if info.size is None)

    def delete(self, path: str) -> None:
        """Delete a file, and on a disk its folders when they are empty. One that is gone is no error."""
        try:
            self._files().delete_file(path)
        except FileNotFoundError:
            return
        if self.folder is not None:
            with suppress(OSError):
                for folder in (self.folder / path).parents:
                    if folder == self.folder:
                        break
                    folder.rmdir()

    def remove_quietly(self, path: str) -> None:
        """Remove a file of our own that nobody can see; what stays behind is swept by maintenance."""
        with suppress(OSError):
            self._files().delete_file(path)
