"""The rooms of `experiments.machine_models`.

article      the case study's own network, layer by layer      published    its figures
calibration  three of them -> machines and TFLMS's parameters  predictions  the others, beside what the model says
ours         our plans at the case study's shares of memory    report       CSV and Markdown       figure  PNG
"""
