"""The rooms of `experiments.input_pipeline` and `experiments.resnet50_benchmark`.

parts           measurements on disk: resumed, skipped when time is over, kept to the settings they were begun with
study           what both programs share: options, ranks on cores, report
orders          the CheXNet study's pipelines, old and new, and the best
images          shards for all ranks, made before any is started
alone           ranks as plain processes, measured in turns     alone_rank      one of them
loop            training steps, timed beside the wait for data  wait            tf.data's own account of that wait
training_rank   a rank of training on each order in turns       benchmark_rank  a rank of the ResNet-50 benchmark
spread          mean, standard deviation, 95 % interval         results         parts of input_pipeline -> CSV, Markdown
figure          results -> PNG                                  accepted        JSON files that are compared
"""
