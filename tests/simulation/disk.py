"""A disk that keeps only what was synced, under the product's own code and real files.

`Disk` watches the calls that reach a real disk (`fsync`, `link`, `rename`, `unlink`, `mkdir`) below one
folder, and remembers which contents and which names are durable. A power cut happens at one of these calls.
Then every un-synced content and every un-synced name is kept, lost or cut by itself, as the seed has it.

A sync may also fail with EIO. As on Linux, the file's pages count as clean after that: a later sync of the
same file succeeds and keeps nothing.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch


class PowerCut(BaseException):
    """The machine is off. Not an `Exception`, so that no handler takes it for an error."""


class Disk:
    """Watches one folder. `cut_at` is the call at which the power goes, `fails` the share of syncs that fail;
    after a cut the folder is left alone, and `image` has what the disk had kept."""

    def __init__(self, root: Path, shadow: Path, rng: random.Random, *, cut_at: int, fails: float) -> None:
        self.root, self.image, self._held = root.resolve(), shadow / "image", shadow / "held"
        self.rng, self.cut_at, self.fails = rng, cut_at, fails
        self.calls = 0
        self.failed = 0
        self.lost = 0
        self.off = False
        self._held.mkdir(parents=True)
        self._whole: set[int] = set()
        """Files whose contents are durable."""
        self._doomed: set[int] = set()
        """Files whose contents were lost by a failed sync."""
        self._names: dict[int, dict[str, int]] = {}
        """The durable names of each folder."""
        for folder, _, files in os.walk(self.root):
            self._sync_names(Path(folder))
            self._whole |= {(Path(folder) / name).stat().st_ino for name in files}

    # What the product does.

    @contextmanager
    def watched(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in ("fsync", "link", "rename", "unlink", "mkdir")}

        def call(name: str) -> Callable[..., Any]:
            def watching(*args: Any, **kwargs: Any) -> Any:
                if self.off:
                    raise PowerCut
                if name == "fsync":
                    return self._fsync(real["fsync"], args[0])
                if self._is_here(args[0]):
                    self._count()
                done = real[name](*args, **kwargs)
                if name == "mkdir" and self._is_here(args[0]):
                    self._names.pop(Path(args[0]).stat().st_ino, None)
                return done

            return watching

        with patch.multiple(os, **{name: call(name) for name in real}):
            yield

    def _is_here(self, path: Any) -> bool:
        return str(path).startswith(str(self.root))

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.cut_at:
            self.cut()
            raise PowerCut

    def _fsync(self, real: Callable[[int], None], handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if not self._is_here(path):
            real(handle)
            return
        self._count()
        inode = os.fstat(handle).st_ino
        if path.is_file():
            self._hold(path, inode)
        if self.rng.random() < self.fails:
            self.failed += 1
            if path.is_file():
                self._doomed.add(inode)
            raise OSError(errno.EIO, "the disk failed", str(path))
        if path.is_dir():
            self._sync_names(path)
        elif inode not in self._doomed:
            self._whole.add(inode)

    def _sync_names(self, folder: Path) -> None:
        """All names in a folder are durable now. Their files are held, so that one whose removal is lost can
        come back."""
        names = {}
        for entry in os.scandir(folder):
            names[entry.name] = entry.inode()
            if entry.is_file():
                self._hold(entry.path, entry.inode())
        self._names[folder.stat().st_ino] = names

    def _hold(self, path: str | Path, inode: int) -> None:
        """Keep a file's contents, and its number from being given to another file."""
        held = self._held / str(inode)
        if not held.exists():
            _LINK(path, held)

    # What the disk does.

    def cut(self) -> None:
        """Turn the machine off, and make the image of what was kept."""
        self._keep(self.root, self.image)
        self.off = True

    def _keep(self, folder: Path, target: Path) -> None:
        target.mkdir(parents=True)
        durable = self._names.get(folder.stat().st_ino, {})
        now = {entry.name: entry.inode() for entry in os.scandir(folder)}
        for name in sorted({*durable, *now}):
            before, after = durable.get(name), now.get(name)
            inode = after if before == after or self.rng.random() < 0.5 else before
            if inode is None:
                self.lost += after is not None
                continue
            path = folder / name
            if inode == after and path.is_dir():
                self._keep(path, target / name)
            else:
                self._keep_file(path if inode == after else self._held / str(inode), inode, target / name)

    def _keep_file(self, path: Path, inode: int, target: Path) -> None:
        if not path.exists():
            return  # A folder that was removed: nothing in it is needed any more.
        data = path.read_bytes()
        if inode not in self._whole and (fate := self.rng.random()) < 0.7:
            self.lost += 1
            data = b"" if fate < 0.4 else data[: len(data) // 2]
        target.write_bytes(data)

    def restart(self) -> None:
        """The machine is on again, with what the disk had kept."""
        shutil.rmtree(self.root)
        shutil.copytree(self.image, self.root)


_LINK = os.link
