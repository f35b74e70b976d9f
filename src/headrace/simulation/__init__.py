"""Virtual time: SimClock, arrivals, simulated slots and links around dispatch."""
