"""A disk that keeps only what was synced, under the product's own code and real files.

`Disk` watches the calls that reach a real disk (`fsync`, `link`, `rename`, `unlink`, `mkdir`) below one
folder, and remembers which contents and which names are durable. A power cut happens at one of these calls.
Then every un-synced content and every un-synced name is kept, lost or cut by itself, as the seed has it.

A sync may also fail with EIO. As on Linux, the pages count as clean after that: a later sync of the same
file succeeds and keeps nothing, and a later sync of the same folder keeps only names of files that were made
since. (Names of folders it keeps: see ADR 20 for why.)

A process may also be killed at a call, while the machine stays on: others see what it has left, durable or
not.
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


class Killed(BaseException):
    """The process is dead, and the machine is on."""


class Disk:
    """Watches one folder. `cut_at` is the call at which the power goes, `kill_at` the one at which the
    process dies, `fails` the share of syncs that fail; after a cut the folder is left alone, and `image` has
    what the disk had kept."""

    def __init__(
        self, root: Path, shadow: Path, rng: random.Random, *, cut_at: int, fails: float, kill_at: int = 0
    ) -> None:
        self.root, self.image, self._held = root.resolve(), shadow / "image", shadow / "held"
        self.rng, self.cut_at, self.fails, self.kill_at = rng, cut_at, fails, kill_at
        self.calls = 0
        self.dead = False
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
        self._lost_names: dict[int, dict[str, int | None]] = {}
        """The changes of each folder that a failed sync has lost: names, and what they were to be."""
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
                if self.dead:
                    raise Killed
                if name == "fsync":
                    return self._fsync(real["fsync"], args[0])
                if self._is_here(args[0]):
                    self._count()
                done = real[name](*args, **kwargs)
                if name in ("link", "rename", "mkdir") and self._is_here(args[0]):
                    made = Path(args[0] if name == "mkdir" else args[1])
                    self._lost_names.get(made.parent.stat().st_ino, {}).pop(made.name, None)
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
        if self.calls == self.kill_at:
            self.dead = True
            raise Killed

    def start_again(self) -> None:
        """Another process begins."""
        self.dead = False

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
            else:
                self._lose_names(path)
            raise OSError(errno.EIO, "the disk failed", str(path))
        if path.is_dir():
            self._sync_names(path)
        elif inode not in self._doomed:
            self._whole.add(inode)

    def _sync_names(self, folder: Path) -> None:
        """All names in a folder are durable now, but for changes that a failed sync has lost. Their files are
        held, so that one whose removal is lost can come back."""
        inode = folder.stat().st_ino
        durable, lost = self._names.get(inode, {}), self._lost_names.get(inode, {})
        names = {}
        for entry in os.scandir(folder):
            names[entry.name] = entry.inode()
            if entry.is_file():
                self._hold(entry.path, entry.inode())
        for name, change in lost.items():
            if names.get(name) == change:
                names.pop(name, None)
                names |= {name: durable[name]} if name in durable else {}
        self._names[inode] = names

    def _lose_names(self, folder: Path) -> None:
        """Every file that was made, replaced or removed in a folder since its last sync is lost."""
        inode = folder.stat().st_ino
        now = {entry.name: entry.inode() for entry in os.scandir(folder) if entry.is_file()}
        durable = {
            name: number
            for name, number in self._names.get(inode, {}).items()
            if (self._held / str(number)).exists()
        }
        changed = {name: now.get(name) for name in {*durable, *now} if durable.get(name) != now.get(name)}
        self._lost_names.setdefault(inode, {}).update(changed)

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
        lost = self._lost_names.get(folder.stat().st_ino, {})
        now = {entry.name: entry.inode() for entry in os.scandir(folder)}
        for name in sorted({*durable, *now}):
            before, after = durable.get(name), now.get(name)
            lucky = name not in lost and self.rng.random() < 0.5
            inode = after if before == after or lucky else before
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
