"""The load generator: an open-loop client of a running server."""
