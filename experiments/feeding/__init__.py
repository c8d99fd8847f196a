"""The rooms of `experiments.input_pipeline` and `experiments.resnet50_benchmark`.

orders          the CheXNet study's pipelines, old and new, and the best
images          shards for all ranks, made before any is started
alone           ranks as plain processes, measured in turns     loop            training steps, timed beside the wait for data
training_rank   a rank of training: on each order in turns, or in laps of the ResNet-50 benchmark
results         records of input_pipeline -> CSV, Markdown      figure          records -> PNG
accepted        JSON files that are compared: mean, standard deviation and 95 % interval of laps
"""
