"""Puts networks of a thousand weights in the places of the real ones, under their names: a training of them starts and ends in
seconds. Most of the time of a real one's start is TensorFlow's, which traces a thousand layers.

isensee2017 keeps its modules and a skip; the classifiers keep batch normalisation and their head.
"""

import dataclasses
from functools import partial

import keras

from lms3d.models import chexnet, isensee2017, registry, unet3d


def _replace(name, build):
    registry.NETWORKS[name] = dataclasses.replace(registry.NETWORKS[name], build=build)


def _body(*, include_top, weights, input_tensor, pooling):
    """In the place of one of keras.applications: the same arguments, two convolutions."""
    x = keras.layers.Conv2D(8, 3, strides=4, use_bias=False)(input_tensor)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(input_tensor, keras.layers.Conv2D(16, 3, strides=2)(x))


def _classifier(name):
    def build(input_shape, outputs=chexnet.PATHOLOGIES, *, weights=None):
        return chexnet._with_head(_body, name, input_shape, outputs, weights)

    return build


def _isensee2017(input_shape, outputs=3, *, separate_heads=False):
    """Two levels; the four that three heads need, of which each has a loss of its own."""
    filters = (2, 2, 2, 2) if separate_heads else (2, 4)
    return isensee2017.build(input_shape, outputs, filters=filters, separate_heads=separate_heads)


_replace("isensee2017", _isensee2017)
_replace("unet3d", partial(unet3d.build, filters=(4, 8), normalise=False, dropout=0.2))
for classifier in ("densenet121", "resnet50"):
    _replace(classifier, _classifier(classifier))
