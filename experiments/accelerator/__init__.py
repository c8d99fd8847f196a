"""The rooms of `experiments.gpu_case_study`.

card        what is computed on; a child asks TensorFlow       scale       which cubes, limits and steps: of a GPU, of a rehearsal
sections    which trainings answer which question              trainings   part -> result, saved, within the time
check       the first minute: a verdict for each question      lockstep    warm up side by side, timed steps in turn
placement   a child: where the ops of a plan are placed        study       sections in turn, each with its share of the time
tables      results -> Markdown and CSV                        page        the page
"""
