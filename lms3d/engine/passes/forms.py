"""The forms of a traced step: as traced, with programs, in slabs. One of them is in its graph at a time.

In each of them filter gradients are cut last (`pieces`), if they want more workspace than there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lms3d.engine.passes import manager
from lms3d.engine.passes.base import Function
from lms3d.engine.passes.compiling import Compile
from lms3d.engine.passes.edits import Edits
from lms3d.engine.passes.pieces import CutFilterGradients
from lms3d.engine.passes.slicing import Slice, nodes_of
from lms3d.engine.prediction import Compiled
from lms3d.engine.request import StepRequest
from lms3d.engine.slabs.choice import Slabs
from lms3d.engine.slabs.values import Node, Shape


@dataclass(frozen=True, kw_only=True)
class Form:
    """A step in one form, and what the pass that made it did.

    request: the question about the step in this form. slabs: as asked for. changed: False if the step is as it was traced all the
    same: there was nothing to slice, or no program pays. levels: see `slicing.Slicing`; sliced_tensors, joined: see
    `slabs.sliced_step.SlicedStep`. compiled, saved_bytes: see `compiling.Compilation`. edits: from the step as traced to
    this form; pieces: the edits after them.
    """

    request: StepRequest
    changed: bool = False
    slabs: Slabs = ()
    levels: tuple[Shape, ...] = ()
    sliced_tensors: int = 0
    joined: tuple[tuple[str, str, int], ...] = ()
    compiled: tuple[Compiled, ...] = ()
    saved_bytes: int = 0
    edits: Edits | None = None
    pieces: Edits | None = None


class Forms:
    """Answers questions about the forms of a step: edits the graph, captures it, and takes the edits back before the next answer.

    This is why `engine.choosing` undoes nothing. Copies cannot answer: TensorFlow copies no `FuncGraph`, and to trace the model
    anew for each form takes seconds. Plain values cannot either: the costs of a form's ops are measured by running them, and each
    form is normalised like the step as traced.

    ask: captures the step as it is in the graph now. compile_pass: a new one; None: the step may not have programs.
    workspace_bytes: the limit of cuDNN's workspace, None if there is none.
    """

    def __init__(
        self,
        function: Function,
        ask: Callable[[], StepRequest],
        compile_pass: Callable[[], Compile] | None = None,
        *,
        workspace_bytes: int | None = None,
    ) -> None:
        self._function, self._ask, self._compile = function, ask, compile_pass
        self._workspace_bytes = workspace_bytes
        self._shown: tuple[Edits, ...] = ()
        self._pieces_as_traced: Edits | None = None

    def as_traced(self) -> Form:
        """The step as it was traced."""
        if self._pieces_as_traced is None:
            self._show()
            self._pieces_as_traced = self._cut()
        self._show(self._pieces_as_traced)
        return Form(request=self._ask(), pieces=self._pieces_as_traced)

    def with_programs(self, otherwise: Form) -> Form:
        """The step with the programs that pay; `otherwise`, the step as traced, if there are none."""
        self._show()
        if self._compile is None:
            return otherwise
        one = self._compile()
        manager.run(self._function, [one])
        made = one.made
        if not made.changed or made.edits is None:
            return otherwise
        self._shown = (made.edits,)
        return Form(
            pieces=self._cut(),
            request=self._ask(),
            changed=True,
            compiled=tuple(made.compiled),
            saved_bytes=made.saved_bytes,
            edits=made.edits,
        )

    def in_slabs(self, slabs: Slabs, otherwise: Form) -> Form:
        """The step in these slabs; if there is nothing to slice, `otherwise`, the step as traced, with these slabs' name."""
        self._show()
        one = Slice(dict(slabs))
        manager.run(self._function, [one])
        if one.made is None or one.made.edits is None:
            return replace(otherwise, slabs=slabs)
        self._shown = (one.made.edits,)
        return Form(
            pieces=self._cut(),
            request=self._ask(),
            changed=True,
            slabs=slabs,
            levels=one.made.levels,
            sliced_tensors=len(one.made.step.sliced),
            joined=tuple(one.made.step.joined),
            edits=one.made.edits,
        )

    def _cut(self) -> Edits | None:
        """Cuts the filter gradients of the form that is shown, and shows it so; None if there is nothing to cut."""
        if self._workspace_bytes is None:
            return None
        one = CutFilterGradients(self._workspace_bytes)
        manager.run(self._function, [one])
        if one.edits is not None:
            self._shown = (*self._shown, one.edits)
        return one.edits

    def nodes(self, form: Form) -> list[Node]:
        """The ops of the step in this form, as the rules of `slabs` see them: they know no pieces."""
        self._show(form.edits)
        return nodes_of(self._function)

    def take(self, form: Form | None) -> None:
        """Leaves the step in this form; None: as traced."""
        self._show(*(() if form is None else (form.edits, form.pieces)))

    def _show(self, *edits: Edits | None) -> None:
        """Takes back what is shown and makes these edits, one after the other."""
        wanted = tuple(one for one in edits if one is not None)
        if self._shown == wanted:
            return
        for one in reversed(self._shown):
            one.undo()
        for one in wanted:
            one.redo()
        self._shown = wanted
