"""Edits that can be taken back, and made again: so a step is asked about in one form after the other, and traced once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import tensorflow as tf

from lms3d.engine.tensorflow import surgery

Edit = Callable[[], None]


class Edits:
    """The edits that a pass made to a graph, each with its way back. Make one before the first edit.

    Ops that were added stay in the graph when the edits are taken back; nobody reads them, so they never run. Control edges that
    others add meanwhile, such as an update's to new readers of its variable (`updates`), are taken back, too.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self.graph = graph
        self._edits: list[tuple[Edit, Edit]] = []
        self._waits_before = surgery.control_inputs(graph)
        self._waits_after: surgery.ControlInputs | None = None  # None while the edits are in the graph

    def make(self, there: Edit, back: Edit) -> None:
        """Makes an edit, and keeps the way back."""
        there()
        self._edits.append((there, back))

    def redirect(self, old: tf.Tensor, new: tf.Tensor, *, but: Collection[str] = ()) -> None:
        """Lets the readers of `old` read `new`, and the function return it. but: names of readers that stay."""
        for reader in old.consumers():
            for i, read in enumerate(reader.inputs):
                if read is old and reader.name not in but:
                    self.make(partial(surgery.set_input, reader, i, new), partial(surgery.set_input, reader, i, old))
        if any(t is old for t in self.graph.outputs):
            there = partial(surgery.replace_outputs, self.graph, {old.name: new})
            self.make(there, partial(surgery.replace_outputs, self.graph, {new.name: old}))

    def undo(self) -> None:
        """The graph is as it was before the first edit. Nothing happens if it is already."""
        if self._waits_after is not None:
            return
        self._waits_after = surgery.control_inputs(self.graph)
        for _, back in reversed(self._edits):
            back()
        surgery.restore_control_inputs(self._waits_before)

    def redo(self) -> None:
        """The graph is as it was before `undo`."""
        if self._waits_after is None:
            return
        for there, _ in self._edits:
            there()
        surgery.restore_control_inputs(self._waits_after)
        self._waits_after = None
