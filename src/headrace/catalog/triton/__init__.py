"""Triton's model repositories, read as problems of ours."""
