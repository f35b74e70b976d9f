"""Apps of several models at least cost (Harpagon): exact, by the paper's heuristics, by others'.

candidates         what may serve a module, and the worst case under a dispatch policy (Theorem 1)
module_scheduling  Algorithm 1, dummy load (Theorem 2), latency reassignment
exact_module       every undominated (worst case, cost) of a module, proven
order              the graph as series and parallel parts
splitting          budgets: Algorithm 2, by throughput, evenly, quantised
exact_app          the least cost over all budgets, proven
schemes            the paper's planner, its ablations and its baselines, as settings of the above
exhaustive         the same answer by trying everything, in code of its own
planner            Problem -> PlanResult for each of them
"""
