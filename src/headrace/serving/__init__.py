"""Real time: what answers requests while they come.

lifecycle      a server: its fronts, its engine, from listening to the last answer
terminal       that of a server, and what SIGHUP means as it goes
front          one protocol each; translates to the core and counts nothing
changes        other plans while serving; apps functions that call models
core           what can be asked for, and how each inference ends; all counting
engine         the plan at work: dispatcher, pending requests, live driver
workers        processes that run stages, and the tensors between them
addresses      who counts as one caller; complaints what the log says of those not let in

Each imports only what stands below it; fronts, changes and apps do not know each other.
"""
