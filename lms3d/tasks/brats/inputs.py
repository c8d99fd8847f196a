"""From the arguments of `lms3d.evaluate` to a plan: which folders, which cases, which rules."""

from __future__ import annotations

from collections.abc import Sequence

from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.schema import REGIONS, schema_named
from lms3d.data.errors import NoCaseError
from lms3d.data.volumes.labels import LabelSchema
from lms3d.errors import InputError
from lms3d.scoring import rules as challenge
from lms3d.scoring.rules import Rules
from lms3d.tasks.volumes import codings, inputs
from lms3d.tasks.volumes.inputs import Folder, Pools, ScoringPlan, Truth
from lms3d.tasks.volumes.label_maps import Predictions
from lms3d.tasks.volumes.plain_folders import PlainFolder


def plan(
    folders: Sequence[Folder],
    *,
    truth: str | None = None,
    labels: str | None = None,
    scoring: str | None = None,
    prediction_labels: str | None = None,
    pools: Pools | None = None,
) -> ScoringPlan:
    """See `lms3d.tasks.volumes.inputs.plan`.

    truth: the folder of the data set; None takes the one that was predicted from. labels: the name of its schema, if file names do
    not tell. scoring: the rules; None takes the rules of the labels. prediction_labels: the coding of plain folders; None takes
    that of the truth.
    """
    compared = _truth(folders, truth, labels)
    schema = compared.schema
    own = codings.coding(prediction_labels) if prediction_labels else schema
    known = [own if isinstance(one, PlainFolder) else schema_named(one.schema) for one in folders]
    chosen = challenge.select(scoring, schema.name, compared.cases)
    notes = [
        challenge.guessed(chosen, scoring, schema.name, compared.cases), _left_out(schema, chosen),
        *(_unmarked(one.label, coding, schema, chosen) for one, coding in zip(folders, known, strict=True)),
    ]  # fmt: skip
    return inputs.plan(folders, compared, known, chosen, channel="flair", drawn=REGIONS, notes=notes, pools=pools)


def _truth(folders: Sequence[Folder], truth: str | None, labels: str | None) -> Truth:
    ours = next((one for one in folders if isinstance(one, Predictions)), None)
    if truth is None and ours is None:
        raise InputError(
            f"--truth: found none, and {folders[0].directory} does not tell where its images come from; expected the data "
            "set with the true label maps; name its folder"
        )
    root = truth or (ours.data if ours else "")
    known = labels or (None if truth or ours is None else ours.schema_of_truth)
    try:
        cases, schema = find_cases(root, labels=known, require_truth=False, require_complete=False)
    except NoCaseError as error:
        bare = inputs.label_maps_alone(root) if ours is None else {}
        if bare and not labels:
            raise InputError(f"{error}; of label maps alone, say with --labels what their values mean") from None
        if not (bare and labels):
            raise
        return Truth(root=root, cases=bare, schema=schema_named(str(labels)))
    known_truth = {case.id: case for case in cases if case.truth is not None}
    return Truth(root=root, cases=known_truth, schema=schema)


def _left_out(schema: LabelSchema, rules: Rules) -> str:
    """A note on the regions that the labels do not have: they are not scored, and join no lesions; "" if there are none."""
    without = [region for region in rules.needed if codings.values_of(schema, region) is None]
    joining = {other for names in rules.merge_touching.values() for other in names}
    joins = [region for region in without if region in joining]
    if not without:
        return ""
    merges = f", and no lesions are joined because they touch {' or '.join(joins)}" if joins else ""
    return f"{', '.join(without)} of {rules.name} left out{merges}: the labels of {schema.name} do not have them"


def _unmarked(label: str, coding: LabelSchema, schema: LabelSchema, rules: Rules) -> str:
    """A note on the regions of the truth that a prediction has no labels for: they count as empty, as the challenge counts them."""
    of_truth, own = (codings.regions_of(one, rules.needed) for one in (schema, coding))
    without = [region for region in of_truth if region not in own]
    if not without:
        return ""
    return f"{label} has labels of {coding.name}, without {', '.join(without)}: scored as if nothing were marked there"
