"""Requests of apps: their calls, their deadlines, and when they are refused early."""
