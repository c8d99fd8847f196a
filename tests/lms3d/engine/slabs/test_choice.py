"""Which numbers of slabs are tried for a limit."""

import pytest
import tensorflow as tf

from lms3d.engine import tuning
from lms3d.engine.passes import slicing
from lms3d.engine.slabs import choice
from lms3d.engine.tensorflow import functions
from lms3d.engine.tiers import disk
from lms3d.keras_step.estimate import estimate
from tests.lms3d.engine.traced import IMAGE, convolution_step
from tests.lms3d.keras_step.test_slabs import SPEC, network

RESIDENT = 5 << 20


@pytest.fixture(scope="module")
def nodes():
    return slicing.nodes_of(functions.trace(convolution_step, IMAGE))


def tried(nodes, room: float, *, mapped: bool) -> list[choice.Slabs]:
    """For a limit of so many times the bytes that the hungriest op needs."""
    limit = RESIDENT + int(room * choice.WorkingSet(nodes).bound({}))
    return [*choice.rungs(nodes, limit, RESIDENT, mapped=mapped)]


@pytest.mark.parametrize(("mapped", "room"), [(True, tuning.WHOLE_ROOM_MAPPED), (False, tuning.WHOLE_ROOM)])
def test_a_step_stays_whole_down_to_its_room(nodes, mapped, room):
    assert tried(nodes, room + 0.01, mapped=mapped)[0] == ()
    first, *others = tried(nodes, room - 0.01, mapped=mapped)
    assert first != ()
    assert others[-1] == ()  # the last resort


def test_what_is_read_where_it_lies_stays_whole_in_less_memory_than_others(nodes):
    assert tried(nodes, 1.1, mapped=True)[0] == ()
    assert tried(nodes, 1.1, mapped=False)[0] != ()


def test_less_memory_takes_finer_slabs(nodes):
    coarsest, *_ = tried(nodes, 0.9, mapped=True)
    finest = choice.finest(nodes)
    assert tried(nodes, 0.01, mapped=True) == [finest, ()]
    assert dict(coarsest)[0] < dict(finest)[0]


def test_what_is_copied_back_takes_finer_slabs(nodes):
    """They leave room for tensors on their way."""
    mapped, copied = (dict(tried(nodes, 0.9, mapped=mapped)[0]) for mapped in (True, False))
    assert copied[0] > mapped[0]


def test_what_is_read_where_it_lies_has_a_room_of_its_own(monkeypatch):
    """The same step and limit, with swapped tensors read in place, and copied back."""
    specs = tuple(tf.TensorSpec((2, 64, 64, spec.shape[-1])) for spec in SPEC)
    monkeypatch.setattr(tuning, "WHOLE_ROOM", 100.0)  # so small a step needs more than its rooms
    monkeypatch.setattr(disk, "writes_in_place", lambda folder: True)

    def slabs(mapped: bool) -> choice.Slabs:
        return estimate(network(64), specs, memory_limit=16 << 20, tier="disk", mapped=mapped).slabs

    assert slabs(mapped=True) == ()
    assert slabs(mapped=False) != ()
