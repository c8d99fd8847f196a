"""The data that a task on volumes learns from: preprocessed cases, who trains and who validates, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lms3d.console import say
from lms3d.data.words import counted
from lms3d.errors import InputError
from lms3d.ranks.world import World
from lms3d.tasks.volumes.options import VolumeConfig

if TYPE_CHECKING:
    import tensorflow as tf

    from lms3d.data.split import Split
    from lms3d.data.volumes.cache import Cache
    from lms3d.data.volumes.data_set import DataSet
    from lms3d.data.volumes.normalise import Normalisation
    from lms3d.data.volumes.presentation import Presentation
    from lms3d.data.volumes.targets import Targets


_NAMED = 5  # cases that a note names


@dataclass(frozen=True, kw_only=True)
class VolumeMaterial:
    """See `lms3d.training.task.Material`."""

    cache: Cache
    targets: Targets
    split: Split
    normalisation: Normalisation
    batch_size: int
    validation_batch_size: int
    seed: int
    shown: Presentation
    """How training samples are shown."""
    described: Mapping[str, Any] = field(repr=False)

    @property
    def training_count(self) -> int:
        return len(self.split.training)

    @property
    def validation_count(self) -> int:
        return len(self.split.validation)

    def training(self, first_sample: int, world: World) -> tf.data.Dataset:
        from lms3d.data.volumes import pipeline

        return pipeline.training_dataset(
            self.cache, self.targets, self.split.training, self.normalisation, batch_size=self.batch_size,
            seed=self.seed, first_sample=first_sample, rank=world.rank, size=world.size, shown=self.shown,
        )  # fmt: skip

    def validation(self, world: World) -> tf.data.Dataset:
        """Whole volumes, of one shape. A run on patches validates with `lms3d.tasks.volumes.validation`."""
        from lms3d.data.volumes import pipeline

        share, batch = self.validation_share(world), self.validation_batch_size
        return pipeline.validation_dataset(self.cache, self.targets, share, self.normalisation, batch_size=batch)

    def validation_share(self, world: World) -> Sequence[str]:
        """The cases that a rank validates. One without a case of its own evaluates another's, which does not count."""
        return world.share(self.split.validation) or self.split.validation[:1]


def tell_of_unused(unused: Sequence[Path]) -> None:
    """Says how many files of a data set belong to no case (`DataSet.unused`)."""
    if unused:
        stray = counted(len(unused), "file belongs", "files belong")
        say(f"note: {stray} to no case, such as {unused[0]}")


def tell_of_left_out(volumes: Cache) -> None:
    """Names the cases that data.prepare has left out."""
    if volumes.skipped:
        say(
            f"note: {counted(len(volumes.skipped), 'case is', 'cases are')} left out, as data.prepare was asked to: "
            f"{shortened(volumes.skipped)}; why is in {volumes.directory / 'skipped.csv'}"
        )


def shortened(names: Iterable[str]) -> str:
    """The first of these names in sorted order, for a note."""
    ordered = sorted(names)
    return ", ".join(ordered[:_NAMED]) + (", ..." if len(ordered) > _NAMED else "")


def tell_of_cut_off(volumes: Cache, ids: Sequence[str]) -> None:
    """Says for how many of these cases the box holds only a part of the foreground, which is a brain."""
    if not volumes.preprocessing.stretched and (cut := volumes.cut_off(ids)):
        say(f"note: {len(cut)} of {len(ids)} cases do not fit into --box, such as {cut[0]}: what lies outside is lost")


def presentation(options: VolumeConfig, *, evenly: bool = False) -> Presentation:
    """How training samples are shown. evenly: see `Presentation`."""
    from lms3d.data.volumes.distortions import check_names
    from lms3d.data.volumes.presentation import Presentation

    symmetries = options.symmetries if options.augment else "none"
    return Presentation(
        symmetries=symmetries, distortions=check_names(options.distort), patch=options.patch_shape, evenly=evenly
    )


