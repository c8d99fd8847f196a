"""What dataset.json says: channels, labels, regions, the ignore label."""

import numpy as np
import pytest

from lms3d.data.errors import DataError
from lms3d.data.segmentation import description
from lms3d.data.segmentation.description import Description, plain
from lms3d.data.volumes.targets import IGNORED

REGIONS = {
    "channel_names": {"0": "T1", "1": "T1"},
    "labels": {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3, "ignore": 4},
    "regions_class_order": [1, 2, 3],
}


def read(**about):
    return description.read(
        {"channel_names": {"0": "CT"}, "labels": {"background": 0, "a": 1}, **about}, name="x", where="dataset.json"
    )


def test_regions_are_painted_in_the_order_of_the_classes():
    described = description.read(REGIONS, name="x", where="dataset.json")
    schema = described.schema
    assert schema.nested == (("whole", 1), ("core", 2), ("enhancing", 3))
    assert dict(schema.labels) == {"1": 1, "2": 2, "enhancing": 3}
    assert schema.ignore == 4
    assert schema.values == (0, 1, 2, 3, 4)
    assert described.targets.kind == "regions"
    labels = np.array([0, 1, 2, 3]).reshape(4, 1, 1)
    channels = described.targets.to_channels(labels)
    assert channels[:, 0, 0].tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    np.testing.assert_array_equal(described.targets.from_channels(channels.astype(float)), labels)


def test_channels_of_one_name_are_told_apart_and_scaled_alike():
    channels = description.read(REGIONS, name="x", where="dataset.json").channels
    assert channels == ("T1", "T1#2")
    assert list(map(plain, channels)) == ["T1", "T1"]


def test_classes_have_a_background_and_ignored_voxels_are_marked():
    targets = read(labels={"background": 0, "a": 2, "b": 1, "ignore": 3}).targets
    assert targets.names == ("background", "a", "b")
    labels = np.array([0, 1, 2, 3], np.uint8).reshape(4, 1, 1)
    assert targets.to_channels(labels)[:, 0, 0].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [IGNORED] * 3]
    np.testing.assert_array_equal(targets.from_channels(targets.to_channels(labels[:3]).astype(float)), labels[:3])
    assert dict(targets.region_channels) == {"a": (1,), "b": (2,)}


@pytest.mark.parametrize("count", [1, 117])
def test_one_label_and_117(count):
    names = {f"organ {value}": value for value in range(1, count + 1)}
    assert len(read(labels={"background": 0, **names}).targets.names) == count + 1


def test_labels_of_the_decathlon_whose_names_are_numbers():
    """The background has a name of letters, so keys are values, and values are names."""
    assert dict(read(labels={"0": "background", "1": "2", "2": "1"}).schema.labels) == {"2": 1, "1": 2}
    assert dict(read(labels={"0": "0", "7": "1"}).schema.labels) == {"7": 1}, (
        "names with values, as nnU-Net v2 has them"
    )


def test_it_survives_config_json():
    for described in (description.read(REGIONS, name="Whole: body/7", where="d"), read()):
        assert Description.from_json(described.to_json(), where="config.json") == described


@pytest.mark.parametrize(
    ("about", "found"),
    [
        ({"channel_names": {}}, "channel_names {}"),
        ({"channel_names": {"1": "CT"}}, "channel_names numbered 1; expected 0 to 0"),
        ({"labels": {}}, "labels {}"),
        ({"labels": {"background": 0}}, "no label but background"),
        ({"labels": {"a": 1, "b": 1}}, "a value of its own for each label"),
        ({"labels": {"a": 300}}, "label 'a' = 300; expected whole numbers from 0 to 255"),
        ({"labels": {"a": 1.5}}, "label 'a' = 1.5"),
        ({"labels": {"a": [1, 2], "b": 2}}, "regions_class_order null; expected a value for each of a, b"),
        ({"labels": {"0": "background", "1": "a", "2": "a"}}, "label 'a' with several values"),
        ({"labels": {"background": 0, "": 1, "b": 2}}, "a label without a name for 1; expected a name for each"),
        ({"labels": {"0": "background", "1": " "}}, "a label without a name for 1; expected a name for each"),
    ],
)
def test_mistakes_name_the_file(about, found):
    with pytest.raises(DataError) as caught:
        read(**about)
    assert str(caught.value).startswith("dataset.json: found ")
    assert found in str(caught.value)


@pytest.mark.parametrize("damage", [None, {}, {"labels": {"a": 300}}, {"nested": [["nobody", 1]]}, {"channels": []}])
def test_a_damaged_description_is_refused(damage):
    value = damage and {**read().to_json(), **damage}
    with pytest.raises(DataError, match=r"config.json: found no description"):
        Description.from_json(value, where="config.json")
