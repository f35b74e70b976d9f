"""The plan at work: from a submitted inference to its end, whatever the protocol.

inference      what passes between a front and the engine
engine         the door: start, submit, migrate, stop
plan_in_service, data_plane, live_driver, desk   one plan, its dispatcher, and who waits for it
live_migration from one plan to the next
live_clock, timer   real time
epoch_logs, overhead   event logs; what a batch costs beside its execution
"""
