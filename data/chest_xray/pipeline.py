"""Batches of radiographs from shards. Three ways, the same batches: (image (B, N, N, 3) float32 with ImageNet's mean and
standard deviation taken out, labels (B, 14) float32).

| way           | function           | order of samples                                          |
|---------------|--------------------|-----------------------------------------------------------|
| old           | `old_order`        | random: the CheXNet study's pipeline before it was mended |
| new           | `new_order`        | random: the one after                                     |
| best          | `training_dataset` | a function of (seed, sample number): what training uses   |

The three are kept apart stage by stage, so that they can be read, and measured, beside each other. Each makes an endless
stream for one rank of `size`. Source of the first two: "Scaling CheXNet" (Dell HPC & AI lab, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from data import stream
from data.chest_xray.collection import FINDINGS
from data.chest_xray.records import Index, Part
from data.errors import DataError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Per channel, of intensities from 0 to 1: what networks with ImageNet weights expect."""

CYCLE = 10
"""Files that are read in turns in the new order: the study's."""
SHUFFLED = 512
"""Samples in the shuffle buffer: two shards."""

_FLIP = 2  # random stream of a seed; see `data.stream`
_AUTOTUNE = tf.data.AUTOTUNE
_LEVELS = np.arange(256, dtype=np.float32)[:, None] / 255
_TABLE = ((_LEVELS - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)).astype(np.float32)
"""Grey level -> three normalised channels (256, 3)."""


def training_dataset(
    part: Part,
    *,
    batch_size: int,
    seed: int,
    first_sample: int = 0,
    rank: int = 0,
    size: int = 1,
    augment: bool = True,
) -> tf.data.Dataset:
    """The best order: an endless stream in one order for all ranks; pixels come by offset from maps of the shards.

    Least work per image: nothing is parsed, no checksum computed after a shard was first read, and bytes become normalised
    floats in one look-up that writes them where they stay. No rank makes what another one shows, though all draw from one
    shuffling of the whole set. Several batches are made at once (`stream.loaded`).

    first_sample: number of samples to leave out; the rest is exactly what follows them in the stream from 0.
    rank, size: batch k of a rank holds every `size`-th sample from first_sample + k * B * size + rank on.
    augment: mirror half of the images left to right.
    Raises DataError for a batch size below 1, an empty part, and (when it is first read) a damaged shard.
    """
    _check(part, batch_size)
    stream.check_place(first_sample, rank, size)

    def load(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        samples = stream.rank_samples(int(step), batch_size, first_sample, rank, size)
        numbers = [stream.sample_position(seed, len(part), g) for g in samples]
        return _load_batch(part, numbers, [augment and sample_flip(seed, g) for g in samples])

    return stream.loaded(tf.data.Dataset.range(np.iinfo(np.int64).max), load, _signature(part, batch_size))


def validation_dataset(part: Part, *, batch_size: int, rank: int = 0, size: int = 1) -> tf.data.Dataset:
    """This rank's share of the images (every `size`-th, from `rank` on), once; the last batch may be smaller.

    Where it is, the batch axis of `element_spec` is None. A rank without an image of its own gets the first one.
    """
    _check(part, batch_size)
    stream.check_place(0, rank, size)
    share = range(len(part))[rank::size] or range(1)

    def load(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = share[int(step) * batch_size : (int(step) + 1) * batch_size]
        return _load_batch(part, numbers, [False] * len(numbers))

    whole, rest = divmod(len(share), batch_size)
    steps = tf.data.Dataset.range(whole + bool(rest))
    return stream.loaded(steps, load, _signature(part, None if rest else batch_size))


def normalised(grey: np.ndarray) -> np.ndarray:
    """An image (H, W) uint8 as the networks take it: (H, W, 3) float32."""
    return _TABLE[grey]


def sample_flip(seed: int, g: int) -> bool:
    """Whether sample g of the stream is shown mirrored."""
    return bool(np.random.default_rng([abs(seed), _FLIP, g]).integers(2))


def old_order(part: Part, *, batch_size: int, seed: int, rank: int = 0, size: int = 1) -> tf.data.Dataset:
    """The pipeline that starved the study's GPUs. Every rank does the work of all ranks, in one thread."""
    _check(part, batch_size)
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
    _check(part, batch_size)
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


ORDERS = {"old": old_order, "new": new_order, "best": training_dataset}
"""What `experiments.input_pipeline` compares."""


@contextmanager
def named_damage(index: Index) -> Iterator[None]:
    """Turn TensorFlow's "corrupted record" from one of the orders, which names no file, into a DataError that does."""
    try:
        yield
    except tf.errors.DataLossError:
        index.check()
        raise


def _files_of_rank(part: Part, rank: int, size: int) -> tf.data.Dataset:
    """Names of this rank's files. Dealt out before anything is opened: no rank reads what another one uses."""
    if len(part.files) < size:
        raise DataError(
            f"{part.files[0]}: found {len(part.files)} shards for {size} ranks; expected at least one for each; "
            "use fewer ranks, or the best order, which deals out images"
        )
    return tf.data.Dataset.from_tensor_slices(part.files).shard(size, rank)


_FEATURES = {
    "image": tf.io.FixedLenFeature((), tf.string),
    "labels": tf.io.FixedLenFeature((len(FINDINGS),), tf.int64),
}


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


def _load_batch(part: Part, numbers: range | list[int], flips: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Images (B, N, N, 3) float32, normalised, some mirrored, and labels (B, 14) float32."""
    images = stream.aligned_empty((len(numbers), part.resolution, part.resolution, 3), np.float32)
    labels = stream.aligned_empty((len(numbers), len(FINDINGS)), np.float32)
    for image, label, number, flip in zip(images, labels, numbers, flips, strict=True):
        grey = part.image(number)
        # Mirrored by a copy of the bytes: a look-up through a view that runs backwards takes half as long again.
        np.take(_TABLE, grey[:, ::-1].copy() if flip else grey, axis=0, out=image, mode="clip")
        label[:] = part.labels[number]
    return images, labels


def _signature(part: Part, batch_size: int | None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    size = part.resolution
    return tf.TensorSpec((batch_size, size, size, 3)), tf.TensorSpec((batch_size, len(FINDINGS)))


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # An image stays with one thread and in its core's cache: old has no other, new has one for each of many images.
    options.threading.max_intra_op_parallelism = 1
    # Ranks are dealt their share above, where it can be read.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _check(part: Part, batch_size: int) -> None:
    if batch_size < 1:
        raise DataError(f"--batch-size: found {batch_size}; expected at least 1; 16 is CheXNet's")
    if not len(part):
        raise DataError("shards: found no image to load; expected at least one; check the data set")
