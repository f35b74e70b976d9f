"""Harpagon's heuristics, its ablations and its baselines.

scheduling  one module within its budget: Algorithm 1, dummy load (Theorem 2), reassignment
splitting   budgets of modules: Algorithm 2, by throughput, evenly, quantised
schemes     every planner of the paper's Table III and section IV.C as settings of these
"""
