"""From files on disk to batches: everything about data, and nothing about models or training.

| room                         | what it holds                                                                         |
|------------------------------|---------------------------------------------------------------------------------------|
| `brats/`                     | brain scans                                                                           |
|   `layouts`, `folders`       | which cases a folder holds                                                            |
|   `naming`, `published`, `msd`, `manifest` | which files make a case: a row or a class for each layout; a table of one's own |
|   `schema`, `definition`     | what its labels mean; a schema of one's own                                           |
|   `case`, `header`, `volume`, `frame` | whether it is sound; whether its files lie in the head alike                 |
|   `patients`                 | whose brain it is, in whatever year                                                   |
|   `preprocess`, `cache`      | crop, resize to a cube, and back; cubes on disk, made once per data set and resolution |
|   `normalise`, `augment`, `pipeline` | training statistics, the 48 symmetries of the cube, batches                   |
| `chest_xray/`                | ChestX-ray14                                                                          |
|   `collection`, `patient_split`, `png` | what is there and what is wrong with it; who trains and tests; images       |
|   `tfrecord`, `shards`, `records`, `pipeline` | TFRecord shards: the format, writing, reading; batches               |
| `phantoms/`                  | embedded data sets in both layouts; `exact`: arithmetic that is the same everywhere   |
| `split`, `stream`, `workers`, `files`, `errors` | what they share                                                    |
| `prepare`                    | `python -m data.prepare`                                                              |

Only `stream` and the two `pipeline`s import TensorFlow.
"""
