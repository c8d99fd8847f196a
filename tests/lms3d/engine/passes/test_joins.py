"""Whatever TensorFlow would join is kept apart: no edge changes a bit, on any processor that oneDNN can play here."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path

import pytest
import tensorflow as tf

import lms3d
from lms3d.engine.passes import joins
from lms3d.engine.passes.base import Target
from lms3d.engine.tensorflow import functions, reading
from tests.lms3d.engine.passes.joined_pairs import SPECS, convolution, gradients, padded
from tests.thorough import also

PROGRAM = ["-m", "tests.lms3d.engine.passes.joined_pairs"]
X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN's pass is for x86 alone")
WIDE = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq"})
"""The instructions of oneDNN's AVX512_CORE."""
KNOWN_PASSES = frozenset(
    """
    AccumulateNV2RemovePass BuildXlaOpsPass CloneConstantsForBetterClusteringPass ClusterScopingPass ColocatePredecessorTreesPass
    EncapsulateSubgraphsPass EncapsulateXlaComputationsPass ForceXlaConstantsOnHostPass FunctionalizeControlFlowForXlaPass
    IncreaseDynamismForAutoJitPass IsolatePlacerInspectionRequiredOpsPass LowerFunctionalOpsPass MarkForCompilationPass
    MklLayoutRewritePass MlirV1CompatGraphOptimizationPass NcclReplacePass ParallelConcatRemovePass PartiallyDeclusterPass
    ReplicateConstantsPass ReportClusteringInfoPass SimplifyIciDummyVariablesPass WeakTypeInferencePass
    """.split()  # noqa: SIM905
)
"""The passes of TensorFlow 2.21. XLA's do nothing without it; on MklLayoutRewritePass see `joins`. The others calculate nothing."""
KNOWN_OPTIMISERS = frozenset(
    {"function_optimizer", "implementation_selector", "model_pruner", "shape_optimizer", "tfg_optimizer"}
)
"""The optimisers of grappler under `functions.execution`. They prune, inline and choose functions, and replace
sizes, which are whole numbers."""


def changes(commands, isa: str, *words: str) -> dict:
    """dtype -> case -> edits that changed a bit."""
    done = commands.run([*PROGRAM, *words], env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa})
    assert done.returncode == 0, done.stderr[-2000:]
    found = {dtype: cases for dtype, cases in json.loads(done.stdout).items() if cases is not None}
    assert "bfloat16" in found or not has_bfloat16(isa)
    return found


def has_bfloat16(isa: str) -> bool:
    """Whether oneDNN surely has kernels for bfloat16 here. It needs AVX-512 for them, of whichever kind."""
    flags = re.search(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return isa in ("AVX512_CORE", "DEFAULT") and WIDE.issubset(flags[1].split() if flags else ())


@X86
@pytest.mark.parametrize("isa", ["SSE41", "AVX2", "DEFAULT", *also("AVX", "AVX512_CORE")])
def test_no_edge_changes_a_bit(commands, isa):
    found = changes(commands, isa)
    assert len(found["float32"]) > 8
    changed = [(dtype, name, edits) for dtype, cases in found.items() for name, edits in cases.items() if edits]
    assert not changed


@X86
def test_they_would_be_joined(commands):
    """As long as this holds, `joins` has something to do."""
    assert changes(commands, "AVX", "joined")["float32"]["JOIN-1"] == ["Conv2D", "BiasAdd"]


@X86
def test_the_passes_that_run_are_known(commands):
    """Another TensorFlow may have more: see how it changes neighbours, and mend `joins` or the lists here."""
    passes = ("meta_optimizer", "optimization_registry", "mkl_layout_pass")
    told = {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_MAX_VLOG_LEVEL": "1",
        "TF_CPP_VMODULE": ",".join(f"{p}=1" for p in passes),
    }
    log = commands.run(PROGRAM, env={**os.environ, **told}).stderr
    assert "MklLayoutRewritePass: rewrote node" in log
    assert not re.findall(r"MklLayoutRewritePass: Merged nodes .*", log)
    ran = set(re.findall(r"Running optimization pass: (\w+)", log))
    assert "MklLayoutRewritePass" in ran <= KNOWN_PASSES
    optimisers = set(re.findall(r"\] (\w+?)(?:\{.*\})?: Graph size after", log)) | set(
        re.findall(r"stub for (\w+)", log)
    )
    assert "model_pruner" in optimisers <= KNOWN_OPTIMISERS


def traced(function) -> tf.Graph:
    graph = functions.trace(function, *(tf.TensorSpec(shape, name=name) for name, shape in SPECS.items())).graph
    joins.keep_apart(graph)
    return graph


def waits_of(graph: tf.Graph) -> dict[str, list[str]]:
    kept_apart = [op for op in graph.get_operations() if op.type in ("Conv2D", "BiasAdd", "BiasAddGrad")]
    return {op.type: [c.name for c in op.control_inputs] for op in kept_apart if op.control_inputs}


def test_the_second_of_each_pair_waits_for_what_the_first_reads():
    graph = traced(lambda *inputs: gradients(padded, *inputs))
    assert waits_of(graph) == {"Conv2D": ["x"], "BiasAdd": ["Pad"], "BiasAddGrad": ["Pad"]}
    edges = sum(len(op.control_inputs) for op in graph.get_operations())
    joins.keep_apart(graph)
    assert sum(len(op.control_inputs) for op in graph.get_operations()) == edges


def test_the_engine_keeps_them_apart():
    lms = lms3d.LMS(swapout_threshold=1, swapin_ahead=1, swapin_groupby=0, sync_mode=0, tier="host")
    specs = [tf.TensorSpec(shape, name=name) for name, shape in SPECS.items()]
    made = lms.rewrite(functions.trace(lambda *inputs: gradients(convolution, *inputs), *specs))
    assert {"BiasAdd": ["x"], "BiasAddGrad": ["x"]}.items() <= waits_of(made.graph).items()
    lms.close()


def test_volumes_are_left_alone():
    """oneDNN's pass has no such joins for them."""

    def volume(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.nn.conv3d(x[:, None], kernel[None], [1] * 5, "SAME"), bias)

    assert not waits_of(traced(volume))


def test_in_the_branches_of_an_if_too():
    def step(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return tf.cond(x[0, 0, 0, 0] > 0, lambda: convolution(x, kernel, bias), lambda: convolution(-x, kernel, bias))

    graph = traced(step)
    (choice,) = [op for op in graph.get_operations() if op.type in ("If", "StatelessIf")]
    branches = reading.branches(choice)
    assert [waits_of(branch).keys() for branch in branches.values()] == [{"BiasAdd"}] * 2


@pytest.mark.parametrize("in_a_branch", [False, True])
def test_a_pair_that_can_be_joined_is_told(in_a_branch):
    def step(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        if not in_a_branch:
            return convolution(x, kernel, bias)
        return tf.cond(x[0, 0, 0, 0] > 0, lambda: convolution(x, kernel, bias), lambda: x)

    function = functions.trace(step, *(tf.TensorSpec(shape, name=name) for name, shape in SPECS.items()))
    one = joins.KeepApart(Target())
    with pytest.raises(RuntimeError, match=r"pass joins: '.*' and '.*' can still be joined"):
        one.ensures(function)
    one.run(function)
    one.ensures(function)
