"""Some of the random functions of `python -m tests.stress graphs`: not a bit changes, sliced no more than rounding."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from lms3d.engine.planners import tflms
from lms3d.engine.tensorflow import functions
from tests.stress import graphs
from tests.stress.function_checks import Bench, Ran, Way
from tests.stress.functions import BINARY, UNARY, Node, Recipe

BY_LEVELS = tflms.Parameters(swapout_threshold=1, swapin_ahead=1, swapin_groupby=0, sync_mode=0)


@pytest.mark.parametrize(("name", "cases"), [("functions", 20), ("slabs", 3)])
def test_random_functions(name, cases):
    result, _ = graphs.batch(name, 0, cases)
    assert not result.wrong, result.wrong
    assert result.counts["cases"] > 0


def test_every_kind_runs_and_swaps():
    """All kinds in a few functions, so that a kind that TensorFlow refuses does not drop out in silence."""
    kinds = [*UNARY, *BINARY]
    for first in range(0, len(kinds), 15):
        chosen = kinds[first : first + 15]
        nodes = [Node(k, (1, 4) if k in BINARY else (1,)) for k in chosen]
        bench = Bench(Recipe((Node("tanh"), *nodes, Node("add", (1, len(nodes))))))
        plan = bench.check(Way("tflms", "disk", parameters=BY_LEVELS))
        assert len(plan.swap_outs) > 5


def test_constants_are_not_multiplied_first():
    """Found by seed 900: in the gradient of GELU, only if no tensor between the constants was swapped."""
    bench = Bench(Recipe((Node("tanh"), Node("tanh"), Node("gelu"))))
    plan = bench.check(Way("hybrid", link=1e6, effort_seconds=0.375, twice=True))
    assert plan.recomputes


def test_state_is_compared():
    """Two steps with other results, or another state, are told apart."""
    one, other = Ran([np.zeros(2)]), Ran([np.zeros(2)])
    assert not one.differs(other)
    assert one.differs(Ran([-np.zeros(2)]))
    bench = Bench(Recipe((Node("tanh"), Node("assign"), Node("tanh"), Node("uniform"))))
    function = functions.make_function(bench.traced())
    assert not bench.run(function).differs(bench.plain)
    assert bench.run(function).differs(bench.plain)  # its random numbers went on
    bench.batches = [b + 1 for b in bench.batches]
    with pytest.raises(AssertionError, match="other bits"):
        bench.expect(bench.run(functions.make_function(bench.traced())), _constant(bench))


def _constant(bench: Bench):
    made = functions.trace(lambda x: [x, x[:, :2], tf.reduce_sum(x), x], bench.spec)
    bench._unedited = lambda: bench.plain
    return functions.make_function(made)
