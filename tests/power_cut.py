"""What a power cut would leave of a folder, at every moment at which it could make a difference.

A disk keeps what was synced. Of the rest it may have taken the names before the contents, as ext4 does, or nothing at all:

    all names    every name as it is now, with the content that was synced; a file that never was is empty
    top names    the same for the watched folder itself; in those below it, the names that they were synced with
    no names     in every folder the names that it was synced with
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
        self._contents: dict[int, bytes] = {}  # inode -> its synced content
        self._names: dict[int, dict[str, int]] = {}  # inode of a folder -> the names that were synced
        self._folders: set[int] = set()  # inodes of all folders
        for path in (folder, *folder.rglob("*")):
            self._sync(path)
        self._forget()
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

    def now(self, scratch: Path) -> Iterator[Path]:
        """The states that a power cut could leave now."""
        self.worlds.clear()
        yield from self.each(scratch)

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
        there = {path.stat().st_ino: path.is_dir() for path in (self.folder, *self.folder.rglob("*"))}
        self._folders |= {number for number, is_folder in there.items() if is_folder}
        self._folders -= {number for number, is_folder in there.items() if not is_folder}
        kept = there.keys() | {number for names in self._names.values() for number in names.values()}
        self._contents = {number: content for number, content in self._contents.items() if number in kept}
        self._names = {number: names for number, names in self._names.items() if number in kept}

    def _look(self) -> None:
        current = {path: path.stat().st_ino for path in (self.folder, *self.folder.rglob("*"))}
        all_names: Tree = {
            str(path.relative_to(self.folder)): None if path.is_dir() else self._contents.get(number, b"")
            for path, number in current.items() if path != self.folder
        }  # fmt: skip
        top = {path.name: number for path, number in current.items() if path.parent == self.folder}
        synced = self._names.get(current[self.folder], {})
        for tree in (all_names, dict(self._tree(top, Path())), dict(self._tree(synced, Path()))):
            if tree not in self.worlds:
                self.worlds.append(tree)

    def _tree(self, names: dict[str, int], at: Path) -> Iterator[tuple[str, bytes | None]]:
        """The files below a folder of these names."""
        for name, number in names.items():
            if number in self._folders:
                yield str(at / name), None
                yield from self._tree(self._names.get(number, {}), at / name)
            else:
                yield str(at / name), self._contents.get(number, b"")
