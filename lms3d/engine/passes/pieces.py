"""On a GPU filter gradients are computed in pieces and summed, if cuDNN would want more workspace for one than it may take.

    x, dy --> Conv3DBackpropFilterV2 --> dw                        before
    x, dy --> views of some planes --> Conv3DBackpropFilterV2 --+  after
          --> ..                                                +--> AddV2 .. --> dw
          --> planes beside each cut --> ..                     --'

The fast algorithms copy both inputs. On an H200 two tensors of 432 MiB take 3 ms with a workspace of 865 MiB, and 13 to 26 ms
without.

PIECES-1  An op is cut into as few pieces, by powers of two, as have inputs that fit the limit of the workspace; first along the
          batch, then along the first spatial axis. A piece lies in the memory of its tensor: with the batch it is the first axis of
          a reshaped tensor, along which TensorFlow's Slice copies nothing (if a plane is a multiple of 64 bytes).
PIECES-2  Without padding a piece of the outputs reads the planes under its windows. With padding each piece is padded as if it were
          alone, so the products across a cut are missing: for the outputs beside it, in the taps of the filter that reach out
          of a piece. One more op for each such tap computes them for all cuts at once, as samples of a batch.
PIECES-3  That needs a window that reaches into the next piece and no further, and as many input planes as stride x outputs. Other
          ops are cut along the batch alone. Depthwise filter gradients, and those inside loops, branches and calls, stay whole.
PIECES-4  Results are equal to rounding, and depend on the workspace's limit alone: steps without LMS are cut, too, so that both
          have the same bits within the same limit. In 16 bits pieces are summed in 32.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.passes.base import Function, Pass, Returned, require_returned, require_unplanned, returned
from lms3d.engine.passes.edits import Edits
from lms3d.engine.slabs.planes import Range, Window, even_bounds
from lms3d.engine.tensorflow import reading, surgery
from lms3d.engine.tensorflow.capture import traced_order

TYPES = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
_ATTRIBUTES = ("strides", "padding", "data_format", "dilations", "use_cudnn_on_gpu")


class CutFilterGradients(Pass):
    """Requires a step without a plan. Ensures equal results, to rounding, of the same shapes.

    most_bytes: the limit of cuDNN's workspace. edits: the last run's; None if there was nothing to cut.
    """

    name = "pieces"

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.edits: Edits | None = None
        self.cut: list[str] = []
        self._returned: Returned = []

    def requires(self, function: Function) -> None:
        require_unplanned(self, function)
        self._returned = returned(function)

    def run(self, function: Function) -> bool:
        graph = function.graph
        ops = traced_order(graph)
        found = [(op, cuts) for op in ops if (cuts := _cuts(op, self.most_bytes)) is not None]
        self.cut, self.edits = [op.name for op, _ in found], None
        if not found:
            return False
        self.edits = Edits(graph)
        before = reading.order_of(graph)
        order = dict(before) or {op.name: ((i, 0.0, 0), False) for i, op in enumerate(ops)}
        for op, cuts in found:
            old = len(graph.get_operations())
            made = _sum_of_pieces(op, cuts)
            order |= {new.name: order[op.name] for new in graph.get_operations()[old:]}
            self.edits.redirect(op.outputs[0], made)
            surgery.wait_instead(op, made.op)
        remember = partial(surgery.remember_order, graph)
        self.edits.make(partial(remember, order), partial(remember, {}))
        return True

    def ensures(self, function: Function) -> None:
        require_returned(self, function, self._returned)
        alive = {op.name for op in traced_order(function.graph)}
        if twice := next((name for name in self.cut if name in alive), None):
            raise RuntimeError(f"pass {self.name}: {twice!r} runs beside its pieces; please report this graph")

    def __str__(self) -> str:
        return f"{self.name}: {len(self.cut)} filter gradients"


# -- where to cut --------------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """A part of the products of an op: planes, counted through the batch, sample after sample. samples: how many they make."""

    inputs: Range
    outputs: Range
    samples: int = 1


class _Cuts(NamedTuple):
    """pieces: together the whole op, but for the products across cuts. across: tap of the filter, along the first spatial axis ->
    these products, in groups of which each is no larger than a piece."""

    pieces: Sequence[_Piece]
    across: Mapping[int, Sequence[Sequence[_Piece]]]


def _cuts(op: tf.Operation, most_bytes: int) -> _Cuts | None:
    """Where to cut an op; None if it stays whole (PIECES-1)."""
    if op.type not in TYPES or reading.in_loop(op) or not op.get_attr("data_format").endswith(b"C"):
        return None
    x, _, dy = op.inputs
    shapes = [t.shape for t in (x, dy, op.outputs[0])]
    if not all(shape.is_fully_defined() and shape.num_elements() for shape in shapes):
        return None
    number, most = 1, min(x.shape[0] * dy.shape[1], tuning.MOST_PIECES)
    cuts = _in_pieces(op, number)
    while _largest_bytes(op, cuts) * tuning.WORKSPACE_MARGIN > most_bytes and number < most:
        number *= 2
        cuts = _in_pieces(op, number)
    return cuts if len(cuts.pieces) > 1 else None


def _largest_bytes(op: tf.Operation, cuts: _Cuts) -> int:
    """What the largest piece reads."""
    x, _, dy = op.inputs
    plane, outputs = (t.shape[2:].num_elements() * t.dtype.size for t in (x, dy))
    return max(piece.inputs.planes * plane + piece.outputs.planes * outputs for piece in cuts.pieces)


def _in_pieces(op: tf.Operation, number: int) -> _Cuts:
    """An op in this many pieces, or in about as many as it can be cut into."""
    x, _, dy = op.inputs
    (batch, extent), outputs, kernel = x.shape[:2], dy.shape[1], op.outputs[0].shape[0]
    along = _along(op, extent, kernel, -(-number // batch))
    if len(along) == 1:
        samples = _ranges(batch, number)
        return _Cuts(
            [_Piece(Range(a * extent, b * extent), Range(a * outputs, b * outputs), b - a) for a, b in samples], {}
        )

    def of_all(one_sample: Sequence[_Piece]) -> list[_Piece]:
        return [_moved(piece, i * extent, i * outputs) for i in range(batch) for piece in one_sample]

    window, together = _window(op, extent, kernel), min(piece.outputs.planes for piece in along)
    across = {tap: of_all(missing) for tap in range(kernel) if (missing := _missing(along, window, tap))}
    groups = {tap: [some[i : i + together] for i in range(0, len(some), together)] for tap, some in across.items()}
    return _Cuts(of_all(along), groups)


def _along(op: tf.Operation, extent: int, kernel: int, number: int) -> list[_Piece]:
    """The pieces of one sample along its first spatial axis; a single one if it cannot be cut there (PIECES-3)."""
    explicit = op.get_attr("padding") == b"EXPLICIT"
    window = _window(op, extent, kernel) if not explicit else None
    whole = [_Piece(Range(0, extent), Range(0, op.inputs[2].shape[1]))]
    if number == 1 or window is None:
        return whole
    if window.pads == (0, 0):
        return [_Piece(window.reads(out), out) for out in _ranges(window.outputs, number)]
    before, after, stride = window.pads[0], window.reach - 1 - window.pads[0], window.stride
    if extent != stride * window.outputs or before > stride or after >= 2 * stride:
        return whole
    return [_Piece(Range(out.start * stride, out.stop * stride), out) for out in _ranges(window.outputs, number)]


def _ranges(extent: int, number: int) -> list[Range]:
    return [Range(*pair) for pair in itertools.pairwise(even_bounds(extent, number))]


def _window(op: tf.Operation, extent: int, kernel: int) -> Window:
    """The window op along the first spatial axis."""
    dilation = int(op.get_attr("dilations")[1])
    return Window(extent, kernel, int(op.get_attr("strides")[1]), dilation, op.get_attr("padding").decode())


def _missing(pieces: Sequence[_Piece], window: Window, tap: int) -> list[_Piece]:
    """The products of one tap across the cuts of one sample: of one output plane each (PIECES-2)."""
    offset, stride = tap * window.dilation - window.pads[0], window.stride
    if window.pads == (0, 0) or 0 <= offset < stride:
        return []
    outputs = [piece.outputs.start - (offset >= stride) for piece in pieces[1:]]
    inputs = [plane * stride + offset for plane in outputs]
    return [_Piece(Range(i, i + 1), Range(o, o + 1)) for i, o in zip(inputs, outputs, strict=True)]


def _moved(piece: _Piece, inputs: int, outputs: int) -> _Piece:
    """The same piece, so many planes on."""
    (a, b), (c, d) = piece.inputs, piece.outputs
    return _Piece(Range(a + inputs, b + inputs), Range(c + outputs, d + outputs), piece.samples)


# -- the ops -------------------------------------------------------------------------------------------------------------


def _sum_of_pieces(op: tf.Operation, cuts: _Cuts) -> tf.Tensor:
    """Makes the ops of the pieces, in the place of `op`."""
    x, _, dy = op.inputs
    (planes, *flat), dtype = op.outputs[0].shape.as_list(), op.outputs[0].dtype
    with (
        surgery.insertion(op.graph, op.device or None, op.control_inputs),
        tf.name_scope(f"{op.name}/pieces/"),
    ):
        rows, gradients = (tf.reshape(t, (t.shape[0] * t.shape[1], *t.shape[2:])) for t in (x, dy))

        def summed(pieces: Iterable[tuple[tf.Tensor, tf.Tensor]], sizes: Sequence[int]) -> tf.Tensor:
            """In 32 bits at least, and in this order: the kernel of AddN has none."""
            made = []
            for inputs, outputs in pieces:
                one = _gradient(op, inputs, outputs, sizes)
                made.append(tf.cast(one, tf.float32) if dtype.size == 2 else one)
            return functools.reduce(tf.add, made)

        def views(one: _Piece) -> tuple[tf.Tensor, tf.Tensor]:
            return _view(rows, one.inputs, one.samples), _view(gradients, one.outputs, one.samples)

        def batches(groups: Sequence[Sequence[_Piece]]) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
            for group in groups:
                inputs, outputs = zip(*map(views, group), strict=True)
                yield tf.concat(inputs, 0), tf.concat(outputs, 0)

        made = summed(map(views, cuts.pieces), (planes, *flat))
        if cuts.across:
            nothing = tf.zeros((1, *flat), made.dtype)
            taps = [
                summed(batches(cuts.across[tap]), (1, *flat)) if tap in cuts.across else nothing
                for tap in range(planes)
            ]
            made += tf.concat(taps, 0)
        return tf.cast(made, dtype)


def _view(rows: tf.Tensor, planes: Range, samples: int) -> tf.Tensor:
    """Some of the rows, as `samples` samples: memory that is there already (PIECES-1)."""
    others = rows.shape.as_list()[1:]
    part = tf.slice(rows, [planes.start, *[0] * len(others)], [planes.planes, *others])
    return tf.reshape(part, (samples, planes.planes // samples, *others))


def _gradient(op: tf.Operation, x: tf.Tensor, dy: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    known = {name: op.get_attr(name) for name in _ATTRIBUTES if name in op.node_def.attr}
    attributes: dict[str, Any] = {k: v.decode() if isinstance(v, bytes) else v for k, v in known.items()}
    if attributes["padding"] == "EXPLICIT":
        attributes["explicit_paddings"] = op.get_attr("explicit_paddings")
    make = getattr(tf.raw_ops, op.type)
    return make(input=x, filter_sizes=list(sizes), out_backprop=dy, **attributes)
