"""Least cost of one app, proven: a front per module, combined along the graph.

walk       the search for the cheapest machines of a module, compiled; its theory
fronts     every undominated (worst case, cost) of a module
any_dummy  a module's cost where the last machine may carry any dummy load
combine    the least cost over all splits of the app's budget
prime      the same for modules that are neither in series nor parallel
bracket    least cost with any dummy load, between a plan and a bound
"""
