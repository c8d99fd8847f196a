"""Hidden names: all are found, and pseudonyms replace them."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lms3d.data import prepare, pseudonyms
from lms3d.data.brats.layouts import find_cases
from lms3d.data.errors import DataError
from tests.data.small_data import random_case, save, write_case

NAMES = ("Mueller_Hans_1957", "Dr. O'Neill, Pat", "Zoe")
PARTS = ("Mueller", "Hans", "1957", "Neill", "Pat", "Zoe", "ward7", "Grossmann")


@pytest.fixture
def wards(tmp_path) -> Path:
    """Own data in folders with telling names."""
    for number, name in enumerate(NAMES):
        write_case(tmp_path / "set" / "ward7 (Grossmann)" / name, random_case(number))
    return tmp_path / "set"


@pytest.fixture
def hidden(capsys, names_hidden_here) -> None:
    pseudonyms.start()


def no_name_in(text: str) -> bool:
    return not [part for part in PARTS if part in text]


def test_a_name_is_replaced_where_it_is_a_whole_word(hidden):
    pseudonyms.know(["BraTS20_Training_001", "12", "a", "Zoë"])
    one, short = pseudonyms.of("BraTS20_Training_001"), pseudonyms.of("12")
    for text, expected in {
        "/x/BraTS20_Training_001/BraTS20_Training_001_t1.nii.gz": f"/x/{one}/{one}_t1.nii.gz",
        "BraTS20_Training_0011, XBraTS20_Training_001": "BraTS20_Training_0011, XBraTS20_Training_001",
        "12 of 12 cases, case 12: 'native/12.nii.gz'": f"12 of 12 cases, case {short}: 'native/{short}.nii.gz'",
        "as a matter of Zoë": f"as {pseudonyms.of('a')} matter of {pseudonyms.of('Zoë')}",
    }.items():
        assert pseudonyms.hidden(text) == expected


def test_names_as_they_stand_in_messages_and_pages(hidden):
    pseudonyms.know(["O'Neill\\x", "Mu<ller"])
    for text in (repr("O'Neill\\x"), "O'Neill\\x", "O&#x27;Neill\\x", "Mu&lt;ller"):
        assert no_name_in(pseudonyms.hidden(text)), text
        assert "ller" not in pseudonyms.hidden(text)


def test_pseudonyms_are_stable_here_and_nobodys_elsewhere(hidden, tmp_path):
    first = pseudonyms.of("Zoe")
    pseudonyms.forget()
    assert pseudonyms.of("Zoe") == first
    key = tmp_path / "cache/pseudonyms.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.unlink()
    pseudonyms.forget()
    assert pseudonyms.of("Zoe") != first
    key.write_bytes(b"short")
    pseudonyms.forget()
    with pytest.raises(DataError, match=r"pseudonyms.key: found 5 bytes; expected a key of 32"):
        pseudonyms.of("Zoe")


def test_without_the_option_names_are_names(capsys, names_hidden_here, wards):
    pseudonyms.start(False)
    find_cases(wards, labels="brats2020")
    assert pseudonyms.of("Zoe") == pseudonyms.hidden("Zoe") == "Zoe"


DAMAGES = {
    "an image is missing": lambda folder: next(folder.rglob("Zoe_t2.nii.gz")).unlink(),
    "another file is missing": lambda folder: next(folder.rglob("Mueller*_flair.nii.gz")).unlink(),
    "an image is damaged": lambda folder: next(folder.rglob("Dr*_t1.nii.gz")).write_bytes(b"no image"),
    "a case is there twice": lambda folder: write_case(folder / "Grossmann" / "Zoe", random_case(1)),
    "a truth of its own name": lambda folder: next(folder.rglob("Zoe_seg.nii.gz")).write_bytes(b""),
    "no truth": lambda folder: next(folder.rglob("Zoe_seg.nii.gz")).unlink(),
    "nothing": lambda folder: None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_prepare_says(wards, damage, capsys, names_hidden_here):
    DAMAGES[damage](wards)
    code = prepare.main([str(wards), "--labels", "brats2020", "--resolution", "16", "--workers", "1", "--anonymous"])
    assert code == (0 if damage in ("nothing", "no truth") else 2)
    told = "".join(capsys.readouterr())
    assert no_name_in(told), told
    assert (str(wards) in told) == (code == 2)


@pytest.mark.parametrize("column", ["case", "t1", "flair", "truth", "nothing", "an image"])
def test_what_a_manifest_says(wards, column, capsys, names_hidden_here):
    rows = {"case": "Mueller_Hans", "patient": "Zoe", "truth": "Zoe/Zoe_seg.nii.gz"}
    rows |= {name: f"Zoe/Zoe_{name}.nii.gz" for name in ("t1", "t1ce", "flair", "t2")}
    rows |= {column: f"/Mueller/{column}"} if column in rows else {}
    if column == "an image":
        next(wards.rglob("Zoe_t1.nii.gz")).write_bytes(b"")
    table = wards / "ward7 (Grossmann)" / "all.csv"
    table.write_text(f"{','.join(rows)}\n{','.join(rows.values())}\n")
    code = prepare.main([str(table), "--labels", "brats2020", "--resolution", "16", "--workers", "1", "--anonymous"])
    assert code == (0 if column == "nothing" else 2)
    told = "".join(capsys.readouterr()).replace(str(table), "TABLE").replace(str(table.parent), "FOLDER")
    assert no_name_in(told), told


def test_a_mirrored_set_and_a_truth_with_another_name(tmp_path, hidden):
    folder = tmp_path / "set/BraTS2021_00001"
    for name, array in random_case(1).items():
        suffix = "seg" if name == "truth" else name
        save(array, folder / f"BraTS2021_00001_{suffix}.nii" / f"Hans_{suffix}.nii")
    (case,) = find_cases(tmp_path / "set").cases
    assert all(no_name_in(pseudonyms.hidden(f"{path}: found nothing")) for path in case.files)


def test_every_stream_and_the_end_by_a_defect(tmp_path):
    """Tracebacks and warnings pass, too, and processes that this one starts hide names as well."""
    code = (
        "import os, sys, warnings\nfrom lms3d.data import pseudonyms\npseudonyms.start()\npseudonyms.know(['Zoe'])\n"
        "print('case', 'Zoe'); sys.stdout.writelines(['Zoe']); warnings.warn('Zoe')\nassert os.environ['LMS3D_ANONYMOUS']\n"
        "raise RuntimeError('Zo' + 'e')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"LMS3D_CACHE": str(tmp_path)},
                          cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.returncode == 1
    assert "RuntimeError: case-" in done.stderr
    assert done.stdout.count("case-") == 2
    assert "Zoe" not in done.stdout
    assert "Zoe" not in done.stderr


def test_who_is_who(wards, capsys, names_hidden_here):
    assert prepare.main([str(wards), "--labels", "brats2020", "--pseudonyms", "--anonymous"]) == 0
    lines = capsys.readouterr().out.splitlines()
    pseudonyms.start()
    assert sorted(lines) == sorted(f"{pseudonyms.of(name)}  {name}" for name in NAMES)


def test_what_prepare_makes_is_for_the_user_alone(wards, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LMS3D_CACHE", str(tmp_path / "own"))
    assert prepare.main([str(wards), "--labels", "brats2020", "--resolution", "16", "--workers", "1"]) == 0
    made = [tmp_path / "own", *(tmp_path / "own").rglob("*")]
    assert len(made) > 12
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
