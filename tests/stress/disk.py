"""A disk that plays a log of the shim: what processes see, and what a power cut would leave of it.

A disk keeps what was synced. Of the rest it may have taken the names before the contents, as ext4 does, or nothing at all
(the model of `tests/power_cut.py`, which looks at one process from within):

    all names    every name as it is now, with the content that was synced; a file that never was is empty
    top names    the same for the watched folder itself; in those below it, the names that they were synced with
    no names     in every folder the names that it was synced with
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.stress.shim import Event

Tree = dict[str, bytes | None]
"""Path below the folder -> content; None for a folder."""


_HERE = PurePosixPath()


@dataclass(eq=False)
class File:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    names: Names = field(default_factory=dict)
    synced: Names = field(default_factory=dict)


Names = dict[str, "File | Folder"]


def tree_of(folder: Path) -> Tree:
    """What lies below a folder."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


def make(tree: Tree, folder: Path) -> None:
    """Writes a tree into a folder."""
    folder.mkdir(parents=True)
    for name, content in sorted(tree.items()):
        (folder / name).mkdir() if content is None else (folder / name).write_bytes(content)


class Disk:
    """Begins with `tree`, all of it synced."""

    def __init__(self, tree: Tree) -> None:
        self.root = Folder()
        for name, content in sorted(tree.items()):
            folder, last = self._place(name)
            folder.names[last] = Folder() if content is None else File(bytearray(content), content)
            folder.synced = dict(folder.names)

    def apply(self, event: Event) -> None:
        """Applies the event to this disk. KeyError if the log has missed how a file came to be."""
        if event.error and not event.data:
            return
        folder, last = self._place(event.name)
        match event.kind:
            case "create":
                folder.names[last] = File()
            case "mkdir":
                folder.names[last] = Folder()
            case "rename":
                before, old = self._place(event.other)
                folder.names[last] = before.names.pop(old)
            case "link":
                before, old = self._place(event.other)
                folder.names[last] = before.names[old]
            case "unlink" | "rmdir":
                del folder.names[last]
            case "fsync":
                found = self.root if event.name == "." else folder.names[last]
                found.synced = dict(found.names) if isinstance(found, Folder) else bytes(found.content)
            case "empty":
                folder.names[last].content.clear()
            case "write":
                content = folder.names[last].content
                content.extend(bytes(max(0, event.offset - len(content))))
                content[event.offset : event.offset + len(event.data)] = event.data
            case "truncate":
                content = folder.names[last].content
                content.extend(bytes(max(0, event.size - len(content))))
                del content[event.size :]

    def now(self) -> Tree:
        """What processes see."""
        return dict(_tree(self.root, lambda folder: folder.names, lambda file: bytes(file.content)))

    def worlds(self) -> Iterator[Tree]:
        """What a power cut may leave."""
        for mode in (
            lambda folder: folder.names,
            lambda folder: folder.names if folder is self.root else folder.synced,
            lambda folder: folder.synced,
        ):
            yield dict(_tree(self.root, mode, lambda file: file.synced))

    def _place(self, name: str) -> tuple[Folder, str]:
        path, folder = PurePosixPath(name), self.root
        for part in path.parts[:-1]:
            folder = folder.names[part]
        return folder, path.name


def after_power_cuts(before: Tree, events: Iterable[Event]) -> Iterator[tuple[str, Tree]]:
    """Each state once that a power cut at any moment may leave, with a name: its number, and the event before it."""
    disk, seen = Disk(before), list[Tree]()
    for event in events:
        disk.apply(event)
        if event.kind in ("write", "close", "open", "truncate", "empty"):
            continue
        for world in disk.worlds():
            if world not in seen:
                seen.append(world)
                yield f"{len(seen)}, after {event.kind} {event.pattern}", world


def _tree(
    folder: Folder, names: Callable[[Folder], Names], content: Callable[[File], bytes], at: PurePosixPath = _HERE
) -> Iterator[tuple[str, bytes | None]]:
    for name, found in names(folder).items():
        if isinstance(found, Folder):
            yield str(at / name), None
            yield from _tree(found, names, content, at / name)
        else:
            yield str(at / name), content(found)
