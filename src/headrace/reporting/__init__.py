"""Tables, comparisons and timelines from event logs and reports."""
