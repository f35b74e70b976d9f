"""How much may wait, in virtual time as on a server. Imports nothing: help texts name it."""

QUEUE_LIMIT = 4096
"""Requests of one model that may wait for a decision, where nobody says otherwise."""
