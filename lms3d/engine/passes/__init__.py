"""The edits of a traced step, in the order in which they are made. TensorFlow is imported when a pass is asked for.

    normalise    what every step gets before it is captured: the passes that `NORMALISING` names, in its order
    compile      chains of small ops -> programs (`compiling`), if asked for
    slice        tensors of the largest levels -> slabs (`slicing`), if the limit asks for it
    pieces       filter gradients -> sums over pieces (`pieces`), on a GPU, if cuDNN's workspace asks for it
    rewrite      the nodes of a plan (`rewrite`, `stream`)
    guard        an error in place of a crash where memory may run out (`guard`)

A pass is a subclass of `base.Pass`. `manager.run` runs it: it checks what the pass requires and ensures, and logs what changed.
Slice, compile and pieces can be taken back: `forms` shows a step in one form after the other, so that `engine.choosing` can ask
about each. Nothing outside of this room edits a graph; tiers make the ops that `rewrite` asks them for
(tests/test_architecture.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lms3d.registry import Registry

if TYPE_CHECKING:
    from lms3d.engine.passes.base import Normalising

NORMALISING: Registry[type[Normalising]] = Registry(
    "normalising pass",
    shapes="lms3d.engine.passes.shapes:FixShapes",
    identities="lms3d.engine.passes.identities:PassIdentities",
    parts="lms3d.engine.passes.parts:SliceParts",
    turned="lms3d.engine.passes.turned:TurnKernels",
    repeats="lms3d.engine.passes.repeats:ComputeOnce",
    joins="lms3d.engine.passes.joins:KeepApart",
    assignments="lms3d.engine.passes.assignments:WriteInPlace",
    updates="lms3d.engine.passes.updates:HoldBack",
)
"""The last one comes last for a reason: an update also waits for the readers that the passes before it have made. A pass that a
program registers runs after it, and should make no new reader of a variable."""
