"""What every planner shares: cost tables, hardware, packing, placement, the plan document.

candidates     what a model costs, and the pipelines that meet its SLO
dominance      leaves out the pipelines that no best plan needs
hardware, patterns, packing, placement   devices, ways to cut them, slots on them by name
allotments     a pipeline with slot counts; models a demand with all that may serve it
master, solver the rows of the integer program; HiGHS
gateway        a plan promises no more than the gateway can pass on
assembly, binding, imported   the plan document, in words what binds it, and plans of others as ours
shared_times, shared_assembly   promises to tenants of shared slots, and the plan document of them
deadline       the time that is left
enough         the least SLO, or number of devices, with which something can be done
"""
