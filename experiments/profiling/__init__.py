"""The rooms of `experiments.profile`.

xplane     what TensorFlow's profiler wrote -> events by thread    lanes       these -> lanes of spans: compute, transfers, waits
intervals  unions and overlaps of times: no time counts twice
measure    lanes -> busy shares, throughput, overlap, gaps         report      these as tables and JSON
perfetto   lanes -> a trace for ui.perfetto.dev                    figure      lanes -> PNG
training   `lms3d.train`, which also knows the tier of `copying`        copying     a disk tier that copies back, as to a GPU
"""
