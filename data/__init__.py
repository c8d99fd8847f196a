"""From files on disk to batches: everything about data, and nothing about models or training.

| room                         | contents                                                                              |
|------------------------------|---------------------------------------------------------------------------------------|
| `brats/`                     | brain scans                                                                           |
|   `layouts`, `folders`       | finding the cases of a folder                                                         |
|   `naming`, `published`, `msd`, `manifest` | the files of a case: a row or a class for each layout; the user's own table |
|   `schema`, `definition`     | the meaning of labels; the user's own schema                                          |
|   `case`, `header`, `volume`, `frame` | checks that a case is sound, and that its files lie in the head alike        |
|   `patients`                 | finding out which cases, of whatever year, are of the same patient                    |
|   `preprocess`, `cache`      | crop, resize to a cube, and back; cubes on disk, made once per data set and resolution |
|   `normalise`, `symmetries`, `pipeline` | training statistics, the 48 symmetries of the cube, batches                |
| `chest_xray/`                | ChestX-ray14                                                                          |
|   `collection`, `patient_split`, `png` | the data set and its problems; the split by patient; images                 |
|   `tfrecord`, `shards`, `records`, `pipeline` | TFRecord shards: the format, writing, reading; batches               |
| `phantoms/`                  | embedded data sets in both layouts; `exact`: arithmetic that is the same everywhere   |
| `split`, `stream`, `workers`, `files`, `errors` | shared by all                                                      |
| `prepare`                    | `python -m lms3d.data.prepare`                                                              |

Only `stream` and the two `pipeline`s import TensorFlow.
"""
