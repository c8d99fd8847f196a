"""Batches of radiographs from shards. Four ways, the same batches: (image (B, N, N, 3) float32 with ImageNet's mean and
standard deviation taken out, labels (B, 14) float32).

| way                | order of samples                    | made for                                                   |
|--------------------|-------------------------------------|------------------------------------------------------------|
| `training_dataset` | a function of (seed, sample number) | training: resumes exactly, equal on any number of ranks     |
| `old_order`        | random                              | the CheXNet study's pipeline before it was mended           |
| `new_order`        | random                              | the one after                                              |
| `best_order`       | random or fixed                     | what today's tf.data can do                                |

The three orders are kept apart stage by stage, so that they can be read, and measured, beside each other. Each makes an
endless stream for one rank of `size`. Source of the first two: "Scaling CheXNet" (Dell HPC & AI lab, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from data import stream
from data.chest_xray import FINDINGS
from data.errors import DataError
from data.records import Index, Part

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
    """An endless stream in one order for all ranks; pixels come by offset from maps of the shards.

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


def best_order(
    part: Part, *, batch_size: int, seed: int, rank: int = 0, size: int = 1, deterministic: bool = False,
    ram_budget_bytes: int = 2 * 2**30, device: str | None = None,
) -> tf.data.Dataset:  # fmt: skip
    """What today's tf.data can do: the new order with less work per image.

    deterministic: the same batches in every run, for a little waiting where files answer unevenly.
    ram_budget_bytes: for cache and buffers together; records are cached when they take at most half of it.
    device: such as "GPU:0": batches are copied there ahead of time.
    """
    _check(part, batch_size)
    files = _files_of_rank(part, rank, size).shuffle(len(part.files), seed=seed)
    # As many files at once, and threads for them, as pay: tf.data finds out while it runs.
    data = files.interleave(
        tf.data.TFRecordDataset, cycle_length=min(CYCLE, len(part.files)), num_parallel_calls=_AUTOTUNE,
        deterministic=deterministic,
    )  # fmt: skip
    stored_bytes = sum(shard.size_bytes for shard in part.shards) // size
    cached = stored_bytes <= ram_budget_bytes // 2
    if cached:
        # Behind what never changes, before what is drawn anew each pass; as records, the smallest form. From the second
        # pass on nothing is read and no checksum computed.
        data = data.cache()
    # What is in memory anyway can be shuffled as a whole.
    data = data.shuffle(-(-len(part) // size) if cached else SHUFFLED, seed=seed)
    data = data.repeat()
    # Records are batched as they are, and then parsed, decoded and normalised by one call per batch: a map call costs
    # tens of microseconds, which small images do not take themselves. Pixels have the network's size since `data.shards`
    # wrote them and stay bytes up to the last operation, which writes the batch once.
    data = data.batch(batch_size, drop_remainder=True)
    data = data.map(_batch_parser(part, batch_size, seed), num_parallel_calls=_AUTOTUNE, deterministic=deterministic)
    options = _options()
    options.autotune.enabled = True
    options.autotune.ram_budget = ram_budget_bytes - (stored_bytes if cached else 0)
    options.deterministic = deterministic
    # As many batches ahead as the budget allows and jitter asks for.
    data = data.prefetch(_AUTOTUNE).with_options(options)
    # Must be the last stage: what follows would fetch the batch back.
    return data.apply(tf.data.experimental.prefetch_to_device(device, 2)) if device else data


ORDERS = {"old": old_order, "new": new_order, "best": best_order}


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
            "use fewer ranks, or `training_dataset`, which deals out images"
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


def _batch_parser(part: Part, batch_size: int, seed: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Records (B,) -> images (B, N, N, 3), labels (B, 14)."""
    shape = (batch_size, part.resolution, part.resolution)

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_example(records, _FEATURES)
        grey = tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), shape)
        mirrored = tf.random.uniform((batch_size, 1, 1), seed=seed) < 0.5
        grey = tf.where(mirrored, tf.reverse(grey, [2]), grey)
        return tf.gather(_TABLE, tf.cast(grey, tf.int32)), tf.cast(features["labels"], tf.float32)

    return parse


def _load_batch(part: Part, numbers: range | list[int], flips: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """Images (B, N, N, 3) float32, normalised, some mirrored, and labels (B, 14) float32."""
    images = stream.aligned_empty((len(numbers), part.resolution, part.resolution, 3), np.float32)
    labels = stream.aligned_empty((len(numbers), len(FINDINGS)), np.float32)
    for image, label, number, flip in zip(images, labels, numbers, flips, strict=True):
        grey = part.image(number)
        np.take(_TABLE, grey[:, ::-1] if flip else grey, axis=0, out=image, mode="clip")
        label[:] = part.labels[number]
    return images, labels


def _signature(part: Part, batch_size: int | None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    size = part.resolution
    return tf.TensorSpec((batch_size, size, size, 3)), tf.TensorSpec((batch_size, len(FINDINGS)))


def _options() -> tf.data.Options:
    options = tf.data.Options()
    # Ranks are dealt their share above, where it can be read.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _check(part: Part, batch_size: int) -> None:
    if batch_size < 1:
        raise DataError(f"--batch-size: found {batch_size}; expected at least 1; 16 is CheXNet's")
    if not len(part):
        raise DataError("shards: found no image to load; expected at least one; check the data set")
