"""The pieces of a GPU's memory under a hard limit: handed out as close to the wanted size as TensorFlow allows.

By its own rule TensorFlow hands out a free piece whole, unless that is twice as large as wanted, or 128 MiB larger. Under a small
limit that is most of the memory. There is an option for it, but no public call. Checked with TensorFlow 2.21.
"""

from __future__ import annotations

from lms3d.device.pool_layout import GPU_WASTE_BYTES


def split_closely(limit_bytes: int) -> None:
    """Lets no piece be `GPU_WASTE_BYTES` larger than wanted. Call it before TensorFlow creates its devices."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context as eager_context

    context = eager_context.context()
    config = config_pb2.ConfigProto()
    if context._config is not None:
        config.CopyFrom(context._config)
    config.gpu_options.experimental.internal_fragmentation_fraction = GPU_WASTE_BYTES / limit_bytes
    context._config = config
