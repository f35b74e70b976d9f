"""Starting models that are not in memory (DeepPlan): what to load, what to run from host memory.

planners   name -> planner: on-demand, pipeswitch, initial, deepplan, deepplan+pt, exact
pipeline   the published ones that load layer by layer or in groups (PipeSwitch)
algorithm  DeepPlan's Algorithm 1, and its equal split for parallel transmission
exact      the soonest start there is, with its proof, or with a lower limit
limits     what the layers to come add at least, by weights that fall along them, compiled
by_layer   the soonest start by layer over one link: arrays over all ends of its time, compiled
by_split   the same over two links, split by split: what the helper copies, what it forwards
labels     walks over the layers of the primary link and of the helper, compiled
rough      a start that is soon found, and nearly as soon as any

Times come from `headrace.starts` alone.
"""
