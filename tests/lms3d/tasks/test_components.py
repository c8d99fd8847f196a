"""Small parts of a tumour."""

import numpy as np

from lms3d.tasks.volumes.components import without_small, without_small_of_each


def test_parts_below_a_volume_go_whatever_their_labels():
    labels = np.zeros((12, 12, 12), np.int16)
    labels[1:4, 1:4, 1:4] = 2
    labels[2, 2, 2] = 4
    labels[8:10, 8, 8] = 1
    labels[10, 9, 9] = 4  # touches by a corner: three voxels in all
    kept = without_small(labels, (1, 2, 4), 4)
    assert kept.dtype == labels.dtype
    np.testing.assert_array_equal(kept[:6], labels[:6])
    assert not kept[6:].any()
    np.testing.assert_array_equal(without_small(labels, (1, 2, 4), 3), labels)


def test_labels_outside_the_tumour_stay():
    labels = np.zeros((4, 4, 4), np.uint8)
    labels[0, 0, 0] = 4  # the cavity of a resection
    np.testing.assert_array_equal(without_small(labels, (1, 2, 3), 100), labels)
    assert not without_small(np.zeros((4, 4, 4), np.uint8), (1, 2, 3), 100).any()


def test_of_each_organ_small_parts_are_removed_and_others_stay():
    labels = np.zeros((8, 8, 8), np.uint8)
    labels[:3, :3, :3], labels[5:, 5:, 5:], labels[3, 3, 3], labels[0, 7, 0] = 1, 2, 2, 1
    cleaned = without_small_of_each(labels, 2)
    assert (cleaned[3, 3, 3], cleaned[0, 7, 0]) == (0, 0)  # the first touches organ 1, which is another one
    assert np.count_nonzero(cleaned == 1) == np.count_nonzero(cleaned == 2) == 27
