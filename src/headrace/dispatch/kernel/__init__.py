"""The dispatch rule, compiled: one state machine for the simulator and the server.

handle              the way in: an event with numbers
flow, reports       what happens next: arrivals, batches on their paths; what drivers report
contract            what a policy is asked, and what it answers
reservation, reactive, batch_aware   the policies
probing, reservation_tables, feedback   what `reservation` is made of
queues, rows, links   requests that wait; batches and requests; transfers
journal             the way out: events for the log and orders to a driver
layout, tables      the state as tables of records; a topology laid out in them
"""
