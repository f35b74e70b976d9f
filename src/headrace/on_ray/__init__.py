"""Several machines, by Ray: who is there, what runs where, what is watched.

connection.py  a Ray cluster at an address, or one clear sentence
nodes.py       the cluster's nodes, as far as plans are about them
matching.py    which node of a plan is which node of the cluster
kinds.py       which kinds of devices there are; profiling.py times a model on each
jobs.py        the calls of a study on the cluster's CPUs

Ray is imported by this package alone, and only when something here runs. Requests and tensors never
go through it.
"""
