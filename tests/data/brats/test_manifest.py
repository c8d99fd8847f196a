"""A manifest describes any layout. Each mistake in it is reported in one line with the row."""

import json

import numpy as np
import pytest

from lms3d.data.brats import cache, definition, normalise
from lms3d.data.brats.case import load_images, load_truth
from lms3d.data.brats.distortions import DISTORTIONS, Sample
from lms3d.data.brats.fingerprint import facts
from lms3d.data.brats.layouts import find_cases
from lms3d.data.brats.preprocess import cube
from lms3d.data.brats.schema import SCHEMAS, schema_named
from lms3d.data.brats.targets import Labels, Regions
from lms3d.data.errors import DataError
from tests.data.small_data import check_case, random_case, save

HEAD = "case,t1,t1ce,flair,t2,truth,patient"
OWN = {
    "name": "ours",
    "labels": {"NCR": 5, "ED": 7, "ET": 9},
    "regions": {"WT": ["NCR", "ED", "ET"], "TC": ["NCR", "ET"], "ET": ["ET"]},
    "nested": [["WT", "ED"], ["TC", "NCR"], ["ET", "ET"]],
}


@pytest.fixture
def home(tmp_path):
    for number in (1, 2):
        for name, array in random_case(number, (5, 7, 9)).items():
            save(array, tmp_path / f"p{number}" / f"{name}.nii.gz")
    return tmp_path


def row(number, **changes):
    names = {name: f"p{number}/{name}.nii.gz" for name in ("t1", "t1ce", "flair", "t2", "truth")}
    return {"case": f"anna-{number}", **names, "patient": ""} | changes


def write_csv(home, *rows, head=HEAD):
    lines = [head, *(",".join(one.values()) if isinstance(one, dict) else one for one in rows)]
    (home / "manifest.csv").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return home / "manifest.csv"


def write_json(home, value):
    (home / "mine.json").write_text(json.dumps(value))
    return home / "mine.json"


def fails(path, pattern, labels="brats2021"):
    with pytest.raises(DataError, match=pattern) as caught:
        find_cases(path, labels=labels)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_table(home):
    path = write_csv(home, row(2, patient="anna"), row(1, patient="anna", truth=""), "", head=HEAD)
    found = find_cases(path, labels="brats2021", require_truth=False)
    assert found.layout == "manifest manifest.csv"
    assert [case.id for case in found.cases] == ["anna-1", "anna-2"]
    assert found.patients == {"anna-1": "anna", "anna-2": "anna"}
    assert found.cases[0].truth is None
    np.testing.assert_array_equal(load_images(found.cases[1])[0][..., 1], random_case(2, (5, 7, 9))["t1ce"])
    fails(path, "no label map")
    fails(path, r'manifest.csv: found no "labels"; expected .*; add --labels', labels=None)


def test_a_list_of_objects(home):
    found = find_cases(write_json(home, [row(1, patient=None), row(2)]), labels="brats2021")
    assert found.patients == {"anna-1": "anna-1", "anna-2": "anna-2"}


def test_it_names_a_schema(home):
    assert find_cases(write_json(home, {"labels": "msd", "cases": [row(1)]})).schema == SCHEMAS["msd"]
    fails(write_json(home, {"labels": "brats2022", "cases": [row(1)]}), "mine.json: found 'brats2022'", labels=None)


def test_it_defines_a_schema(home):
    (case, _), schema = find_cases(write_json(home, {"labels": OWN, "cases": [row(1), row(2)]}))
    assert schema.name.startswith("ours-")
    assert schema_named(schema.name) is schema
    check_case(case, schema)
    truth = load_truth(case, schema)
    for targets in (Labels(schema), Regions(schema)):
        np.testing.assert_array_equal(targets.from_channels(targets.to_channels(truth)), truth)
    assert np.count_nonzero(np.isin(truth, schema.regions["TC"])) == 6 * 10 * 4


def test_the_name_of_a_schema_changes_with_its_meaning(home):
    names = {
        find_cases(write_json(home, {"labels": labels, "cases": [row(1)]})).schema.name
        for labels in (OWN, OWN, OWN | {"learnt": ["ED", "NCR", "ET"]}, {k: OWN[k] for k in ("labels", "regions")})
    }
    assert len(names) == 3


WRONG_LABELS = [
    ({"labels": {"A": 0}}, "label A = 0; expected a whole number from 1 to 255"),
    ({"labels": {"A": 256}}, "label A = 256"),
    ({"labels": {"A": True}}, "label A = True"),
    ({"labels": {"A": 1, "B": 1}}, "a value of its own for each"),
    ({"labels": {}}, "at least one"),
    ({"labels": [1, 2]}, r"labels: \[1, 2\]; expected names with values"),
    ({"learnt": ["WT"]}, "label 'WT'; expected one of NCR, ED, ET"),
    ({"learnt": []}, "at least one"),
    ({"learnt": ["ET", "ET"]}, "different labels"),
    ({"learnt": "ET"}, 'learnt: "ET"'),
    ({"regions": {"TC": ["ET"]}}, "regions TC; expected WT among them"),
    ({"regions": {"WT": []}}, "labels in each"),
    ({"regions": {"WT": ["XX"]}}, "label 'XX'"),
    ({"regions": None}, "regions: null"),
    ({"nested": [["WT", "NCR"]]}, "nested regions that do not give ED again"),
    ({"nested": [["WW", "NCR"]]}, "region 'WW' in nested"),
    ({"nested": ["WT"]}, "'WT' in nested; expected a region and a label"),
    ({"name": "a/b"}, "labels named 'a/b'"),
    ({"colour": "red"}, "'colour' in labels; expected name, labels"),
]


