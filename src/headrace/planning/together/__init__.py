"""Apps, models and stages of models share devices and parts in one problem (planner `shares`).

**Steps.** Whatever is planned is a step: a whole model, a module of an app, or a stage of a model
that is cut. A step has a rate, and shares parts as models do (`planning.shares`): a request of it
waits at most D for its turn, and then for its batch. What hangs together is a *chain*: steps, who
waits for whom, and one budget for the longest path. A model alone is a chain of one step.

    path over the steps of D + latency (+ transfers between stages)  <=  budget of the chain

**Budgets.** At given budgets of all steps, `planning.shares` finds the least price, with a proof.
Over the budgets goes a best-first search over boxes (`budgets`): with every step at the upper end
of its range the price is a bound; where the waits of what was found fit all chains, it is the
answer; otherwise some step on a path that is too long takes more than the lower end of its range,
and the box is cut there. Waits are among finitely many, so the search ends, with a proof.

**Stages.** A model that no part runs whole (memory, or its SLO) is cut: blocks per stage, device
type of each, one batch size, and n equal pipelines, of which every stage is one tenant of one slot
(`cuts`). Combinations of cuts are looked at cheapest first, by what they take of devices as if
those could be bought in fractions, until that is no better than what was found. Where every model
runs whole but the rates cannot be carried, all models with several blocks may be cut. For `max-min`
this search is asked for multiples of the weights (`planner`).

    steps       chains of a problem, and what their batches take of parts
    cuts        ways to cut a model, with the least that each takes
    least_cut   the shortest that a model in stages takes, for refusals
    budgets     the search over budgets
    assembly    back to a plan
    cheapest    which models are cut; the least price, with its bound; refusals
    planner     whether any is; `max-min`

Source: ours (decision 0048).
"""
