"""Sharing devices exactly: models in turns on parts of devices (gpu-lets), planned with a proof.

**What a plan is.** A device is cut into parts by a legal split. On each part a few models take
turns (three, or more where that is little to look at): in every duty cycle D each runs one batch,

    sum of latency_i(b_i) x slowdown_i  <=  D,      D + latency_i(b_i) x slowdown_i  <=  budget_i,
    rate_i = b_i / D

and a model's rates on all parts add up to what it carries. (gpu-lets, sections 2.2 and 4; a part
with one model has D = its latency, the paper's saturated gpu-let.)

**Why parts are their batch sizes.** For given tenants and batch sizes the least D that has time for
all of them gives the highest rates and the shortest waits, so no other D is of use. That leaves
finitely many parts, some thousands for five models, of which the walk of `listing` names every one
that keeps its promise. A part is left out only if another at the same place carries at least as
much of every model, and disturbs its neighbours no more: exchanged for that one, every plan holds.

**Why the bound is a bound.** The linear program of `master` lets parts and devices be fractions, so
no plan is better than its goal. It is solved over the parts that it needs; that it needs no others
is asked of all parts (`pricing`). By its prices every part and layout of devices wastes something,
and the waste of a plan adds up to its distance from the bound. So whoever asks for a plan within a
gap need only look at parts and layouts that waste no more than the gap, and of these at sets that
together waste no more: that is the walk of `walk` and `choosing`. A *no* has looked at all of them.

**What is asked** (`search`): every sum of whole devices' prices from the bound upwards, or
multiples z of the rates from the bound downwards. A rate counts up to what is asked for and not
beyond, which is what makes the relaxation tight: models with small rates share parts because more
of one of them is worth nothing.

    workload, devices   a problem in numbers: models; places, layouts, slowdowns
    memory              how the parts of a device share its memory
    tenants             how many models on a part are looked at
    listing             all parts that keep their promise
    master, pricing     the programs over parts and devices; prices
    walk, choosing      one question: does this suffice?
    alone, combining    many devices: what own parts cost, and which parts to share beside them
    rounding, raising   a plan from these, and a bound closer than the linear program's
    diving              a plan for many devices that interfere
    search              which questions, and what their answers prove
    arranging, planner, refusal, explain: from a problem, and back to a plan or its refusal

Cost: five models on four devices 5 ms (median), 0.2 s at most; with interference, where devices
have many more layouts, 1 to 8 s; twenty models on 100 devices some seconds to within 1 %. Source:
ours (decisions 0041 and 0078); the paper's Algorithm 1 is `planning.baselines.gpulet`.
"""
