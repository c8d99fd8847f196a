"""Labels and channels: there and back, for every data set."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from data.brats.schema import REGIONS, SCHEMAS, schema_named
from data.errors import DataError

schemas = st.sampled_from(sorted(SCHEMAS)).map(SCHEMAS.__getitem__)


@given(schemas, arrays(np.uint8, (3, 4, 2), elements=st.integers(0, 2)))
def test_labels_come_back_from_their_channels(schema, picks):
    labels = np.array((0, *schema.labels), np.uint8)[picks]
    channels = schema.to_channels(labels)
    assert channels.dtype == np.uint8
    assert channels.shape == (3, 4, 2, 3)
    np.testing.assert_array_equal(schema.from_channels(channels.astype(np.float32)), labels)


@given(schemas)
def test_regions_nest_and_use_the_three_channels(schema):
    assert tuple(schema.regions) == REGIONS
    whole, core, enhancing = (set(schema.regions[name]) for name in REGIONS)
    assert enhancing < core < whole == set(schema.labels)
    assert schema.region_channels == {"WT": (0, 1, 2), "TC": (0, 2), "ET": (2,)}  # the same order in every set


def test_a_value_means_what_its_set_says():
    assert SCHEMAS["brats2020"].regions["ET"] == (4,)
    assert SCHEMAS["brats2023"].regions["ET"] == (3,)
    assert SCHEMAS["msd"].regions["TC"] == (2, 3)
    resection_cavity = np.full((1, 1, 1), 4, np.uint8)
    assert not SCHEMAS["brats2024"].to_channels(resection_cavity).any()


def test_below_one_half_is_background():
    probabilities = np.array([[[[0.49, 0.4, 0.3], [0.2, 0.5, 0.1], [0.6, 0.5, 0.9]]]], np.float32)
    assert SCHEMAS["brats2020"].from_channels(probabilities).tolist() == [[[0, 2, 4]]]


def test_an_unknown_schema_lists_the_known_ones():
    with pytest.raises(DataError, match=r"--labels: found 'brats2022'; expected one of tcia, brats2017"):
        schema_named("brats2022")
