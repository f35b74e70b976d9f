"""Frozen types that every layer shares. Imports nothing else of Headrace."""
