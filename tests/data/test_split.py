"""Splits are complete, disjoint, by patient and by seed, and the same when read from the file."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms3d.data import split
from lms3d.data.errors import DataError

id_sets = st.sets(st.integers(0, 999).map("BraTS20_{:03d}".format), min_size=2, max_size=60)
visit_sets = st.sets(
    st.tuples(st.integers(0, 30), st.integers(0, 3)).map(lambda v: f"BraTS-GLI-{v[0]:05d}-{v[1]:03d}"), min_size=2
)


@given(id_sets, st.integers(-5, 2**31))
def test_every_case_is_in_one_part_and_a_fifth_validates(ids, seed):
    made = split.make(ids, seed)
    assert set(made.training) | set(made.validation) == ids
    assert not set(made.training) & set(made.validation)
    assert len(made.validation) == max(1, round(0.2 * len(ids)))


@given(id_sets, st.integers(0, 100), st.randoms())
def test_it_depends_on_the_set_and_the_seed_only(ids, seed, shuffler):
    shuffled = list(ids)
    shuffler.shuffle(shuffled)
    assert split.make(shuffled, seed) == split.make(sorted(ids), seed)


@given(visit_sets, st.integers(0, 100))
def test_visits_of_a_patient_stay_together(ids, seed):
    patients = {case_id.rsplit("-", 1)[0] for case_id in ids}
    if len(patients) < 2:
        with pytest.raises(DataError, match="found 1 patient"):
            split.make(ids, seed)
        return
    made = split.make(ids, seed)
    parts = [{case_id.rsplit("-", 1)[0] for case_id in part} for part in (made.training, made.validation)]
    assert not parts[0] & parts[1]
    assert all(parts)


def test_seeds_differ():
    ids = [f"case{number}" for number in range(25)]
    assert len({split.make(ids, seed).validation for seed in range(10)}) > 5


def test_it_comes_back_from_its_file(tmp_path):
    made = split.make([f"case{number}" for number in range(10)], 3)
    split.save(made, tmp_path / "split.json")
    assert split.load(tmp_path / "split.json") == made


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        ("{", "found damaged JSON"),
        ("[]", "found no lists of case ids"),
        (json.dumps({"training": ["a"]}), "found no lists of case ids"),
        (json.dumps({"training": ["a", "b"], "validation": ["b"]}), "found b in both parts"),
    ],
)
def test_damaged_files(tmp_path, content, pattern):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(DataError, match=rf"split.json: {pattern}"):
        split.load(path)
    with pytest.raises(DataError, match="No such file"):
        split.load(tmp_path / "absent.json")


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2])
def test_fraction(fraction):
    with pytest.raises(DataError, match="between 0 and 1"):
        split.make(["a", "b"], 0, fraction)


@given(id_sets, st.integers(0, 5), st.integers(0, 100))
def test_a_patient_is_never_divided(ids, sharing, seed):
    patients = {case_id: f"patient {int(case_id[-3:]) % (sharing + 2)}" for case_id in ids}
    if len(set(patients.values())) < 2:
        return
    made = split.make(ids, seed, patients=patients)
    split.require_undivided(made, patients, "here")
    assert {*made.training, *made.validation} == ids


def test_names_of_patients_do_not_matter():
    ids = [f"case{number:02d}" for number in range(30)]
    one = {case_id: f"a{number // 2}" for number, case_id in enumerate(ids)}
    other = {case_id: f"{99 - number // 2}" for number, case_id in enumerate(ids)}
    assert split.make(ids, 3, patients=one) == split.make(reversed(ids), 3, patients=other)
    assert split.folds(one, {}, 4, 3) == split.folds(dict(reversed(other.items())), {}, 4, 3)


def test_a_split_that_divides_a_patient_is_refused():
    parts = split.Split(training=("a-1", "b"), validation=("a-2",))
    split.require_undivided(parts, {}, "split.json")
    with pytest.raises(DataError, match=r"split.json: found patient a in both parts \(a-1 trains, a-2 validates\)"):
        split.require_undivided(parts, {"a-1": "a", "a-2": "a"}, "split.json")


def test_another_visit_is_no_new_brain():
    here = ["BraTS-GLI-00005-001", "BraTS-GLI-00006-000", "c"]
    assert split.seen(here, ["BraTS-GLI-00005-000"], {}) == ["BraTS-GLI-00005-001"]
    assert split.seen(here, ["BraTS-GLI-00007-000"], {}) == []
    assert split.seen(["a", "c"], ["b"], {"a": "one", "b": "one", "c": "two"}) == ["a"]


@given(id_sets, st.integers(1, 8), st.integers(2, 8), st.integers(0, 100), st.randoms())
def test_folds(ids, sharing, count, seed, shuffler):
    patients = {case_id: f"{int(case_id[-3:]) // sharing}" for case_id in ids}
    strata = {case_id: "HGG" if int(case_id[-3:]) % 3 else "LGG" for case_id in ids}
    if len(set(patients.values())) < count:
        with pytest.raises(DataError, match="folds: found"):
            split.folds(patients, strata, count, seed)
        return
    made = split.folds(patients, strata, count, seed)
    assert sorted(case_id for one in made for case_id in one.validation) == sorted(ids)
    for one in made:
        assert sorted((*one.training, *one.validation)) == sorted(ids)
        assert one.training
        assert one.validation
        split.require_undivided(one, patients, "fold")
    shuffled = list(ids)
    shuffler.shuffle(shuffled)
    assert split.folds({case_id: patients[case_id] for case_id in shuffled}, strata, count, seed) == made


@given(st.integers(10, 60), st.integers(2, 5), st.integers(0, 50))
def test_folds_have_their_share_of_every_stratum(number, count, seed):
    ids = [f"case{index}" for index in range(number)]
    strata = {case_id: index % 3 for index, case_id in enumerate(ids)}
    made = split.folds({case_id: case_id for case_id in ids}, strata, count, seed)
    for label in range(3):
        shares = [sum(strata[case_id] == label for case_id in one.validation) for one in made]
        assert max(shares) - min(shares) <= 1


def test_seeds_give_other_folds():
    ids = {f"case{number}": f"case{number}" for number in range(25)}
    assert len({split.folds(ids, {}, 5, seed)[0] for seed in range(10)}) > 5
