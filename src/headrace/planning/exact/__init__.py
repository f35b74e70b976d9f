"""Exact search by counting: columns of pipelines, sets of them, and what each set wastes.

columns        what is counted: pipelines as slots of pools, and the stock of devices
patterns       columns with whole slot counts, as many as waste little
prices         of units and requests, from the relaxation: what a plan may waste in all

Two ways to the best plan, both walking down from the bound of the relaxation:

values, staircases   one or two device types: the most throughput of every vector of units, and
                     how demands share the stock; for max-min (free) and for least cost (cost)
walk, sets, remainders, search   any number of types: the sets of pipelines of each demand that
                     carry its target, and one of each that together fit the stock
"""
