"""The dispatch rule, compiled: one state machine for the simulator and the server."""
