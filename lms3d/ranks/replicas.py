"""The copies of one model on several ranks: makes them equal, and keeps apart the variables that differ between ranks.

Weights and optimiser hold the same bits on every rank, because every rank starts from the same values and applies the same mean of
the gradients. If a processor of another make, or one that fails, rounds differently, `equalise` corrects it. Each rank has its own
moving statistics of batch normalisation between two ends of epochs, its own random states, and its own running sums of the metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lms3d.ranks.variables import Arrays, is_float, metric_variables
from lms3d.ranks.world import World

CHUNK_BYTES = 16 << 20
_ODD = 0x9E3779B1  # the distance between the random states of two ranks


def synchronise(model: Any, world: World) -> None:
    """Gives the model of every rank the variables of rank 0, including the optimiser's and the metrics'.

    Afterwards each other rank has random states of its own, derived from rank 0's, so that dropout differs.
    RuntimeError if the ranks have built different models.
    """
    if world.size == 1:
        return
    import tensorflow as tf

    variables = _unique([*model.variables, *model.optimizer.variables, *metric_variables(model).values()])
    _require_same(variables, world)
    for chunk in _chunks(variables):
        _broadcast(chunk, world)
    for variable in model.variables:
        if variable.name == "seed_generator_state":  # Keras's `SeedGenerator`: (seed, counter)
            state = np.asarray(variable).copy()
            state[0] += np.asarray(world.rank * _ODD).astype(state.dtype)
            variable.assign(state)
    # Horovod allocates its buffer for gradients at the first use. Now is early enough for a plan to take it into account.
    world.linked.average([tf.zeros(2), tf.zeros(2)], "none", "first")


def average_statistics(model: Any, world: World) -> None:
    """Replaces the moving statistics of batch normalisation, which each rank has from its own samples, by their mean."""
    variables = [v for v in model.non_trainable_variables if is_float(v)]
    if world.size == 1 or not variables:
        return
    arrays = [np.asarray(v) for v in variables]
    means = world.average(np.concatenate([a.ravel().astype(np.float32) for a in arrays]))
    ends = np.cumsum([a.size for a in arrays])
    for variable, array, end in zip(variables, arrays, ends, strict=True):
        variable.assign(means[end - array.size : end].reshape(array.shape).astype(array.dtype))


def equalise(model: Any, world: World) -> str:
    """Gives every rank the weights and the optimiser state of rank 0, if they are not the same bits on all.

    Returns on every rank which variable differed most, and by how much; "" if none did. If none did, only a digest was sent.
    """
    if world.size == 1:
        return ""
    variables = _unique([*model.trainable_variables, *model.optimizer.variables])
    digest = hashlib.blake2b(digest_size=16)
    for variable in variables:
        digest.update(_bytes(np.asarray(variable)))
    if len(set(world.everyone(digest.hexdigest()))) == 1:
        return ""
    most, place = 0.0, ""
    for chunk in _chunks(variables):
        for variable, array, of_chief in _beside_chief(chunk, world):
            if array.tobytes() != of_chief.tobytes():
                share = _difference(array, of_chief)
                if not place or share > most:
                    most, place = share, f"rank {world.rank}'s {variable.path} by {share:.1e} of its largest value"
                variable.assign(of_chief)
    _, largest = max(world.everyone((most, place)), key=lambda difference: (bool(difference[1]), difference[0]))
    return str(largest)


def _difference(array: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference as a share of the largest value; infinity if that is not finite."""
    difference = np.abs(array.astype(np.float64) - expected.astype(np.float64)).max()
    largest = np.abs(expected.astype(np.float64)).max()
    share = float(difference / largest) if largest else float(difference)
    return share if np.isfinite(share) else float("inf")


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _require_same(variables: Sequence[Any], world: World) -> None:
    signature = [(tuple(v.shape), str(v.dtype)) for v in variables]
    of_chief = world.from_chief(lambda: signature)
    if any(world.largest([float(signature != of_chief)])):
        raise RuntimeError(
            f"rank {world.rank} of {world.size}: the ranks have built different models; this one has {len(signature)} "
            f"variables, rank 0 has {len(of_chief)}"
        )


def _broadcast(variables: Sequence[Any], world: World) -> None:
    for variable, _, of_chief in _beside_chief(variables, world):
        variable.assign(of_chief)


def _beside_chief(variables: Sequence[Any], world: World) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Yields each variable, its value here, and its value on rank 0. Yields nothing on rank 0 itself."""
    arrays = [np.asarray(v) for v in variables]
    message = world.linked.broadcast(b"".join(a.tobytes() for a in arrays))
    if world.is_chief:
        return
    start = 0
    for variable, array in zip(variables, arrays, strict=True):
        content = message[start : start + array.nbytes]
        yield variable, array, np.frombuffer(content, array.dtype).reshape(array.shape)
        start += array.nbytes


def _chunks(variables: Iterable[Any]) -> Iterable[list[Any]]:
    """Yields the variables in groups of about 16 MiB, for few messages that need little memory."""
    chunk: list[Any] = []
    count = 0
    for variable in variables:
        chunk.append(variable)
        count += np.asarray(variable).nbytes
        if count >= CHUNK_BYTES:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


# -- the states of all ranks in one file -------------------------------------------------------------------------------


def of_rank(states: Sequence[Mapping[str, np.ndarray]], world: World) -> Arrays:
    """This rank's state among the states of all ranks; their mean if they are of another number of ranks; {} if there are none."""
    if len(states) == world.size:
        return dict(states[world.rank])
    return {
        name: np.mean([state[name] for state in states], 0, dtype=np.float64).astype(first.dtype)
        for name, first in (states[0] if states else {}).items()
        if np.issubdtype(first.dtype, np.floating)
    }


def joined(states: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """The states of all ranks as one mapping, for a file."""
    return {f"ranks/{rank:04d}/{name}": array for rank, state in enumerate(states) for name, array in state.items()}


def split(arrays: Mapping[str, np.ndarray]) -> tuple[Arrays, ...]:
    """The states that `joined` put among other arrays; () if there are none."""
    states: dict[str, Arrays] = {}
    for path in sorted(part(arrays, "ranks/")):
        _, rank, name = path.split("/", 2)
        states.setdefault(rank, {})[name] = arrays[path]
    return tuple(states.values())


def part(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """The arrays whose names begin with `prefix`."""
    return {name: array for name, array in arrays.items() if name.startswith(prefix)}
