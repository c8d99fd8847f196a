"""Groups of ops as programs that XLA compiles: how they are made, and their costs, compiled and one by one.

PROGRAM-1  A program holds copies of the ops. Their arguments and small constants are constants in it. TensorFlow's gradients of
           Sqrt, Rsqrt and Reciprocal are 0 wherever nothing comes from above, also at 0; XLA's are NaN there, so a program masks
           them.
PROGRAM-2  Equal programs have one name, so that a process compiles them once, however often a step is traced.
PROGRAM-3  A group is not compiled if XLA has no kernel for an op of it, or if its program fails alone for another reason.
PROGRAM-4  The ops and the program are timed on random numbers in turn, several times, and the fastest run of each counts. The times
           are kept in the cache folder for all memory limits: all plans of a step with programs have the same programs, and bits.
PROGRAM-5  A group that takes too large a part of the free memory is not timed, and stays as it was traced. Another process may time
           it; within a process no group is decided on twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from lms3d.common.disk import cache_directory
from lms3d.engine import tuning
from lms3d.engine.fusion import Program
from lms3d.engine.hlo import temporary_bytes
from lms3d.engine.tensorflow import functions, op_costs, probing, reading, speeds
from lms3d.engine.tensorflow.bodies import size
from lms3d.engine.tensorflow.capture import signature
from lms3d.engine.tensorflow.probing import Cost

log = logging.getLogger("lms3d")

_VERSION = 1

_MASKED_GRADIENTS = frozenset({"ReciprocalGrad", "RsqrtGrad", "SqrtGrad"})

Function: TypeAlias = tf.types.experimental.ConcreteFunction


@dataclass(frozen=True)
class Pair:
    """The seconds of a group's ops one by one, and of their program, with the program's workspace."""

    plain_seconds: float
    seconds: float
    workspace_bytes: int


def _masked(made: tf.Operation) -> Sequence[tf.Tensor]:
    """The outputs of a copied op, as TensorFlow's kernel has them (PROGRAM-1)."""
    if made.type not in _MASKED_GRADIENTS:
        return made.outputs
    _, above = made.inputs
    return [tf.where(above == 0, tf.zeros_like(above), made.outputs[0])]


class ProgramCandidate:
    """A program that the step may have. folded: values of the tensors that it holds as constants."""

    def __init__(self, graph: tf.Graph, program: Program, folded: Mapping[str, np.ndarray]) -> None:
        self.graph, self.program, self.folded = graph, program, folded

    @cached_property
    def body(self) -> Function:
        """The function that is compiled."""
        names = [*self.program.rematerialised, *self.program.computed]
        return self._function(names, self.program.inputs, _masked)

    @cached_property
    def plain(self) -> Function:
        """The ops as they were traced."""
        return self._function(self.program.computed, self.program.plain_inputs)

    @cached_property
    def compiled(self) -> functions.XlaProgram:
        return functions.XlaProgram(self.body)

    @property
    def key(self) -> str:
        return f"{self.compiled.name} {reading.digest(self.plain)}"

    @property
    def bytes(self) -> int:
        """The bytes of all tensors that the program or its ops read and return."""
        names = {*self.program.inputs, *self.program.plain_inputs, *self.program.outputs}
        return sum(size(self.graph.get_tensor_by_name(name)) or 0 for name in names)

    def _function(
        self,
        names: Sequence[str],
        inputs: Sequence[str],
        corrected: Callable[[tf.Operation], Sequence[tf.Tensor]] = lambda made: made.outputs,
    ) -> Function:
        """A function of copies of these ops (PROGRAM-1). corrected: see `functions.copy_ops`."""
        ops = [self.graph.get_operation_by_name(name) for name in names]
        read = {t.name: t for op in ops for t in op.inputs}

        def run(*passed: tf.Tensor) -> list[tf.Tensor]:
            given = dict(zip(inputs, passed, strict=True))
            given |= {n: tf.constant(self.folded[n], t.dtype) for n, t in read.items() if n in self.folded}
            tensors = functions.copy_ops(ops, given, corrected)
            return [tensors[name] for name in self.program.outputs]

        return functions.trace(run, *(self._spec(name) for name in inputs))

    def _spec(self, name: str) -> tf.TensorSpec:
        tensor = self.graph.get_tensor_by_name(name)
        return tf.TensorSpec(tensor.shape, tensor.dtype)


