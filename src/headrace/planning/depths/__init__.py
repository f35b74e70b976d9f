"""Malleable plans: how every model is cut over one slot, over two and so on (Accordion, 3.1).

A request of B items goes through a pipeline of d slots in K = ceil(B / b) batches of b items:

    T(d) = fill + (K - 1) x pace

fill is what the first batch takes, all stages and transfers; pace is the slowest of them, at which
the others follow. For slots of one kind without transfers fill is the same for every cut but for
the server's own part of each stage, and pace decides. Where transfers or kinds differ, the cut of
least pace can have the longer fill. A plan states one cut for each depth: that of least T for the
model's typical number of items (the mean, rounded up), and of these that of least pace.

chain     one model on one cluster: times of ranges, transfers, kinds of slots and their counts
walk      the compiled recurrence: least fill, or least pace, over all cuts and kinds
exact     the cut of least T for each depth, with its proof
shisha    the heuristic that the paper takes its cuts from, as a baseline
table     depths of a model as a plan states them
capacity  requests per second of all models at once, and a bound on them
refusal   why there is no plan, and the nearest SLO, items or rates
planner   from a problem to a plan

What such a plan says and promises: decision 0050.
"""
