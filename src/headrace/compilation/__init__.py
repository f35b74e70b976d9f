"""Compilation of hot loops to machine code by numba (decisions 0009 and 0019).

loops      the decorators: every function of ours that is compiled goes through one of them
frozen     what machine code holds of other places, so that none is loaded that holds old values
tables     many arrays of records under one name, the same in compiled code and in plain Python
internals  what we use of numba beside its documented interface, and nothing else does

With NUMBA_DISABLE_JIT=1 the decorators return what they are given, `tables` checks every index, and
`internals` and `frozen` are not imported.
"""
