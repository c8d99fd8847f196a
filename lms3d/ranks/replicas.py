"""The copies of one model on several ranks: made equal, and what is each rank's own kept apart.

Weights and optimiser hold the same bits on every rank, since every rank adds the same mean of the gradients to the same
start. Each rank has its own moving statistics of batch normalisation between two epoch borders, random states, and running
sums of the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lms3d.ranks.variables import Arrays, is_float, metric_variables
from lms3d.ranks.world import World

CHUNK_BYTES = 16 << 20
_ODD = 0x9E3779B1  # random states of ranks are this far apart


def synchronise(model: Any, world: World) -> None:
    """Gives the model of every rank the variables of rank 0, its optimiser's and its metrics' included.

    Afterwards each rank but rank 0 has random states of its own, made from those of rank 0: dropout differs.
    RuntimeError where the ranks have built different models.
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
    # Horovod makes the buffer for gradients at its first use. Now is early enough to be planned for.
    world.linked.average([tf.zeros(2), tf.zeros(2)], "none", "first")


def average_statistics(model: Any, world: World) -> None:
    """Makes the moving statistics (of batch normalisation), which each rank has from its own samples, their mean."""
    variables = [v for v in model.non_trainable_variables if is_float(v)]
    if world.size == 1 or not variables:
        return
    arrays = [np.asarray(v) for v in variables]
    means = world.average(np.concatenate([a.ravel().astype(np.float32) for a in arrays]))
    ends = np.cumsum([a.size for a in arrays])
    for variable, array, end in zip(variables, arrays, ends, strict=True):
        variable.assign(means[end - array.size : end].reshape(array.shape).astype(array.dtype))


def _require_same(variables: Sequence[Any], world: World) -> None:
    signature = [(tuple(v.shape), str(v.dtype)) for v in variables]
    of_chief = world.from_chief(lambda: signature)
    if any(world.largest([float(signature != of_chief)])):
        raise RuntimeError(
            f"rank {world.rank} of {world.size}: the ranks have built different models; this one has {len(signature)} "
            f"variables, rank 0 has {len(of_chief)}"
        )


def _broadcast(variables: Sequence[Any], world: World) -> None:
    arrays = [np.asarray(v) for v in variables]
    message = world.linked.broadcast(b"".join(a.tobytes() for a in arrays))
    if world.is_chief:
        return
    start = 0
    for variable, array in zip(variables, arrays, strict=True):
        content = message[start : start + array.nbytes]
        variable.assign(np.frombuffer(content, array.dtype).reshape(array.shape))
        start += array.nbytes


def _chunks(variables: Iterable[Any]) -> Iterable[list[Any]]:
    """Variables in groups of about 16 MiB: few messages, and little memory for them."""
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
    """This rank's among the states of all ranks; their mean if there were another number of ranks; {} if there are none."""
    if len(states) == world.size:
        return dict(states[world.rank])
    return {
        name: np.mean([state[name] for state in states], 0, dtype=np.float64).astype(first.dtype)
        for name, first in (states[0] if states else {}).items()
        if np.issubdtype(first.dtype, np.floating)
    }


def joined(states: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """The states of all ranks as one."""
    return {f"ranks/{rank:04d}/{name}": array for rank, state in enumerate(states) for name, array in state.items()}


def split(arrays: Mapping[str, np.ndarray]) -> tuple[Arrays, ...]:
    """The inverse of `joined`, among other arrays; () if there are no states."""
    found: dict[str, Arrays] = {}
    for path in sorted(part(arrays, "ranks/")):
        _, rank, name = path.split("/", 2)
        found.setdefault(rank, {})[name] = arrays[path]
    return tuple(found.values())


def part(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """Those whose names begin with `prefix`."""
    return {name: array for name, array in arrays.items() if name.startswith(prefix)}
