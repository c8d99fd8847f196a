"""Live bytes per op, against tables by hand."""

from __future__ import annotations

import pytest

from lms3d.engine.liveness import live_bytes, peak_bytes, roots, storages
from lms3d.engine.step_model.decisions import Choice, Mode
from lms3d.engine.step_model.problem import reduce
from lms3d.engine.step_model.schedule import build
from tests.lms3d.engine.toy_graphs import MIB, SECONDS, op, placeholder, step


def table(graph) -> list[float]:
    return [b / MIB for b in live_bytes(graph)]


def test_a_table_by_hand():
    graph = step(
        placeholder(mib=4),  # an argument: counted in resident_mib, not here
        op("a", "x", mib=2),
        op("seen", "a", type="Reshape", mib=2),  # shares a
        op("b", "seen", mib=3),  # last reader of a
        op("c", "b", type="Relu", mib=3),  # writes into b, which ends here
        op("d", "c", "x", mib=1, workspace_bytes=5 * MIB),  # last reader of c
        op("shape", "c", type="Shape", mib=0),  # reads no values
        op("e", "d", type="Relu", mib=1),  # d is returned: no writing into it; nobody reads e
        op("f", "x", mib=2),  # nobody reads f
        op("g", "x", mib=1),
        returned=["d"],
        resident_mib=10,
    )
    assert table(graph) == [10, 12, 12, 15, 13, 19, 11, 12, 13, 12]
    assert peak_bytes(graph) == 19 * MIB


def test_an_alias_of_an_alias_and_every_output_of_identity_n():
    both = op("both", "a", "b", type="IdentityN")
    both = type(both)(both.name, both.type, both.inputs, (), (*both.outputs, type(both.outputs[0])("both:1", MIB, 4)))
    graph = step(op("a"), op("b"), op("r", "a", type="Reshape"), op("s", "r", type="Squeeze"), both)
    assert roots(graph) == {"a:0": "a:0", "b:0": "b:0", "r:0": "a:0", "s:0": "a:0", "both:0": "a:0", "both:1": "b:0"}
    assert storages(graph)["a:0"].readers == {"r", "s", "both"}


def test_an_identity_on_another_device_is_a_copy():
    graph = step(op("a"), op("host", "a", type="Identity", on_device=False))
    assert roots(graph)["host:0"] == "host:0"
    assert set(storages(graph)) == {"a:0"}  # and the copy is not on the device


def test_returning_an_alias_keeps_its_storage():
    graph = step(op("a"), op("same", "a", type="Identity"), op("b", "a"), op("c", "b"), returned=["same"])
    assert storages(graph)["a:0"].returned
    assert table(graph) == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("reader", "live"),
    [
        (op("b", "a", type="Relu"), 1),
        (op("b", "a", type="Conv3D"), 2),  # a convolution cannot write into its input
        (op("b", "a", type="Relu", mib=2), 3),  # other size
    ],
)
def test_forwarding(reader, live):
    assert table(step(op("a"), reader)) == [1, live]


def test_forwarding_through_a_view_of_a_part():
    """The result holds all of the storage, and hands it on. A view that is not the last one is not written into."""
    graph = step(
        op("a", mib=8),
        op("rows", "a", type="Slice", mib=2, view=True),
        op("others", "a", type="Slice", mib=4, view=True),
        op("b", "others", type="Mul", mib=4),  # rows is still read
        op("c", "rows", type="Mul", mib=2),  # holds the 8 MiB of a
        op("d", "b", mib=1),
        op("e", "c", type="Mul", mib=2),
        op("f", "e", mib=1),
        op("g", "f", "d", mib=1),
    )
    assert table(graph) == [8, 8, 8, 12, 12, 13, 9, 10, 3]
    problem = reduce(graph, SECONDS)
    size = {problem.buffers[c.buffer].root: c.bytes / MIB for c in build(problem, {}, SECONDS).copies}
    assert [size[f"{name}:0"] for name in "abcdef"] == [8, 4, 8, 1, 8, 1]
    assert [b / MIB for b in build(problem, {}, SECONDS).live_bytes] == [8, 12, 12, 13, 9, 10, 3]


def test_no_forwarding_through_a_view_into_a_kernel_with_a_guard():
    """Its guard takes as much memory as the result before it runs."""
    graph = step(op("a", mib=8), op("rows", "a", type="Slice", mib=2, view=True), op("b", "rows", type="Relu", mib=2))
    assert table(graph) == [8, 8, 10]


def test_a_chain_of_copies_holds_what_the_first_one_held():
    """The first is a swap-in that starts with its reader."""
    names = [f"m{i}" for i in range(6)]
    middle = [op(name, before, mib=1) for name, before in zip(names, ["x", *names], strict=False)]
    graph = step(
        placeholder(mib=1),
        op("a", "x", mib=8),
        *middle,
        op("rows", "a", type="Slice", mib=2, view=True),
        op("b", "rows", type="Mul", mib=2),
        op("c", "b", type="Mul", mib=2),
        op("d", "c", "m5", mib=1),
    )
    problem = reduce(graph, SECONDS)
    index = {buffer.root: i for i, buffer in enumerate(problem.buffers)}
    copies = build(problem, {index["a:0"]: Choice(Mode.SWAP, tight_out=True, tight_in=True)}, SECONDS).copies
    size = {(problem.buffers[c.buffer].root, c.number): c.bytes / MIB for c in copies}
    assert (size["a:0", 1], size["b:0", 0], size["c:0", 0]) == (8, 8, 8)


def test_no_forwarding_while_somebody_else_still_reads():
    assert table(step(op("a"), op("b", "a", type="Relu"), op("c", "a", "b"))) == [1, 2, 3]


def test_nothing_to_run():
    assert peak_bytes(step(resident_mib=3)) == 3 * MIB
