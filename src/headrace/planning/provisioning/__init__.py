"""Starting models that are not in memory (DeepPlan): what to load, what to run from host memory.

planners   name -> planner: on-demand, pipeswitch, initial, deepplan, deepplan+pt, exact
pipeline   the published ones that load layer by layer or in groups (PipeSwitch)
algorithm  DeepPlan's Algorithm 1, and its equal split for parallel transmission
exact      the soonest start there is, with its proof
limits     what the layers to come add at least, by weights that fall along them
by_layer   the proof from both ends, by layer on one device, compiled
labels     the walk over the layers of the primary link, compiled
backward   the walk over the layers of the helper, compiled

Times come from `headrace.starts` alone.
"""
