"""Apps in virtual time: requests, calls, fan-outs, changes of plan, and head-room for all of it."""
