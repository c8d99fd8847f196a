"""From files on disk to batches: everything about data, and nothing about models or training.

| room                                  | what it holds                                                        |
|---------------------------------------|----------------------------------------------------------------------|
| `brats`, `msd`, `case`, `schema`      | which files make a case, what its labels mean, and whether it is sound |
| `preprocess`                          | crop, resize to a cube, and the way back to the original grid         |
| `cache`                               | cubes on disk, made once per data set and resolution                  |
| `normalise`, `split`, `augment`       | training statistics, training/validation lists, the 48 cube symmetries |
| `pipeline`                            | tf.data batches (the only room that needs TensorFlow at import)       |
| `phantom*`                            | an embedded data set in BraTS layout, made from nilearn's ICBM152     |
| `prepare`                             | `python -m data.prepare`                                              |
"""
