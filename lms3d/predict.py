"""`python -m lms3d.predict`: applies a trained run; writes tumours as NIfTI files, findings in radiographs as a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lms3d import cli, command_options, errors
from lms3d.units import parse_size

_DESCRIPTION = """\
Apply a trained run. RUN_DIR is what `python -m lms3d.train --output RUN_DIR` made, or the file that
`python -m lms3d.package RUN_DIR` made of it, which has no validation cases and therefore needs --data.

Volumes: every case becomes two label maps: one on the grid of its original files, with their orientation and
position, which any viewer lays over them; and one in the cube of the network. Without --data the validation cases of
the run are segmented. With --data every case of that folder is, whether it has a true label map or not. The folder may hold
DICOM series instead: CASE/CHANNEL, with one series in each folder.

Chest X-rays: every image becomes a line of predictions.csv, with the probabilities of 14 findings. Without --data these
are the test images of the run. With --data they are all images of a ChestX-ray14 folder, or of any folder of PNGs."""

_EPILOG = """\
examples:
  python -m lms3d.predict runs/192
  python -m lms3d.predict runs/192 --data ~/new_patients --output ~/segmented --tta
  python -m lms3d.predict runs/fold0 runs/fold1 runs/fold2 --data ~/new_patients --output ~/segmented
  python -m lms3d.predict runs/densenet121-224 --data ~/radiographs
  python -m lms3d.predict tumours.lms3d --data ~/new_patients        # a package; writes tumours-predictions beside it

writes into --output: native/<case>.nii.gz, cube/<case>.nii.gz, uncertainty/<case>.nii.gz (with --uncertainty),
predictions.json, or predictions.csv; score them with lms3d.evaluate
exit codes: 0 done, 2 wrong option or wrong input, 3 does not fit into the memory limit, 130 interrupted"""

_TTA = (
    "average over symmetries: those of --symmetries for a volume, an image and its mirror image; as many times slower"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Open the run and the data, start TensorFlow, predict. Returns the exit code."""
    return errors.run(lambda: _predict(_parser().parse_args(arguments)))


def _predict(options: argparse.Namespace) -> None:
    from lms3d import atomic_files, console, tasks
    from lms3d.data import pseudonyms
    from lms3d.errors import InputError
    from lms3d.tasks.packages import package
    from lms3d.tasks.task import PredictRequest
    from lms3d.training.run_lock import RunLock

    pseudonyms.start(options.anonymous)
    if options.symmetries and not options.tta:
        raise InputError(
            f"--symmetries {options.symmetries}: without --tta there is no mean over them; add --tta or leave it out"
        )

    asked = {"lms": options.lms, "limit_bytes": options.memory_limit, "slabs": options.slabs}
    asked["workspace_bytes"] = options.cudnn_workspace
    paths: list[Path] = options.run_dir
    runs = tuple(package.trained_run(path, first=number == 0, **asked) for number, path in enumerate(paths))
    if not options.data and (file := next((path for path in paths if path.is_file()), None)):
        raise InputError(f"{file} is a package, which has no validation cases; name cases or images with --data")
    if len(runs) > 1 and not options.output:
        raise InputError("--output: an ensemble belongs to none of its runs; name a folder")
    output = options.output or runs[0].default_output
    atomic_files.writable_folder(output, "--output")
    with RunLock() as lock, console.progress() as progress:
        if not lock.take(output):  # two of them would leave a mixture under one name
            raise InputError(
                f"--output {output} is in use by {lock.holder(output)}; wait until that has ended, or choose another"
            )
        title, rows = tasks.task_of(runs[0].trained).predict(PredictRequest(
            runs=runs, remove_below_ml=options.remove_below, cases=options.cases,
            data=options.data, labels=options.labels, output=output,
            tta=(options.symmetries or "all") if options.tta else None, uncertainty=options.uncertainty,
            form=options.format, progress=progress,
        ))  # fmt: skip
    console.summary(title, rows)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m lms3d.predict", description=_DESCRIPTION, epilog=_EPILOG)
    add = parser.add_argument
    several = "folder of a trained run, or a package; the probabilities of several are averaged"
    place = cli.checked(cli.place, "path")
    add("run_dir", type=place, metavar="RUN_DIR", nargs="+", help=several)
    what = "cases or images (default: the run's validation cases or test images; a package needs it)"
    add("--data", type=place, metavar="DIR", default=None, help=what)
    some = "only these cases of --data: a text file with a name on each line (default: all)"
    add("--cases", type=cli.path, metavar="FILE", default=None, help=some)
    add("--labels", metavar="SCHEMA", default=None, help="what labels mean, if file names do not tell")
    where = "where to write (default: RUN_DIR/predictions; for a package NAME.lms3d, NAME-predictions beside it)"
    add("--output", type=place, metavar="DIR", default=None, help=where)
    add("--tta", action="store_true", default=False, help=_TTA)
    which = "with --tta, for a volume: all that keep its shape (48 of a cube), the 8 flips, or left and right (default: all)"
    add("--symmetries", choices=("all", "flips", "mirror"), default=None, help=which)
    forms = "nifti, or with DICOM-SEG files beside them, if --data are DICOM series (default: nifti)"
    add("--format", choices=("nifti", "dicom-seg"), default="nifti", help=forms)
    entropy = "write the entropy of the probabilities (of the mean, with --tta or several runs) in nats, as a map for each case"
    add("--uncertainty", action="store_true", default=False, help=entropy)
    least = "remove connected parts of a tumour or an organ below this volume from the label maps on the files' grid (default: 0)"
    add("--remove-below", type=cli.number(0), metavar="ML", default=0.0, help=least)
    lms = "use LMS if the network does not fit (default: as the run was trained; yes for a package)"
    add("--lms", action=argparse.BooleanOptionalAction, default=None, help=lms)
    limit = "hard limit on device memory, such as 6GiB (default: as the run was trained; none for a package)"
    add("--memory-limit", type=cli.checked(parse_size, "size"), metavar="SIZE", default=None, help=limit)
    command_options.add_workspace_option(parser)
    command_options.add_slabs_option(parser)
    cli.add_anonymous_option(parser)
    parser.set_defaults(anonymous=False)
    parser.set_defaults(slabs="auto", cudnn_workspace=None)
    return parser


if __name__ == "__main__":
    sys.exit(main())
