"""Random ways to plan a function: every planner, with any parameters, limit, tier and effort; and slabs."""

from __future__ import annotations

from hypothesis import strategies as st

from experiments.fuzzing.function_checks import Way
from lms3d.engine.planners import tflms

tiers = st.sampled_from(["host", "disk", "mapped"])
shares = st.floats(0.5, 1.1)
links = st.sampled_from([1e6, 1e8, 1e10])
parameters = st.builds(
    tflms.Parameters,
    swapout_threshold=st.integers(1, 12),
    swapin_ahead=st.integers(1, 12),
    swapin_groupby=st.integers(-1, 6),
    sync_mode=st.integers(0, 3),
    serialization=st.lists(st.one_of(st.integers(-3, 9), st.sampled_from(["3:5", "::2", "4:"]))).map(tuple),
    n_tensors=st.sampled_from([None, None, None, 1, 5]),
)
_by_levels = st.builds(Way, st.just("tflms"), tiers, parameters=parameters, twice=st.booleans())
_tuned = st.builds(Way, st.just("tflms"), tiers, shares, link=links)
_uniform = st.builds(
    Way,
    st.sampled_from(["swap_everything", "recompute_everything", "recompute_all_but_convolutions"]),
    tiers,
    twice=st.booleans(),
)
_hybrid = st.builds(
    Way,
    st.just("hybrid"),
    tiers,
    shares,
    pool=st.sampled_from(["none", "none", "none", "single", "split"]),
    link=links,
    effort_seconds=st.just(0.375),
    guarded=st.booleans(),
    twice=st.booleans(),
)
ways = st.one_of(_by_levels, _tuned, _uniform, _hybrid, _hybrid)
slabs = st.sampled_from([((0, 2),), ((0, 4), (1, 2)), ((0, 3), (1, 2), (2, 2))])
sliced_ways = st.builds(
    Way,
    st.sampled_from(["hybrid", "swap_everything", "off"]),
    tiers,
    shares,
    link=links,
    effort_seconds=st.just(0.375),
    slabs=slabs,
)
