"""The CheXNet scaling study's input pipeline, old and new, stage by stage, beside the one that training uses.

| order | function                                     | order of samples                                          |
|-------|----------------------------------------------|-----------------------------------------------------------|
| old   | `old_order`                                  | random: the study's pipeline before it was mended         |
| new   | `new_order`                                  | random: the one after                                     |
| best  | `lms3d.data.chest_xray.pipeline.training_dataset`  | a function of (seed, sample number): what training uses   |

Each makes an endless stream of (image (B, N, N, 3) float32, normalised, labels (B, 14) float32) for one rank of `size`.
Source of the first two: "Scaling CheXNet" (Dell HPC & AI lab, 2019).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from lms3d.data import stream
from lms3d.data.chest_xray import pipeline
from lms3d.data.chest_xray.collection import FINDINGS
from lms3d.data.chest_xray.pipeline import IMAGENET_MEAN, IMAGENET_STD
from lms3d.data.chest_xray.records import Part
from lms3d.data.errors import DataError

CYCLE = 10
"""Files that are read in turns in the new order: the study's."""
SHUFFLED = 512
"""Samples in the shuffle buffer: two shards."""

_AUTOTUNE = tf.data.AUTOTUNE


def old_order(part: Part, *, batch_size: int, seed: int, rank: int = 0, size: int = 1) -> tf.data.Dataset:
    """The pipeline that starved the study's GPUs. Every rank does the work of all ranks, in one thread."""
    stream.require_batch(batch_size, "16 is CheXNet's")
    # One stream over all files: they are read one after the other, whoever needs them.
    data = tf.data.TFRecordDataset(part.files)
    # Every rank parses, decodes and normalises every record, one at a time ...
    data = data.map(_parser(part, seed))
    # ... and throws all of them away but one in `size`.
    data = data.shard(size, rank)
    # The buffer holds finished images: twelve times the memory of the records.
    data = data.shuffle(SHUFFLED, seed=seed)
    data = data.repeat()
    # Copies every finished image once more, in the same thread.
    data = data.batch(batch_size, drop_remainder=True)
    data = data.prefetch(1)
    # TensorFlow of that year did not make a map parallel by itself.
    options = _options()
    options.experimental_optimization.map_parallelization = False
    options.autotune.enabled = False
    return data.with_options(options)


def new_order(part: Part, *, batch_size: int, seed: int, rank: int = 0, size: int = 1) -> tf.data.Dataset:
    """The study's mended pipeline: throw away first, and only names; work last, and in parallel."""
    stream.require_batch(batch_size, "16 is CheXNet's")
    files = _files_of_rank(part, rank, size)
    # Names are shuffled: a cheap mixing of the whole set, that the small buffer of records below cannot give.
    files = files.shuffle(len(part.files), seed=seed)
    # Several files are open at once, so a batch comes from several shards, and reads overlap.
    data = files.interleave(
        tf.data.TFRecordDataset, cycle_length=CYCLE, num_parallel_calls=_AUTOTUNE, deterministic=False
    )
    # Reading goes on while records are worked on.
    data = data.prefetch(batch_size)
    # Records, not images: a twelfth of the memory.
    data = data.shuffle(SHUFFLED, seed=seed)
    data = data.repeat()
    # Fused by tf.data into one stage that writes each image into its place in the batch, in parallel.
    data = data.map(_parser(part, seed), num_parallel_calls=_AUTOTUNE)
    data = data.batch(batch_size, drop_remainder=True)
    data = data.prefetch(1)
    options = _options()
    options.experimental_optimization.map_and_batch_fusion = True
    return data.with_options(options)


def best_order(part: Part, *, batch_size: int, seed: int, rank: int = 0, size: int = 1) -> tf.data.Dataset:
    """The pipeline that `lms3d.train` calls."""
    return pipeline.training_dataset(part, batch_size=batch_size, seed=seed, rank=rank, size=size)


ORDERS = {"old": old_order, "new": new_order, "best": best_order}


def _files_of_rank(part: Part, rank: int, size: int) -> tf.data.Dataset:
    """Names of this rank's files. Dealt out before anything is opened: no rank reads what another one uses."""
    if len(part.files) < size:
        raise DataError(
            f"{part.files[0]}: found {len(part.files)} shards for {size} ranks; expected at least one for each; "
            "use fewer ranks, or the best order, which deals out images"
        )
    return tf.data.Dataset.from_tensor_slices(part.files).shard(size, rank)


_FEATURES = {"image": tf.io.FixedLenFeature((), tf.string), "labels": tf.io.FixedLenFeature((len(FINDINGS),), tf.int64)}


def _parser(part: Part, seed: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """A record -> image (N, N, 3), labels (14,)."""
    resolution = part.resolution

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_single_example(record, _FEATURES)
        grey = tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), (resolution, resolution, 1))
        image = tf.image.random_flip_left_right(tf.repeat(grey, 3, axis=2), seed=seed)
        image = (tf.cast(image, tf.float32) / 255 - IMAGENET_MEAN) / IMAGENET_STD
        return image, tf.cast(features["labels"], tf.float32)

    return parse


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # An image stays with one thread and in its core's cache: old has no other, new has one for each of many images.
    options.threading.max_intra_op_parallelism = 1
    # Ranks are dealt their share above, in plain sight.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options
