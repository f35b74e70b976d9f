"""Exact search by counting: columns of pipelines, sets of them, and what each set wastes.

columns        pipelines as counts of devices; patterns whole slot counts of one column
prices, values bounds; walk, outcomes   the sets of patterns that carry a target
search, free, cost, remainders, shares, slots   how the demands' answers meet, by problem
"""
