"""The rooms of `experiments.scaling`.

communication  all-reduce and stragglers, in seconds      shares       data that does not divide: the accounting
model          job, machine, ranks -> step and efficiency case_study   Table 7, its cluster and calibration
model_report   the model's tables
measured       a run directory -> one measurement         table        measurements -> CSV and Table 7's form
result         measurements -> a file to compare          probe        this machine's links, by real all-reduces
"""
