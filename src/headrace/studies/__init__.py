"""Many independent computations, on several processes or machines, with the same results.

calls.py      a function by its name, its argument and its result as JSON
jobs.py       what runs calls, and `results_of`, which a study is written with
processes.py  processes of this machine; worker.py is what runs in one
kept.py       results in a file, so that a study that was stopped goes on
sources.py    what code a result came from

Ray's way of running calls is `headrace.on_ray.jobs`.
"""
