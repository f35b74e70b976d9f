"""The price of the whole devices that apps use, least (decision 0044).

case     what is known of all modules together, as arrays
tables   configurations of all modules as arrays
ladders  a module's whole machines within a budget: price against what they leave to a shared slot
slots    the cheapest machines and shared slots at given budgets, compiled
budgets  which budgets: branch and bound over boxes of them
bound    what no plan stays below, shared however often: loads in proportion, rounded up to devices
search   all modules together, or bundle by bundle
assembly the plan document
planner  Problem -> PlanResult, within the stock of devices
refusal  why there is no plan, and the SLOs or devices with which there is one
explain  what the bill is made of
"""
