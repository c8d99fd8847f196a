"""Puts networks of a thousand weights in the places of `unet3d` and `resnet50`, so that a training takes a second."""

import dataclasses
from functools import partial

import keras

from models import chexnet, registry, unet3d


def _replace(name, build):
    registry.NETWORKS[name] = dataclasses.replace(registry.NETWORKS[name], build=build)


def _body(*, include_top, weights, input_tensor, pooling):
    """In the place of one of keras.applications: the same arguments, two convolutions."""
    x = keras.layers.Conv2D(8, 3, strides=4, use_bias=False)(input_tensor)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(input_tensor, keras.layers.Conv2D(16, 3, strides=2)(x))


def _classifier(input_shape, outputs=chexnet.PATHOLOGIES, *, weights=None):
    return chexnet._with_head(_body, "resnet50", input_shape, outputs, weights)


_replace("unet3d", partial(unet3d.build, filters=(4, 8), normalise=False, dropout=0.2))
_replace("resnet50", _classifier)
