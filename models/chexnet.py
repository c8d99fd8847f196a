"""Classifiers for chest X-rays: DenseNet-121 as in CheXNet, and ResNet-50, with one sigmoid per pathology.

    (B, N, N, 3) image -> convolutions of keras.applications -> (B, N/32, N/32, F) -> mean over positions -> Dense -> sigmoid

CheXNet: Rajpurkar et al., arXiv:1711.05225. The scaling study has the same head: global average pooling and Dense 14.
DenseNet: Huang et al., arXiv:1608.06993. ResNet: He et al., arXiv:1512.03385.
Both networks expect images as PyTorch's models do: values in 0..1, less ImageNet's mean, divided by its standard deviation; the
channels are red, green, blue. Nothing is ever downloaded.
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np

from lms3d.models.registry import IMAGES, register

PATHOLOGIES = 14
IMAGENET_CLASSES = 1000
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of 0..1; red, green, blue
CAFFE_MEAN = (
    103.939,
    116.779,
    123.68,
)  # of 0..255; blue, green, red: the mean that keras.applications' ResNet-50 subtracts
MOMENTUM = 0.9  # of batch normalisation's averages, as in PyTorch, which CheXNet used; keras.applications has 0.99


class WeightsError(ValueError):
    """A weights file cannot be used. The message names the file, what was found and what to do."""

    exit_code = 2


@register("densenet121", takes=IMAGES)
def build_densenet121(
    input_shape: tuple[int | None, ...], outputs: int = PATHOLOGIES, *, weights: str | Path | None = None
) -> keras.Model:
    """DenseNet-121: (B, N, N, 3) images -> (B, outputs) probabilities in float32; 7.0 M parameters.

    weights: a file (see `load_weights`), or None for random weights.
    """
    return _with_head(keras.applications.DenseNet121, "densenet121", input_shape, outputs, weights)


@register("resnet50", takes=IMAGES)
def build_resnet50(
    input_shape: tuple[int | None, ...], outputs: int = PATHOLOGIES, *, weights: str | Path | None = None
) -> keras.Model:
    """ResNet-50: (B, N, N, 3) images -> (B, outputs) probabilities in float32; 23.6 M parameters. weights: as above."""
    return _with_head(keras.applications.ResNet50, "resnet50", input_shape, outputs, weights)


def _with_head(
    application: type, name: str, input_shape: tuple[int | None, ...], outputs: int, weights: str | Path | None
) -> keras.Model:
    inputs = keras.Input(input_shape, name="image")
    # Use the layers themselves, not a model in a model, so that LMS's report and `load_weights` see names such as conv2_block1.
    body = application(include_top=False, weights=None, input_tensor=inputs, pooling=None)
    for layer in body.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = MOMENTUM
    # float32 under every policy: a mean over positions and a sigmoid in half precision would spoil the loss and the ranking
    x = keras.layers.GlobalAveragePooling2D(dtype="float32", name="features")(body.output)
    logits = keras.layers.Dense(outputs, dtype="float32", name="logits")(x)
    probabilities = keras.layers.Activation("sigmoid", dtype="float32", name="probabilities")(logits)
    model = keras.Model(inputs, probabilities, name=name)
    if weights is not None:
        load_weights(model, weights)
    return model


def load_weights(model: keras.Model, path: str | Path) -> None:
    """Loads weights from a file into `model`, a network of this module.

    WeightsError if the file is of another network: then the weights are as before.

    WEIGHTS-1 A `.keras` or `.weights.h5` file of the same network, such as best.keras of an earlier run, gives all weights.
    WEIGHTS-2 An `.h5` file of keras.applications (ImageNet), with or without its top, gives all but the head, which stays random.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise WeightsError(f"weights {path}: found no file; expected weights of {model.name}; check the path")
    if path.suffix != ".keras" and path.suffix != ".h5":
        raise WeightsError(f"weights {path}: found the ending {path.suffix!r}; expected .keras, .weights.h5 or .h5")
    before = model.get_weights()
    if path.suffix == ".keras" or path.name.endswith(".weights.h5"):  # WEIGHTS-1
        refused = _try_to_load(model, path)
    else:  # WEIGHTS-2
        features = model.get_layer("features").output
        with_top = keras.Model(model.input, keras.layers.Dense(IMAGENET_CLASSES)(features))
        refused = _try_to_load(keras.Model(model.input, features), path) and _try_to_load(with_top, path)
        if not refused and model.name == "resnet50":
            _adapt_to_our_images(model.get_layer("conv1_conv"))
    if refused:
        model.set_weights(before)  # layers that fitted were loaded
        raise WeightsError(
            f"weights {path}: found other layers than those of {model.name} with {model.output_shape[-1]} outputs "
            f"({refused}); expected a file of the same network, or ImageNet weights of keras.applications"
        )


def _try_to_load(model: keras.Model, path: Path) -> str:
    """Loads the file. Returns Keras's objection as one line; "" if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras gives hundreds before an error that says the same
            if path.suffix == ".keras":  # h5py reads only parts of members, and then zipfile compares no checksums
                with zipfile.ZipFile(path) as archive:
                    if (damaged := archive.testzip()) is not None:
                        return f"the checksum of {damaged} in it is wrong"
            model.load_weights(path)
    except Exception as error:  # h5py, zipfile and Keras raise many kinds
        return " ".join(str(error).split())[:160] or type(error).__name__
    return ""


def _adapt_to_our_images(layer: keras.layers.Conv2D) -> None:
    """Changes ResNet-50's first convolution, made for BGR in 0..255 less CAFFE_MEAN, so that it takes this module's images.

    Let x' be the old input and x the new one. Then x'_c = 255 std_c x_c + (255 mean_c - caffe_c), which is linear, so that kernel
    and bias absorb it. This is exact but for the zero padding, whose meaning changes by less than half a grey level.
    """
    kernel, bias = layer.get_weights()  # (7, 7, 3, 64), (64,)
    kernel = kernel[:, :, ::-1]  # red, green, blue
    shift = 255 * np.array(IMAGENET_MEAN) - np.array(CAFFE_MEAN[::-1])
    bias = bias + np.einsum("hwcf,c->f", kernel, shift)
    layer.set_weights([kernel * 255 * np.array(IMAGENET_STD).reshape(3, 1), bias])
