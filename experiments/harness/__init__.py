"""What all measuring experiments use. Each question has one command; each folder beside this one belongs to one question.

command    main function, common options, the end by Ctrl-C   commands   training and prediction by the real commands
part       a part of a study and its result, as values        methods    the ways to train that are compared
bench      parts -> results, a neighbour beside each          store      files of measurements; within a time limit
child      starts a process that trains, and talks with it    talk       the child's side of that talk
steps_tensorflow, steps_torch   children that train           variants, batches   networks that recompute, and data
ranks      a program on N ranks                               rank_study records on 1, 2, .. N ranks, and their report
runs       what the files of a training run say               published  the numbers of the four articles
table      Markdown and CSV    page   a report's text         figure     what the pictures share
"""
