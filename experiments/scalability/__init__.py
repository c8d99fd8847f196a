"""The rooms of `experiments.scaling`.

model        all-reduce, stragglers, data that does not divide: job, machine, ranks -> step and efficiency
case_study   Table 7, its cluster, calibration, and the model's tables
measured     a run directory -> one measurement; measurements -> CSV, Table 7's form, a file to compare
probe        this machine's links, by real all-reduces
"""
