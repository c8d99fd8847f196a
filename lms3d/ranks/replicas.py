"""The variables of one model on several ranks: made equal, and where they differ by nature, kept apart.

Weights and optimiser hold the same bits on every rank, since every rank adds the same mean of the gradients to the same
start. Each rank's own are: the moving statistics of batch normalisation, between two epoch borders; random states; and the
running sums of the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lms3d.ranks.world import World
from lms3d.training import checkpoint

CHUNK_BYTES = 16 << 20
_ODD = 0x9E3779B1  # random states of ranks are this far apart

Arrays = dict[str, np.ndarray]


def synchronise(model: Any, world: World) -> None:
    """See `World.synchronise`. RuntimeError where the ranks have built different models."""
    import tensorflow as tf

    from lms3d.ranks import horovod

    variables = _unique([*model.variables, *model.optimizer.variables, *checkpoint.metric_variables(model).values()])
    signature = [(tuple(v.shape), str(v.dtype)) for v in variables]
    own = world.from_chief(lambda: signature)
    if any(world.largest([float(signature != own)])):
        raise RuntimeError(
            f"rank {world.rank} of {world.size}: the ranks have built different models; this one has {len(signature)} "
            f"variables, rank 0 has {len(own)}"
        )
    for chunk in _chunks(variables):
        _broadcast(chunk, world)
    for variable in model.variables:
        if _is_random_state(variable):
            state = np.asarray(variable).copy()
            state[0] += np.asarray(world.rank * _ODD).astype(state.dtype)
            variable.assign(state)
    # The buffer that gradients are packed into is made at its first use. Now is early enough to be planned for.
    horovod.average([tf.zeros(2), tf.zeros(2)], "none", "first")


def average_statistics(model: Any) -> None:
    """See `World.average_statistics`."""
    from lms3d.ranks import horovod

    variables = [v for v in model.non_trainable_variables if _is_float(v)]
    if not variables:
        return
    arrays = [np.asarray(v) for v in variables]
    means = horovod.mean(np.concatenate([a.ravel().astype(np.float32) for a in arrays]))
    ends = np.cumsum([a.size for a in arrays])
    for variable, array, end in zip(variables, arrays, ends, strict=True):
        variable.assign(means[end - array.size : end].reshape(array.shape).astype(array.dtype))


# -- what is a rank's own ----------------------------------------------------------------------------------------------


def own_variables(model: Any) -> dict[str, Any]:
    """Those of the model that differ between ranks, by a name that is the same in every process."""
    return {f"own/{index:04d}": v for index, v in enumerate(model.variables) if not v.trainable}


def of_rank(states: Sequence[Mapping[str, np.ndarray]], world: World) -> Arrays:
    """This rank's state of those that `size` ranks had; their mean if it is now another number of ranks."""
    if len(states) == world.size:
        return dict(states[world.rank])
    return {
        name: np.mean([state[name] for state in states], 0, dtype=np.float64).astype(first.dtype)
        for name, first in states[0].items()
        if np.issubdtype(first.dtype, np.floating)
    }


def joined(states: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """The states of all ranks as one, for a file."""
    return {f"ranks/{rank:04d}/{name}": array for rank, state in enumerate(states) for name, array in state.items()}


def split(arrays: Mapping[str, np.ndarray]) -> list[Arrays]:
    """The inverse of `joined`, among other arrays; no states if there are none."""
    found: dict[str, Arrays] = {}
    for path in sorted(part(arrays, "ranks/")):
        _, rank, name = path.split("/", 2)
        found.setdefault(rank, {})[name] = arrays[path]
    return list(found.values())


def part(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """Those whose names begin so."""
    return {name: array for name, array in arrays.items() if name.startswith(prefix)}


def _broadcast(variables: Sequence[Any], world: World) -> None:
    from lms3d.ranks import horovod

    arrays = [np.asarray(v) for v in variables]
    message = horovod.broadcast_on_host(b"".join(a.tobytes() for a in arrays))
    if world.is_chief:
        return
    start = 0
    for variable, array in zip(variables, arrays, strict=True):
        content = message[start : start + array.nbytes]
        variable.assign(np.frombuffer(content, array.dtype).reshape(array.shape))
        start += array.nbytes


def _chunks(variables: Iterable[Any]) -> Iterable[list[Any]]:
    """Variables in groups of some 16 MiB: few messages, and little memory for them."""
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


def _is_random_state(variable: Any) -> bool:
    """How Keras's `SeedGenerator` names its variable: (seed, counter)."""
    return bool(variable.name == "seed_generator_state")


def _is_float(variable: Any) -> bool:
    return "float" in str(variable.dtype)
