"""Both networks: sizes, names, shapes, saving and loading."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from lms3d import models
from lms3d.models import isensee2017, layers, registry, unet3d
from lms3d.tasks import TASKS

SMALL = {"filters": (2, 4, 4, 4, 4)}
SMALL_OF = {"isensee2017": SMALL, "unet3d": SMALL, "resenc": {"filters": (2, 4, 4), "blocks": (1, 1, 2)}}


def test_isensee2017_has_the_parameters_of_the_case_study():
    assert models.build("isensee2017", input_shape=(16, 16, 16, 4)).count_params() == 8_269_561


def test_parameters_do_not_depend_on_the_resolution():
    sizes = {models.build("unet3d", input_shape=(n, n, n, 4)).count_params() for n in (16, 32)}
    assert sizes == {5_888_307}


@pytest.mark.parametrize("name", models.names(models.VOLUMES))
@pytest.mark.parametrize("outputs", [1, 3])
def test_output_is_a_float32_probability_per_voxel_and_channel(name, outputs):
    model = models.build(name, input_shape=(16, 32, 16, 4), outputs=outputs, **SMALL_OF[name])
    y = model(np.random.default_rng(0).normal(size=(2, 16, 32, 16, 4)).astype(np.float32)).numpy()
    assert y.shape == (2, 16, 32, 16, outputs)
    assert y.dtype == np.float32
    assert (y > 0).all()
    assert (y < 1).all()


@pytest.mark.parametrize("name", models.names(models.VOLUMES))
def test_every_weight_gets_a_finite_gradient(name):
    keras.utils.set_random_seed(1)  # some weights leave more units without a gradient than others
    model = models.build(name, input_shape=(16, 16, 16, 4), **SMALL_OF[name])
    x = tf.random.stateless_normal((1, 16, 16, 16, 4), (0, 1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x, training=True) ** 2)
    gradients = dict(
        zip((v.path for v in model.trainable_variables), tape.gradient(loss, model.trainable_variables), strict=True)
    )
    assert all(gradient is not None and np.isfinite(gradient).all() for gradient in gradients.values())
    idle = {
        path for path in gradients if path.endswith("_conv/bias") and not path.startswith("head")
    }  # a normalisation follows
    assert not any(np.any(gradients[path]) for path in idle)
    assert sum(bool(np.any(gradient)) for path, gradient in gradients.items() if path not in idle) > 0.8 * (
        len(gradients) - len(idle)
    )


def test_any_multiple_of_16_goes_through_a_model_of_open_size():
    model = models.build("isensee2017", input_shape=(None, None, None, 4), **SMALL)
    assert model(np.zeros((1, 16, 32, 48, 4), np.float32)).shape == (1, 16, 32, 48, 3)


def test_layers_have_readable_names():
    names = {layer.name for layer in models.build("isensee2017", input_shape=(16, 16, 16, 4)).layers}
    assert {"encoder0_a_conv", "encoder4_b_norm", "decoder0_b_conv", "head1_up", "head2_conv"} <= names


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        (
            "unet",
            (16, 16, 16, 4),
            "unknown model 'unet'; expected one of densenet121, isensee2017, resenc, resnet50, unet3d",
        ),
        ("unet3d", (16, 24, 16, 4), r"multiple of 16, received \(16, 24, 16, 4\)"),
        ("isensee2017", (16, 16, 4), "each axis of the volume"),
    ],
)
def test_a_wrong_name_or_shape_is_told(name, shape, says):
    with pytest.raises(ValueError, match=says):
        models.build(name, input_shape=shape)


def test_a_saved_model_loads_in_a_new_process_after_import_models(tmp_path):
    names = models.names(models.VOLUMES)
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 16, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    made = {name: models.build(name, input_shape=(16, 16, 16, 4), **SMALL_OF[name]) for name in names}
    for name, model in made.items():
        model.save(tmp_path / f"{name}.keras")
    code = (
        "import sys, numpy, keras, lms3d.models; x = numpy.load(sys.argv[1] + '/x.npy')\n"
        "for file in sys.argv[2:]: numpy.save(file + '.npy', keras.models.load_model(file + '.keras')(x))"
    )
    files = [tmp_path / name for name in names]
    subprocess.run([sys.executable, "-c", code, tmp_path, *files], check=True, capture_output=True)
    for name, model in made.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), model(x), err_msg=name)


def test_the_tasks_offer_every_network_and_no_other():
    offered = {name: TASKS[name].options.models for name in TASKS.names}
    assert sorted(offered["brats"]) == models.names(models.VOLUMES)
    assert sorted(offered["chexnet"]) == models.names(models.IMAGES)


def test_a_network_that_somebody_adds(monkeypatch):
    monkeypatch.setattr(registry, "NETWORKS", dict(registry.NETWORKS))

    @models.register("mine", takes=models.VOLUMES)
    def build(input_shape, outputs=2):
        inputs = keras.Input(input_shape)
        return keras.Model(inputs, keras.layers.Conv3D(outputs, 1, activation="sigmoid")(inputs))

    assert models.build("mine", input_shape=(16, 16, 16, 4)).output_shape == (None, 16, 16, 16, 2)
    assert "mine" in models.names(models.VOLUMES)
    with pytest.raises(ValueError, match="mine: each axis of the volume must be a multiple of 16"):
        models.build("mine", input_shape=(16, 16, 17, 4))
    with pytest.raises(ValueError, match="the name is taken"):
        models.register("unet3d", takes=models.VOLUMES)


def test_training_lowers_the_loss():
    keras.utils.set_random_seed(0)
    model = models.build("unet3d", input_shape=(16, 16, 16, 4), **SMALL)
    x = np.random.default_rng(0).normal(size=(2, 16, 16, 16, 4)).astype(np.float32)
    model.compile("adam", "mse", jit_compile=False)
    history = model.fit(x, (x[..., :3] > 0).astype(np.float32), batch_size=1, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_separate_heads_follow_the_sum_of_all():
    shape = {"input_shape": (16, 16, 16, 4), "filters": (2, 4, 4, 4)}
    plain, deep = (models.build("isensee2017", **shape, separate_heads=separate) for separate in (False, True))
    assert deep.count_params() == plain.count_params()
    for a, b in zip(plain.variables, deep.variables, strict=True):
        b.assign(a)
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 16, 4)).astype(np.float32)
    together, separate = plain(x).numpy(), deep(x).numpy()
    assert separate.shape[-1] == 3 * together.shape[-1]
    np.testing.assert_allclose(separate[..., :3], together, rtol=1e-5)
    for head, factor in ((separate[..., 3:6], 2), (separate[..., 6:], 4)):  # each of its own resolution
        blocks = head[:, ::factor, ::factor, ::factor].repeat(factor, 1).repeat(factor, 2).repeat(factor, 3)
        np.testing.assert_array_equal(head, blocks)


def before_blocks_were_one_layer(name: str) -> keras.Model:
    """The network as release 0.1 saved it: biases are added, and each activation, dropout and addition is a layer."""

    def normalised(x, name, *, dropout=None, addend=None):
        x = layers.InstanceNormalization(name=f"{name}_norm")(x)
        x = keras.layers.LeakyReLU(negative_slope=0.3, name=f"{name}_relu")(x)
        x = x if dropout is None else layers.ChannelDropout(dropout, name=f"{name}_dropout")(x)
        return x if addend is None else keras.layers.Add(name=f"{name}_add")([addend, x])

    def level(inputs, filters, name, normalise, *cubes):
        for part in ("a", "b"):
            conv = f"{name}_{part}_conv"
            joined = len(inputs) > 1
            made = (
                layers.JoinedConv3D(filters, (False, True), name=conv)
                if joined
                else plain(filters, 3, padding="same", name=conv)
            )
            x = layers.InstanceNormalization(name=f"{name}_{part}_norm")(made(inputs if joined else inputs[0]))
            inputs = [keras.layers.ReLU(name=f"{name}_{part}_relu")(x)]
        return inputs[0]

    plain, whole = keras.layers.Conv3D, layers.JoinedConv3D
    parts = {"_normalise": normalised, "Conv3D": plain, "JoinedConv3D": lambda *a, adds_bias, **k: whole(*a, **k)}
    with (
        mock.patch.multiple(isensee2017, **parts),
        mock.patch.object(keras.layers, "Identity", return_value=lambda x: x),
        mock.patch.object(unet3d, "_level", level),
    ):
        return models.build(name, input_shape=(16, 16, 16, 4), **SMALL)


@pytest.mark.parametrize("name", ["isensee2017", "unet3d"])
def test_weights_of_before_load_and_predict_the_same(name, tmp_path):
    old = before_blocks_were_one_layer(name)
    assert {"LeakyReLU", "ReLU"} & {type(layer).__name__ for layer in old.layers}
    for number, variable in enumerate(old.variables):
        if variable.dtype == "float32":
            variable.assign(np.random.default_rng(number).normal(0.1, 0.4, variable.shape))
    old.save(tmp_path / "old.keras")
    x = np.random.default_rng(0).normal(size=(1, 16, 16, 16, 4)).astype(np.float32)
    new = models.build(name, input_shape=(16, 16, 16, 4), **SMALL)
    new.load_weights(tmp_path / "old.keras")
    assert [v.path for v in new.trainable_variables] == [
        v.path for v in old.trainable_variables
    ]  # as optimisers number them
    for model in (new, keras.models.load_model(tmp_path / "old.keras", compile=False)):
        np.testing.assert_allclose(model(x), old(x), rtol=0, atol=1e-5)


def test_a_network_that_an_earlier_version_saved_loads(tmp_path, monkeypatch):
    """Its classes lay in a package `models`, a name that Keras notes down, and that may be another project's by now."""
    model = models.build("isensee2017", input_shape=(16, 16, 16, 4), **SMALL)
    model.save(tmp_path / "new.keras")
    now, before = (json.dumps(name).encode() for name in (layers.__name__, layers.__name__.removeprefix("lms3d.")))
    with zipfile.ZipFile(tmp_path / "new.keras") as new, zipfile.ZipFile(tmp_path / "old.keras", "w") as old:
        for name in new.namelist():
            content = new.read(name).replace(now, before)
            assert (before in content) == (name == "config.json")
            old.writestr(name, content)
    monkeypatch.setitem(sys.modules, "models", None)
    again = keras.models.load_model(tmp_path / "old.keras", compile=False)
    assert [type(layer) for layer in again.layers] == [type(layer) for layer in model.layers]
