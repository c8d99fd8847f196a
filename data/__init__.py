"""From files on disk to batches: everything about data, and nothing about models or training.

| room                                  | what it holds                                                        |
|---------------------------------------|----------------------------------------------------------------------|
| `brats`, `msd`, `case`, `schema`      | which files make a case, what its labels mean, and whether it is sound |
| `frame`                               | whether two files lie in the head in the same way                     |
| `preprocess`                          | crop, resize to a cube, and the way back to the original grid         |
| `cache`                               | cubes on disk, made once per data set and resolution                  |
| `normalise`, `split`, `augment`       | training statistics, training/validation lists, the 48 cube symmetries |
| `stream`, `pipeline`                  | an order of samples that is a function; batches of cubes              |
| `phantom*`                            | an embedded data set in BraTS layout, made from nilearn's ICBM152     |
| `chest_xray`, `chest_split`, `png`    | ChestX-ray14 on disk: what is there, what is wrong with it, who tests |
| `tfrecord`, `shards`, `records`       | its images as TFRecord shards: the format, writing, reading           |
| `pipelines`                           | batches of radiographs, in four ways                                  |
| `radiograph*`                         | an embedded data set in the layout of ChestX-ray14                    |
| `exact`                               | arithmetic of `phantom*` and `radiograph*`: the same on every machine |
| `prepare`                             | `python -m data.prepare`                                              |

Only `stream`, `pipeline` and `pipelines` import TensorFlow.
"""
