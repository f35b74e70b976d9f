"""Tables and timelines from event logs and reports."""
