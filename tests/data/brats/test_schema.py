"""The meaning of labels, for every data set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms3d.data.brats.schema import REGIONS, SCHEMAS, schema_named
from lms3d.data.errors import DataError

schemas = st.sampled_from(sorted(SCHEMAS)).map(SCHEMAS.__getitem__)


@given(schemas)
def test_regions_nest(schema):
    assert tuple(schema.regions)[:3] == REGIONS
    whole, core, enhancing = (set(schema.regions[name]) for name in REGIONS)
    assert enhancing < core < whole <= set(schema.learnt_values)


@given(schemas)
def test_the_first_three_channels_are_necrosis_oedema_enhancing(schema):
    necrosis, oedema, enhancing = schema.learnt_values[:3]
    assert schema.regions["ET"] == (enhancing,)
    assert necrosis in schema.regions["TC"]
    assert oedema in set(schema.regions["WT"]) - set(schema.regions["TC"])


def test_a_value_means_what_its_set_says():
    assert SCHEMAS["brats2020"].regions["ET"] == (4,)
    assert SCHEMAS["brats2023"].regions["ET"] == (3,)
    assert SCHEMAS["msd"].regions["TC"] == (2, 3)
    assert SCHEMAS["brats2024-ped"].regions["TC"] == (1, 2, 3)


def test_the_cavity_of_a_resection_is_learnt_and_no_part_of_the_tumour():
    schema = SCHEMAS["brats2024"]
    assert "RC" in schema.learnt
    assert schema.values_of("RC") == (4,)
    assert 4 not in schema.regions["WT"]


def test_a_region_or_a_label_by_its_name():
    schema = SCHEMAS["brats2023"]
    assert (schema.values_of("TC"), schema.values_of("SNFH"), schema.values) == ((1, 3), (2,), (0, 1, 2, 3))
    with pytest.raises(KeyError):
        schema.values_of("GTV")


def test_an_unknown_schema_lists_the_known_ones():
    with pytest.raises(DataError, match=r"--labels: found 'brats2022'; expected one of tcia, brats2017"):
        schema_named("brats2022")


def test_every_region_has_a_colour_and_a_name():
    from lms3d.scoring.figures.style import REGION_COLOURS, REGION_NAMES

    regions = {region for schema in SCHEMAS.values() for region in schema.regions}
    assert regions <= REGION_COLOURS.keys()
    assert regions <= REGION_NAMES.keys()
