"""Least cost within the cluster's stock of devices, for all apps together (decision 0015).

devices  what there is, and whether machines fit it
choice   the cheapest machines of one app within limits, at prices of scarce devices
prices   such prices, and the bound that they prove (Lagrange)
search   branch and bound over slots
fit      plans that fit, or the refusal that says how many devices would do
"""
