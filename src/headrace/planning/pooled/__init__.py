"""Pooled pipelines (PPipe): what `pooled` tries, in which order, and why there may be no plan.

planner        Problem -> PlanResult
exactly        which engine answers where slots always fit: `planning.exact`, rounding, columns
search, selection, relaxation, rounding   columns and HiGHS: everywhere else, and to go on with
refusal        the binding constraint, and the nearest SLO or rate that would do
"""
