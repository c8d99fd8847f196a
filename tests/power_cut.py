"""What a power cut would leave of a folder, at every moment at which it could make a difference.

A disk keeps what was synced. Of the rest it may have taken the names before the contents, as ext4 does, or nothing at all:

    names first    every name as it is now, with the content that was synced; a file that never was is empty
    synced only    the names that their folder was synced with, with the content that was synced
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Tree = dict[str, bytes | None]
"""Path below the folder -> content; None for a folder."""


class PowerCut:
    """Watches what is done below `folder` from now on; `worlds` holds each state that a power cut could have left."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.worlds = folder, list[Tree]()
        self._contents: dict[int, bytes] = {}  # inode -> what was synced
        self._names: dict[int, dict[str, int]] = {}  # inode of a folder -> the names that were synced
        for path in (folder, *folder.rglob("*")):
            self._sync(path)
        for name in ("fsync", "replace", "rename", "link", "unlink", "rmdir", "mkdir"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def each(self, scratch: Path) -> Iterator[Path]:
        """Every such state once, as a folder."""
        self._look()
        for number, tree in enumerate(self.worlds):
            root = scratch / str(number)
            root.mkdir(parents=True)
            for name, content in sorted(tree.items()):
                (root / name).mkdir() if content is None else (root / name).write_bytes(content)
            yield root
            shutil.rmtree(root)

    def last(self, scratch: Path) -> list[Path]:
        """The states that a power cut now could leave."""
        self.worlds.clear()
        self._look()
        for number, tree in enumerate(self.worlds):
            for name, content in sorted(tree.items()):
                path = scratch / str(number) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.mkdir(exist_ok=True) if content is None else path.write_bytes(content)
        return sorted(scratch.iterdir())

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._look()
            result = real(*arguments, **options)
            if name == "fsync":
                self._sync(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")))
            else:
                self._forget()
            self._look()
            return result

        return call

    def _sync(self, path: Path) -> None:
        if not path.is_relative_to(self.folder):
            return
        if path.is_dir():
            self._names[path.stat().st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()

    def _forget(self) -> None:
        """Numbers of inodes are used again."""
        there = {path.stat().st_ino for path in (self.folder, *self.folder.rglob("*"))}
        kept = there | {number for names in self._names.values() for number in names.values()}
        self._contents = {number: content for number, content in self._contents.items() if number in kept}
        self._names = {number: names for number, names in self._names.items() if number in kept}

    def _look(self) -> None:
        names_first: Tree = {
            str(path.relative_to(self.folder)): None if path.is_dir() else self._contents.get(path.stat().st_ino, b"")
            for path in self.folder.rglob("*")
        }
        for tree in (names_first, dict(self._synced(self.folder.stat().st_ino, Path()))):
            if tree not in self.worlds:
                self.worlds.append(tree)

    def _synced(self, folder: int, at: Path) -> Iterator[tuple[str, bytes | None]]:
        for name, number in self._names.get(folder, {}).items():
            if number in self._contents:
                yield str(at / name), self._contents[number]
            elif number in self._names:
                yield str(at / name), None
                yield from self._synced(number, at / name)
            else:
                yield str(at / name), b""
