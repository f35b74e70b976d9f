"""Decisions only: no I/O, no asyncio, no threads; time comes in through a Clock."""
