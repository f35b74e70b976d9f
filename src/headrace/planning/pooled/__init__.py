"""Pooled pipelines (PPipe): what `pooled` tries, in which order, and why there may be no plan.

planner        Problem -> PlanResult
exactly        the counting search of `planning.exact`, where it applies
search, selection, relaxation, rounding   columns and HiGHS, where it does not
refusal        the binding constraint, and the nearest SLO or rate that would do
"""
