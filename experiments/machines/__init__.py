"""The rooms of `experiments.machine_models`.

article      the case study's own network, layer by layer      steps        training steps as graphs, traced for a GPU
calibration  three published figures -> machines and TFLMS's parameters
predictions  the other figures, beside what the model says     ours         our plans at the case study's shares of memory
report       rows -> CSV and Markdown                          figure       rows -> PNG
"""
