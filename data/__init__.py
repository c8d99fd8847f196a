"""From files on disk to batches: everything about data, and nothing about models or training.

| room                         | contents                                                                              |
|------------------------------|---------------------------------------------------------------------------------------|
| `volumes/`                   | volumes of any organ                                                                  |
|   `case`, `header`, `volume`, `frame` | checks that a case is sound, and that its files lie in the head alike        |
|   `data_set`, `manifest`, `labels`, `patients` | what was found on disk; which cases are of the same patient         |
|   `preprocess`, `cache`      | crop, resize, and back; volumes on disk, made once per data set and grid              |
|   `normalise`, `symmetries`, `patches`, `targets`, `pipeline` | batches                                              |
| `brats/`                     | brain scans: a preset of `volumes/`                                                   |
|   `layouts`, `folders`       | finding the cases of a folder                                                         |
|   `naming`, `published`, `msd`, `manifest` | the files of a case: a row or a class for each layout; the user's own table |
|   `schema`, `definition`     | the meaning of labels; the user's own schema                                          |
| `segmentation/`              | any organ: `layouts` and `description` of nnU-Net and the Decathlon; `spacing`, `intensities` |
| `chest_xray/`                | ChestX-ray14                                                                          |
|   `collection`, `patient_split`, `png` | the data set and its problems; the split by patient; images                 |
|   `tfrecord`, `shards`, `records`, `pipeline` | TFRecord shards: the format, writing, reading; batches               |
| `phantoms/`                  | embedded data sets in both layouts; `exact`: arithmetic that is the same everywhere   |
| `split`, `stream`, `workers`, `files`, `errors` | shared by all                                                      |
| `prepare`                    | `python -m lms3d.data.prepare`                                                              |

Only `stream` and the two `pipeline`s import TensorFlow.
"""
