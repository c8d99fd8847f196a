"""`python -m experiments.cluster_comparison A.json B.json`: how much faster is one environment than another?

The article compares bare metal and Kubernetes.

1. Both files come from `experiments.resnet50_benchmark`, or both from `experiments.scaling` (CheXNet, isensee2017, ...), and are of
   the same work: network, image size, batch and precision.
2. At each number of ranks that both have, the difference in per cent is A's images/s over B's, less one.
3. Its 95 % interval (Welch's t) says whether the laps tell the two apart; a lap of `experiments.scaling` is an epoch.
4. What differs besides, processor, kernel or library, is listed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lms3d import cli, errors
from lms3d.experiments.feeding import accepted
from lms3d.experiments.feeding.accepted import COMPARED, ClusterResult, RankSpeed, difference
from lms3d.experiments.harness import command, page
from lms3d.experiments.harness.store import Record
from lms3d.experiments.harness.table import cell, markdown, of_records, write_csv

_EPILOG = """\
examples:
  python -m experiments.cluster_comparison bare-metal/result.json kubernetes/result.json
  python -m experiments.cluster_comparison a/result.json b/result.json --labels "bare metal" Kubernetes --output comparison

writes into --output: comparison.csv, comparison.md"""

_NOTES = """\
Images/s: of all ranks together, mean ± std of a lap. Difference: how much faster the first is than the second, ± half of the
95 % interval of that; "not told apart" if the interval holds 0."""

KINDS = {"synthetic": "synthetic data", "real": "real data", "strong": "strong scaling", "weak": "weak scaling"}
COLUMNS = (
    "data", "ranks", "images_per_second_a", "std_a", "images_per_second_b", "std_b", "difference", "half_interval",
    "efficiency_a", "efficiency_b",
)  # fmt: skip


def _compare(options: argparse.Namespace, typed: str) -> None:
    a, b = accepted.read(options.a), accepted.read(options.b)
    labels = options.labels or [a.label, b.label]
    if labels[0] == labels[1]:
        raise errors.InputError(f"both files are labelled {labels[0]!r}; tell them apart with --labels")
    found = pairs(a, b)
    output = command.folder(options)
    write_csv(output / "comparison.csv", COLUMNS, found, "{:.6g}".format)
    sections = [f"# {labels[0]} and {labels[1]}", table_of(found, labels), summary(found, labels), unlike(a, b, labels)]
    machines = [
        f"{label}: {accepted.machines_in_words(one.machines)}." for label, one in zip(labels, (a, b), strict=True)
    ]
    conditions = f"{_work(a)}. {' '.join(machines)} Made by `{typed}`."
    page.publish(output / "comparison.md", [*sections, _NOTES, conditions])


def pairs(a: ClusterResult, b: ClusterResult) -> list[Record]:
    """A record with COLUMNS and the table's cells, for each number of ranks and kind of data that both have.

    InputError if they did different work, or have nothing in common."""
    for name in COMPARED:
        if a.settings[name] != b.settings[name]:
            raise errors.InputError(
                f"{name}: found {a.settings[name]} in {a.path} and {b.settings[name]} in {b.path}; expected the same work in "
                f"both; run the benchmark again with the same --{name.replace('_', '-')}"
            )
    others = {(point.data, point.ranks): point for point in b.points}
    shared = [point for point in a.points if (point.data, point.ranks) in others]
    if not shared:
        raise errors.InputError(
            f"{a.path} has {_listed(a)} and {b.path} has {_listed(b)}; expected a number of ranks that both have; run the "
            "benchmark again with the same --ranks"
        )
    return [_record(point, others[point.data, point.ranks]) for point in shared]


def _record(a: RankSpeed, b: RankSpeed) -> Record:
    """The same number of ranks on the same data, in two environments. difference: 0.08 if the first is 8 % faster."""
    share, half = difference(a.speed, b.speed)
    spread = "" if half is None else f" ± {100 * half:.1f}"
    return {
        "data": a.data, "kind": KINDS.get(a.data, a.data), "ranks": a.ranks, **_side("a", a), **_side("b", b),
        "difference": share, "half_interval": half, "faster": f"{100 * share:+.1f}{spread} %",
        "sure": "not told apart" if half is not None and abs(share) <= half else "",
    }  # fmt: skip


def _side(name: str, point: RankSpeed) -> Record:
    mean, std = point.speed.mean, point.speed.std
    speed = f"{mean:.4g}{cell(std, ' ± {:.2g}'.format)}"
    values = {"images_per_second": mean, "std": std, "efficiency": point.efficiency, "speed": speed}
    return {f"{figure}_{name}": value for figure, value in values.items()}


def table_of(found: Sequence[Record], labels: Sequence[str]) -> str:
    """A table in article 4's form, with a row for each number of ranks."""
    heads = ("", "ranks", *(f"{label}, images/s" for label in labels), f"{labels[0]} is faster by", "")
    names = ("kind", "ranks", "speed_a", "speed_b", "faster", "sure")
    return of_records(found, {name: (head, str) for name, head in zip(names, heads, strict=True)})


def summary(found: Sequence[Record], labels: Sequence[str]) -> str:
    """The largest difference, in words."""
    largest = max(found, key=lambda one: abs(one["difference"]))
    first, second = labels if largest["difference"] >= 0 else (labels[1], labels[0])
    rates = (largest["images_per_second_a"], largest["images_per_second_b"])
    more = max(rates) / min(rates) - 1
    ranks = f"{largest['ranks']} rank{'s' if largest['ranks'] > 1 else ''}, {largest['kind']}"
    sure = " (within what laps differ by themselves)" if largest["sure"] else ""
    return f"The largest difference: {first} trains {more:.1%} more images/s than {second} with {ranks}{sure}."


def unlike(a: ClusterResult, b: ClusterResult, labels: Sequence[str]) -> str:
    """A table of the properties of the machines and the versions of libraries in which the two differ."""
    rows = []
    names = list(dict.fromkeys(name for result in (a, b) for machine in result.machines for name in machine))
    for name in names:
        sides = ["; ".join(sorted({str(m.get(name) or "none") for m in r.machines})) or "not told" for r in (a, b)]
        rows.append([name.replace("_gib", ", GiB"), *sides])
    for name in dict.fromkeys((*a.versions, *b.versions)):
        rows.append([name, *(result.versions.get(name, "none") for result in (a, b))])
    different = [row for row in rows if row[1] != row[2]]
    if not different:
        return "Machines and versions are the same in both."
    return "They differ in:\n\n" + markdown(("", *labels), different)


def _listed(result: ClusterResult) -> str:
    return ", ".join(f"{point.data} {point.ranks}" for point in result.points) or "nothing"


def _work(result: ClusterResult) -> str:
    what = result.settings
    return f"{what['model']} at resolution {what['resolution']}, batches of {what['batch_size']} a rank, {what['precision']}"


def _options(parser: cli.Parser) -> None:
    add = parser.add_argument
    add("a", type=cli.path, metavar="A.json", help="result.json of the first environment")
    add("b", type=cli.path, metavar="B.json", help="result.json of the second environment")
    add("--labels", nargs=2, metavar=("A", "B"), default=None, help="their names (default: those in the files)")
    command.add_output(parser, "cluster-comparison")


main, _parser = command.of(
    "cluster_comparison", _compare, _options, __doc__, _EPILOG, exits={2: "wrong option or file"}
)


if __name__ == "__main__":
    sys.exit(main())