@pytest.mark.parametrize(("change", "pattern"), WRONG_LABELS)
def test_wrong_labels(home, change, pattern):
    path = write_json(home, {"labels": OWN | change, "cases": [row(1)]})
    assert fails(path, f"mine.json: found .*{pattern}", labels=None).startswith(str(path))


def test_a_modality_that_no_case_has_is_zero(home, tmp_path):
    path = write_csv(home, row(1, t2=""), row(2, t2=""))
    found = find_cases(path, labels=definition.define(OWN, where="test").name)
    assert found.modalities == ("t1", "t1ce", "flair")
    images, _ = load_images(found.cases[0])
    whole, _ = load_images(find_cases(write_csv(home, row(1)), labels=found.schema.name).cases[0])
    np.testing.assert_array_equal(images[..., :3], whole[..., :3])
    assert not images[..., 3].any()
    assert facts(found.cases[0], found.schema)["t2_p50"] == 0
    for n4 in (False, True):
        built = cache.build(found.cases, found.schema, cube(16, n4=n4), directory=tmp_path / "c", workers=1)
        for kind in ("case", "global"):
            image = normalise.image(normalise.fit(kind, built, built.ids), built, built.ids[0])
            assert np.isfinite(image).all()
            assert image[..., 2].any()
            assert not image[..., 3].any()
    zeros = np.zeros(4, np.float32)
    sample = Sample(image=image, truth=built.truth(built.ids[0]), zero=zeros, background=zeros)
    for name, one in DISTORTIONS.items():
        assert not one.apply(sample, np.random.default_rng(0)).image[..., 3].any(), name
    path = write_json(home, [row(1, t2=None)])
    assert find_cases(path, labels="brats2021").modalities == ("t1", "t1ce", "flair")
    fails(write_csv(home, row(1, t1="", t1ce="", flair="", t2="")), "no t1 in row 2; expected a path")


WRONG_TABLES = [
    (("case,t1,t1ce,flair",), "no column 't2' in row 1; expected case, t1, t1ce"),
    (("case,t1,t1ce,flair,t2,t2",), "more than one column 't2' in row 1"),
    (("case,t1,t1c,flair,t2",), "no column 't1ce' in row 1"),
    ((HEAD + ",age",), "unknown column 'age' in row 1"),
    ((HEAD,), "no case; expected a row for each"),
    ((), "no column 'case' in row 1"),
    ((HEAD, "a,b"), "2 cells in row 2; expected 7 as in row 1"),
    ((HEAD, row(1), row(1)), "case anna-1 in row 3 and in row 2"),
    ((HEAD, row(1), row(2, t2="")), "no t2 in row 3; expected a path"),
    ((HEAD, row(1, case="")), "no case in row 2; expected a name"),
    ((HEAD, row(1, case="../x")), "case '../x' in row 2; expected a name of letters"),
    ((HEAD, row(1, case=".hidden")), "case '.hidden' in row 2"),
    ((HEAD, row(1, t1="p1/none.nii.gz")), "no file 'p1/none.nii.gz' for t1 in row 2; expected a path that starts at"),
    ((HEAD, row(1, t1="p1")), "t1 'p1' in row 2; expected a file that ends in .nii"),
    ((HEAD, row(1, t1="x" * 5000 + ".nii")), "no file 'xxx"),
    ((HEAD, row(1, t1="p1/t2.nii.gz")), "one file twice in row 2"),
    ((HEAD, 'a,"b'), "cannot be read"),
]


@pytest.mark.parametrize("number", range(len(WRONG_TABLES)))
def test_wrong_tables(home, number):
    lines, pattern = WRONG_TABLES[number]
    path = write_csv(home, *lines[1:], head=lines[0] if lines else "")
    assert fails(path, f"manifest.csv: found .*{pattern}").startswith(f"{path}: found ")


WRONG_JSON = [
    ("{", "cannot be read"),
    ("", "cannot be read"),
    ("[" * 100_000, "cannot be read"),
    ("3", "no list of cases"),
    ("[]", "no case; expected a row for each"),
    ("[3]", "int in row 1; expected an object"),
    ('[{"case": "a"}]', "no column 't1' in row 1"),
    ('{"cases": [], "label": "x"}', "key 'label'"),
    (json.dumps([row(1), row(2, t1=3)]), "3 as t1 in row 2; expected text"),
    (json.dumps([row(1), row(2, t1=None)]), "no t1 in row 2"),
    (json.dumps([row(1, age="3")]), "unknown column 'age' in row 1"),
    (json.dumps([row(1, t1="a\0.nii")]), "in row 1; expected a file that ends in"),
]


@pytest.mark.parametrize("number", range(len(WRONG_JSON)))
def test_wrong_json(home, number):
    content, pattern = WRONG_JSON[number]
    (home / "mine.json").write_text(content)
    fails(home / "mine.json", f"mine.json: found .*{pattern}")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\0" * 100, bytes(range(256))])
@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_no_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    fails(tmp_path / name, f"{name}: found ")


def test_another_file_is_no_manifest(home):
    (home / "notes.txt").touch()
    fails(home / "notes.txt", "found a file; expected a folder")