class Costs:
    """The costs of pairs on a device, measured or remembered. most_bytes: the most that a pair may take to be timed (PROGRAM-5)."""

    def __init__(self, device: str, most_bytes: int) -> None:
        self.device, self.most_bytes, self.measured = device, most_bytes, 0
        self.known = _known.setdefault((_store(), _conditions(device)), _load(device))

    def pair(self, candidate: ProgramCandidate) -> Pair | None:
        """The costs of a candidate; None if it cannot be compiled, or cannot be timed now."""
        key = candidate.key
        if key not in self.known:
            with speeds.one_at_a_time(_store()):
                for one, pair in _load(self.device).items():  # another rank may have measured meanwhile
                    self.known.setdefault(one, pair)
                if key not in self.known:
                    self.known[key] = self._decided(candidate, key)
        return self.known[key]

    def _decided(self, candidate: ProgramCandidate, key: str) -> Pair | None:
        """The costs of a candidate that nobody has timed; None if it is too large (PROGRAM-5)."""
        if candidate.bytes > self.most_bytes:
            log.debug("lms: %s is too large to be timed as a program", candidate.program.name)
            return None
        self.measured += 1
        return self._measured(candidate, key)

    def keep(self, call: tf.Operation, pair: Pair) -> None:
        """Stores a program's costs for the op that calls it, unless they are known under today's conditions."""
        cost = Cost(pair.seconds, workspace_bytes=pair.workspace_bytes)
        op_costs.keep_unknown({signature(call, self.device): cost}, self.device)

    def _measured(self, candidate: ProgramCandidate, key: str) -> Pair | None:
        """The costs of a candidate, timed and stored. A shortage of memory is not stored for later processes (PROGRAM-5)."""
        try:
            pair = self._timed(candidate)
        except (ValueError, TypeError, NotImplementedError, tf.errors.OpError) as error:  # PROGRAM-3
            log.debug("lms: %s is not compiled: %s", candidate.program.name, error)
            if isinstance(error, tf.errors.ResourceExhaustedError):
                return None
            pair = None
        _save(self.device, key, pair)
        return pair

    def _timed(self, candidate: ProgramCandidate) -> Pair:
        plain, compiled, workspace = self._both(candidate)
        op_costs.keep({_signature(candidate, self.device): replace(compiled, workspace_bytes=workspace)}, self.device)
        log.debug(
            "lms: %s: %.3g s one by one, %.3g s compiled", candidate.program.name, plain.seconds, compiled.seconds
        )
        return Pair(plain.seconds, compiled.seconds, workspace)

    def _both(self, candidate: ProgramCandidate) -> tuple[Cost, Cost, int]:
        """The costs of the ops one by one and of the program, and the program's workspace (PROGRAM-4)."""
        ways = [
            (functions.make_function(candidate.plain), _specs(candidate.plain)),
            (functions.make_function(_calling(candidate)), _specs(candidate.body)),
        ]
        text = _text(candidate.body, self.device)
        rounds = [[probing.cost_of(*way, self.device) for way in ways] for _ in range(tuning.PROGRAM_ROUNDS)]
        plain, compiled = (min(costs, key=lambda cost: cost.seconds) for costs in zip(*rounds, strict=True))
        return plain, compiled, max(temporary_bytes(text), compiled.workspace_bytes)


_known: dict[tuple[Path, str], dict[str, Pair | None]] = {}
"""(store, conditions) -> the pairs known to this process (PROGRAM-5), even if no file can be written."""


def _specs(function: Function) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(t.shape, t.dtype) for t in function.graph.inputs]


def _calling(candidate: ProgramCandidate) -> Function:
    return functions.trace(lambda *passed: candidate.compiled.call(passed), *_specs(candidate.body))


def _text(body: Function, device: str) -> str:
    """The optimised program, as XLA prints it."""
    with tf.device(device):
        made = tf.function(body, jit_compile=True, autograph=False).experimental_get_compiler_ir(*_specs(body))
        return str(made(stage="optimized_hlo"))


def _signature(candidate: ProgramCandidate, device: str) -> str:
    calls = [op for op in _calling(candidate).graph.get_operations() if reading.is_program(op)]
    return signature(calls[0], device)


# -- the store -----------------------------------------------------------------------------------------------------------


def _store() -> Path:
    return cache_directory() / "programs.json"


def _conditions(device: str) -> str:
    """The conditions of a measurement. The pool is none: steps with and without a limit shall have the same programs
    (PROGRAM-4)."""
    cores = speeds.cores() if device.startswith("CPU") else ""
    parts = [_VERSION, tf.__version__, speeds.device_name(device), cores]
    return " ".join(map(str, parts)) + speeds.kernel_settings(device)


def _load(device: str) -> dict[str, Pair | None]:
    """The stored pairs; none if the file cannot be read."""
    entries = speeds.read_store(_store()).get(_conditions(device))
    try:
        return {key: None if entry is None else _pair(*entry) for key, entry in (entries or {}).items()}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}


def _pair(plain: Any, compiled: Any, workspace: Any) -> Pair:
    pair = Pair(float(plain), float(compiled), int(workspace))
    if not all(math.isfinite(v) and v >= 0 for v in (pair.plain_seconds, pair.seconds, pair.workspace_bytes)):
        raise ValueError(f"found {pair}; expected numbers from 0 on")
    return pair


def _save(device: str, key: str, pair: Pair | None) -> None:
    """Adds a pair to the store."""
    known = _load(device) | {key: pair}
    entries = {k: p and [p.plain_seconds, p.seconds, p.workspace_bytes] for k, p in known.items()}
    speeds.write_store(_store(), speeds.read_store(_store()) | {_conditions(device): entries})
