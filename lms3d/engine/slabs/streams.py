"""The ends of a stream: ops of a traced step whose planes a function outside of the graph gives or takes. No TensorFlow here.

A volume that comes from such an op, or goes to one, need not exist as a whole: sliced, the op becomes one for each slab.
"""

from __future__ import annotations

OP_TYPE = "PyFuncStateless"

READERS: set[str] = set()
"""The tokens of the ops that give planes: (first, end, start) -> (1, end - first, ...)."""

WRITERS: set[str] = set()
"""The tokens of the ops that take planes: ((1, planes, ...), first) -> the number of planes. To take the same planes twice changes
nothing."""
