"""DenseNet-121 and ResNet-50 with 14 sigmoids: sizes, shapes, precision, weights files, and training in less memory."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from lms3d import models
from lms3d.models import chexnet
from tests.thorough import also

SHAPE = (32, 32, 3)
APPLICATIONS = {"densenet121": keras.applications.DenseNet121, "resnet50": keras.applications.ResNet50}


def images(n: int = 2, side: int = 32) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, side, side, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def densenet() -> keras.Model:
    keras.utils.set_random_seed(0)
    return models.build("densenet121", input_shape=SHAPE)


@pytest.fixture(scope="module")
def resnet() -> keras.Model:
    keras.utils.set_random_seed(0)
    return models.build("resnet50", input_shape=SHAPE)


def classifier(name: str, *, weights=None, shape=SHAPE) -> keras.Model:
    """A network of one convolution, with a bias in the ResNet's place alone, with the head of the real ones."""

    def body(*, include_top, weights, input_tensor, pooling):
        x = keras.layers.Conv2D(8, 3, strides=2, use_bias=name == "resnet50", name="conv1_conv")(input_tensor)
        return keras.Model(input_tensor, keras.layers.BatchNormalization(name="conv1_bn")(x))

    return chexnet._with_head(body, name, shape, 14, weights)


def test_parameters_are_those_of_the_papers_with_14_outputs(densenet, resnet):
    """1000 outputs: 8,062,504 and 25,636,712; the head has (features + 1) x outputs of them."""
    assert densenet.count_params() == 8_062_504 - 1025 * 1000 + 1025 * 14
    assert resnet.count_params() == 25_636_712 - 2049 * 1000 + 2049 * 14


def test_output_is_a_probability_per_pathology(densenet, resnet):
    for model in (densenet, resnet):
        y = model(images()).numpy()
        assert y.shape == (2, 14)
        assert y.dtype == np.float32
        assert (y > 0).all()
        assert (y < 1).all()


def test_the_head_is_float32_in_mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = classifier("densenet121")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert model.get_layer("conv1_conv").compute_dtype == "bfloat16"
    assert {model.get_layer(name).compute_dtype for name in ("features", "logits", "probabilities")} == {"float32"}
    assert model.output.dtype == "float32"


def test_averages_follow_as_fast_as_those_of_the_reference(densenet):
    norms = [layer for layer in densenet.layers if isinstance(layer, keras.layers.BatchNormalization)]
    assert len(norms) == 121
    assert {layer.momentum for layer in norms} == {0.9}


@pytest.mark.parametrize("shape", [(31, 32, 3), (64, 64, 1), (32, 32, 32, 3), (64, 64)])
def test_a_wrong_shape_is_told(shape):
    with pytest.raises(ValueError, match=r"densenet121: expected images \(H, W, 3\) of at least 32x32"):
        models.build("densenet121", input_shape=shape)


def same_weights(a: keras.Model, b: keras.Model, *, without: tuple[str, ...] = ()) -> bool:
    """Whether both models have the same weights, leaving out some layers."""
    pairs = zip(a.layers, b.layers, strict=True)
    kept = [(x.get_weights(), y.get_weights()) for x, y in pairs if x.name not in without]
    return all(np.array_equal(v, w) for x, y in kept for v, w in zip(x, y, strict=True))


def test_weights_of_an_earlier_run(densenet, tmp_path):
    densenet.save(tmp_path / "best.keras")
    made = models.build("densenet121", input_shape=(64, 64, 3), weights=tmp_path / "best.keras")
    assert same_weights(made, densenet)
    small = classifier("densenet121")
    small.save_weights(tmp_path / "best.weights.h5")
    made = classifier("densenet121", weights=tmp_path / "best.weights.h5", shape=(64, 64, 3))
    assert same_weights(made, small)


def write_legacy(model: keras.Model, path) -> None:
    """A file as keras.applications publishes them: HDF5 with a list of layers and one of weights for each."""
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.name.encode() for layer in model.layers]
        for layer in model.layers:
            group = file.create_group(layer.name)
            names = [f"{layer.name}/{i}".encode() for i in range(len(layer.weights))]
            group.attrs["weight_names"] = names
            for name, value in zip(names, layer.get_weights(), strict=True):
                group[name.decode()] = value


@pytest.mark.parametrize("with_top", [True, *also(False)])
def test_imagenet_weights_fill_all_but_the_head(with_top, tmp_path):
    keras.utils.set_random_seed(3)
    top = {} if with_top else {"input_shape": SHAPE}
    published = keras.applications.DenseNet121(weights=None, include_top=with_top, **top)
    write_legacy(published, tmp_path / "imagenet.h5")
    made = models.build("densenet121", input_shape=SHAPE, weights=tmp_path / "imagenet.h5")
    x = images()
    body = keras.applications.DenseNet121(weights=None, include_top=False, input_shape=SHAPE)
    body.set_weights(published.get_weights()[: len(body.get_weights())])
    features = keras.Model(made.input, made.get_layer("features").output)
    np.testing.assert_allclose(features(x), np.mean(body(x), axis=(1, 2)), rtol=1e-4, atol=1e-5)


def test_imagenet_weights_of_resnet_take_the_same_images(tmp_path):
    """Without top a file gives all but the head. It expects BGR less a mean in 0..255; the network here 0..1 less a mean over a
    deviation, for both networks."""
    published = keras.applications.ResNet50(weights=None, include_top=False, input_shape=SHAPE)
    write_legacy(published, tmp_path / "imagenet.h5")
    made = models.build("resnet50", input_shape=SHAPE, weights=tmp_path / "imagenet.h5")
    pairs = zip(made.get_weights(), published.get_weights(), strict=False)  # the head's come last
    assert [number for number, pair in enumerate(pairs) if not np.array_equal(*pair)] == [0, 1]  # the first convolution
    pixels = np.random.default_rng(0).uniform(0, 255, (1, *SHAPE)).astype(np.float32)
    ours = (pixels / 255 - chexnet.IMAGENET_MEAN) / chexnet.IMAGENET_STD
    theirs = keras.applications.resnet50.preprocess_input(pixels.copy())
    first = [keras.Model(model.input, model.get_layer("conv1_conv").output) for model in (made, published)]
    found, expected = (model(x).numpy()[:, 2:-2, 2:-2] for model, x in zip(first, (ours, theirs), strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_files_that_cannot_be_used_are_told(tmp_path):
    densenet, resnet = classifier("densenet121"), classifier("resnet50")

    def error_of(path) -> chexnet.WeightsError:
        with pytest.raises(chexnet.WeightsError) as caught:
            chexnet.load_weights(densenet, path)
        assert caught.value.exit_code == 2
        assert str(path) in str(caught.value)
        return caught.value

    before = [value.copy() for value in densenet.get_weights()]
    assert "found no file" in str(error_of(tmp_path / "absent.h5"))
    (tmp_path / "weights.txt").write_text("")
    assert "found the ending '.txt'" in str(error_of(tmp_path / "weights.txt"))
    for name in ("broken.h5", "broken.keras", "broken.weights.h5"):
        (tmp_path / name).write_bytes(b"nothing")
        error_of(tmp_path / name)
    resnet.save(tmp_path / "resnet.keras")
    assert "other layers than those of densenet121 with 14 outputs" in str(error_of(tmp_path / "resnet.keras"))
    write_legacy(resnet, tmp_path / "resnet.h5")
    assert "other layers than those of densenet121" in str(error_of(tmp_path / "resnet.h5"))
    assert all(np.array_equal(a, b) for a, b in zip(before, densenet.get_weights(), strict=True))
