"""Cores as the system knows them."""

GONE = 8_191
"""To the system, a core that there is not is one that may not be used."""
