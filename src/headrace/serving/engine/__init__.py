"""The plan at work: from a submitted inference to its end.

inference      what is submitted to the engine, and what comes back
engine         start, submit, migrate, stop
plan_in_service, data_plane, live_driver   one plan, its dispatcher and its workers
pending        which inference each request of the dispatcher belongs to
waiting_room   who has time waits before the dispatcher
loop_delays    what the loop itself adds to a request's time
offenders      clients whose inputs are often bad
live_migration from one plan to the next
live_clock, timer   real time
overhead       what a batch costs beside its execution
"""
