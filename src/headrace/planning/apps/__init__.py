"""Apps of several models at least cost (Harpagon): exact, by the paper's heuristics, by others'.

planner     Problem -> PlanResult for each planner; `names` lists them
solve       one app, planned by name
candidates  what may serve a module, and its worst case under a dispatch policy (Theorem 1)
machines    the machines of a module as a schedule
order       the graph as series and parallel parts
exact       the least cost, proven
bill        the least price of whole devices, shared in turns
boxes       splits of the budgets as boxes, for searches over them
heuristics  the paper's planner, its ablations, its baselines
stock       the least cost within the devices that there are
exhaustive  the same answers by trying everything, in code of its own
assembly    schedules -> plan document
explain     why a plan is as it is
"""
