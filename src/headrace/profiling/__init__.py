"""Cuts a model into blocks and times them."""
