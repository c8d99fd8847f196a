"""The rooms of `experiments.scaling`.

communication  all-reduce and stragglers, in seconds      shares       data that does not divide: the accounting
model          job, machine, ranks -> step and efficiency case_study   Table 7, its cluster, calibration and check
model_report   the model's tables                         figure       results -> PNG
launch         starts N ranks, within a time limit        runs         which runs; saved, resumed, skipped
measured       a run directory -> one measurement         table        measurements -> CSV and Table 7's form
probe          this machine's links, by real all-reduces  ranks_probe  what each of its ranks does
"""
