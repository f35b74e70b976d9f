"""Compilation to machine code (decision 0009): the only users of numba's decorators."""
