"""Requests of many items, whose pipelines grow and shrink with the load (Accordion).

policy      the contract's functions, and when places are given anew
tables      what is kept of requests, places and depths; how long the rest of a request lasts
requests    rows: those that wait, in order, and those under way
places      which slots serve a request: taken, given back, exchanged; its items sent
by_deadline `malleable`: places by deadline, and back when they fall idle
fixed       `accordion` and the baselines of its study, with the dropout predictor
"""
