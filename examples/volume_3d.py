"""A 3D network on volumes, in less memory than its training step takes: python examples/volume_3d.py [SIDE]"""

import sys

import keras
import numpy as np

import lms3d


def network(side: int) -> keras.Model:
    """Four convolutions and a skip connection; (B, side, side, side, 1) -> the same."""
    volume = keras.Input((side, side, side, 1))
    first = keras.layers.Conv3D(8, 3, padding="same", activation="relu")(volume)
    x = first
    for _ in range(2):
        x = keras.layers.Conv3D(8, 3, padding="same", activation="relu")(x)
    return keras.Model(volume, keras.layers.Conv3D(1, 3, padding="same")(keras.layers.Add()([first, x])))


def main(side: int) -> None:
    """Learns to smooth, under a limit between the smallest with LMS and the smallest without."""
    noisy = np.random.default_rng(7).random((4, side, side, side, 1), np.float32)
    model = network(side)
    model.compile("adam", "mse")
    batch = (noisy[:1], noisy[:1])
    needs = lms3d.estimate(model, batch)  # nothing is run
    limit = (needs.floor_bytes + needs.unedited_limit_bytes) // 2
    print(f"without LMS {needs.unedited_limit_bytes:,} bytes, with LMS at least {needs.floor_bytes:,}; limit {limit:,}")
    lms = lms3d.LMS(memory_limit=limit)
    model.fit(noisy, np.full_like(noisy, 0.5), batch_size=1, epochs=2, callbacks=[lms])
    print(f"the plan has a peak of {lms.report.predicted_peak_bytes:,} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
