"""What the heuristics of shared devices have in common.

cycles    batch sizes and duty cycles of one part's tenants
beside    the most that neighbours which are not chosen yet may slow a tenant
fleet     devices, their parts, and what is promised on them
answer    from a heuristic to a PlanResult, with the nearest feasible rates where it refuses
"""
