"""Label maps to channels and back, disjoint and nested, for every data set."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lms3d.data.brats.schema import SCHEMAS
from lms3d.data.brats.targets import KINDS, Labels, Regions, targets_of
from lms3d.data.errors import DataError

schemas = st.sampled_from(sorted(SCHEMAS)).map(SCHEMAS.__getitem__)
kinds = st.sampled_from(sorted(KINDS))
picks = arrays(np.uint8, (3, 4, 2), elements=st.integers(0, 2))


@given(schemas, kinds, picks)
def test_labels_come_back_from_their_channels(schema, kind, picked):
    targets = targets_of(kind, schema)
    labels = np.array(schema.values, np.uint8)[picked % len(schema.values)]
    channels = targets.to_channels(labels)
    assert channels.dtype == np.uint8
    assert channels.shape == (*labels.shape, len(targets.names))
    np.testing.assert_array_equal(targets.from_channels(channels.astype(np.float32)), labels)


@given(schemas, kinds, picks)
def test_a_region_is_the_union_of_its_channels(schema, kind, picked):
    targets = targets_of(kind, schema)
    labels = np.array(schema.values, np.uint8)[picked % len(schema.values)]
    channels = targets.to_channels(labels)
    for region, indices in targets.region_channels.items():
        np.testing.assert_array_equal(
            channels[..., list(indices)].any(axis=-1), np.isin(labels, schema.values_of(region))
        )


def test_disjoint_channels_exclude_each_other_and_nested_ones_do_not():
    labels = np.array([[[1, 2, 4]]], np.uint8)
    assert Labels(SCHEMAS["brats2020"]).to_channels(labels).tolist() == [[[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]]
    assert Regions(SCHEMAS["brats2020"]).to_channels(labels).tolist() == [[[[1, 1, 0], [1, 0, 0], [1, 1, 1]]]]


def test_every_known_label_can_be_learnt():
    assert Labels(SCHEMAS["brats2024"]).names == ("NETC", "SNFH", "ET", "RC")
    assert Regions(SCHEMAS["brats2024-ped"]).names == ("WT", "TC", "CC", "ET")


def test_below_one_half_is_background():
    probabilities = np.array([[[[0.49, 0.4, 0.3], [0.2, 0.5, 0.1], [0.6, 0.5, 0.9]]]], np.float32)
    assert Labels(SCHEMAS["brats2020"]).from_channels(probabilities).tolist() == [[[0, 2, 4]]]
    assert Regions(SCHEMAS["brats2020"]).from_channels(probabilities).tolist() == [[[0, 1, 4]]]


def test_another_kind_is_refused_in_one_line():
    with pytest.raises(DataError, match=r"--targets: found 'softmax'; expected labels or regions"):
        targets_of("softmax", SCHEMAS["msd"])
