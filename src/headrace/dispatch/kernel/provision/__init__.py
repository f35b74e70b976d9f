"""Models that come and go: more of them than fit the slots' memory (DeepPlan, made exact).

policy    the contract's functions, and which slot gets a request
order     the batches of a slot in order, and where one more fits without making another late
loads     what is brought to a slot, and when: links, memory, numbers
learned   how much longer loads take than profiled
eviction  who leaves when room is needed
tables    what is kept
"""