def divided(options: VolumeConfig, run_dir: Path, resuming: bool, found: DataSet, volumes: Cache) -> Split:
    """The split of a resumed run, the one that was given, or a new one. It is saved with the run."""
    from lms3d.data import split
    from lms3d.training import run_folder

    start = None if resuming else _start(options)
    if resuming:
        run_folder.check_data(run_dir, volumes.fingerprint)
        parts = split.load(run_dir / "split.json")
    elif options.split:
        parts = split.without(split.load(options.split), volumes.skipped)
        split.require_undivided(parts, found.patients, options.split)
        if unknown := sorted({*parts.training, *parts.validation} - set(volumes.ids)):
            raise InputError(f"--split {options.split} names case {unknown[0]}, which is not in {options.data}")
    elif options.folds:
        parts = _fold(options, found, volumes)
    else:
        drawn = split.make(volumes.ids, options.seed, options.validation_fraction, patients=found.patients)
        parts = _split_of_the_start(options, start, drawn, found.patients) or drawn
    if start is not None:
        _require_unseen(start, parts, found)
    if not resuming:
        before = tuple(sorted(start.split.trained)) if start else ()
        parts = replace(parts, known_as=found.known_as, seen_before=before)
    split.save(parts, run_dir / "split.json")
    return parts


@dataclass(frozen=True, kw_only=True)
class Start:
    """The run from whose weights this one starts."""

    option: str
    """The option that names it, for messages."""
    path: Path
    """Its split.json."""
    split: Split


def _start(options: VolumeConfig) -> Start | None:
    """The run from which this one starts; None for random weights, and for weights without a split.json, of which a note tells."""
    from lms3d.data import split

    if options.weights is not None:
        option, path = f"--weights {options.weights}", split.of_weights(options.weights)
        if path is None:
            say(f"note: {option}: no split.json of a run lies there; whether these weights have seen patients that validate here, "
                "nobody knows")  # fmt: skip
            return None
    elif options.start_from is not None:
        option, path = f"--start-from {options.start_from}", options.start_from / "split.json"
        if options.start_from.is_file():
            say(
                f"note: {option}: a package does not say whom its weights have seen; patients of its training may validate here"
            )
            return None
        if not path.is_file():
            raise InputError(
                f"{option}: found no split.json there; expected the folder of a run, which says whom its weights have seen; "
                f"restore it, or do without that check: --weights {options.start_from / 'best.keras'}"
            )
    else:
        return None
    return Start(option=option, path=path, split=split.load(path))


def _split_of_the_start(
    options: VolumeConfig, start: Start | None, drawn: Split, patients: Mapping[str, str]
) -> Split | None:
    """The split of the run from which this one starts, if it has the same cases; None otherwise. A new split could let
    patients validate whose scans the weights have learnt from.

    InputError if --validation-fraction asks for another share.
    """
    if start is None or {*start.split.training, *start.split.validation} != {*drawn.training, *drawn.validation}:
        return None
    kept, asked = (len({patients.get(one, one) for one in each.validation}) for each in (start.split, drawn))
    if options.validation_fraction != VolumeConfig.validation_fraction and kept != asked:
        raise InputError(
            f"--validation-fraction {options.validation_fraction}: {start.option} is of a run on the same cases, whose split is "
            f"kept: {kept} patients validate there, not {asked}; leave --validation-fraction out"
        )
    return start.split


def _require_unseen(start: Start, parts: Split, found: DataSet) -> None:
    """InputError if the weights have learnt from a patient who would validate."""
    from lms3d.data import split

    if seen := split.seen(
        parts.validation, start.split.training, found.patients, known_as=found.known_as, names=start.split.trained
    ):
        raise InputError(
            f"{start.option}: its weights have seen {seen[0]}, or another scan of this patient ({counted(len(seen), 'case')} in "
            f"all), which would validate here; add --split {start.path}, or start from another run"
        )


def _fold(options: VolumeConfig, found: DataSet, volumes: Cache) -> Split:
    """The fold that the options name. Folds have a fixed seed: runs with different seeds share them."""
    from lms3d.data import split

    assert options.folds is not None
    patients = {case_id: found.patients[case_id] for case_id in volumes.ids}
    return split.folds(patients, found.grades, options.folds, seed=0)[options.fold]
