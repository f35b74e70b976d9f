"""What the paper and its public artifact state, to print beside our figures.

Paper: Kong et al., "PPipe", USENIX ATC 2025. Artifact: means over seeds of its own simulator, from
the reference data; only what those files do not hold as a table is stated here.
"""

LOAD_FACTOR = {"np": 66.8, "dart-r": 74.9, "ppipe": 96.5}
"""Percent at 99 % attainment, Poisson, mean of four clusters (section 7.2)."""

LOAD_FACTOR_BURSTY = {"np": 61.1, "dart-r": 69.4, "ppipe": 90.3}
"""The same on the trace of 2021, which is not public in a form that could be replayed here."""

REACHES_99 = {"np": 0.45, "dart-r": 0.55, "ppipe": 0.95}
"""Load factor up to which the first group's attainment on HC1 stays at 99 % (figure 7)."""

ARTIFACT_REACHES_99 = {
    "HC1": {"np": 0.45, "dart-r": 0.55, "ppipe": 0.95},
    "HC2": {"np": 0.60, "dart-r": 0.80, "ppipe": 1.00},
    "HC3": {"np": 0.60, "dart-r": 0.65, "ppipe": 0.95},
    "HC4": {"np": 0.70, "dart-r": 0.70, "ppipe": 0.95},
}

LOW_CLASS_UTILISATION = {"np": 8.1, "dart-r": 29.5, "ppipe": 73.6}
"""Percent (figure 8)."""

ARTIFACT_UTILISATION = {
    "low": {"np": 8.2, "dart-r": 29.6, "ppipe": 75.8},
    "high": {"np": 92.6, "dart-r": 92.6, "ppipe": 90.9},
}

ABLATION = {"reactive": 71.0, "ppipe": 92.0}
"""Percent (figure 10)."""

ARTIFACT_SHUFFLED = {"18": 83.3, "14": 92.1}
"""Reactive with its list of slots shuffled, one shuffle: all plans; those that fit the links."""

GAIN_BY_RATIO = {"2:14": 64.03, "12:4": 5.64}
"""Percent over no partitioning, by high : low devices (figure 13b, on a testbed)."""

GAIN_BY_MARGIN = {0.2: 24.9, 0.4: 52.8, 0.6: 16.4}
"""Percent over no partitioning (figure 13c, on a testbed)."""

SOLVER_S = {2: 3.5, 3: 35.3, 4: 77.0}
"""Seconds by number of device types (section 7.2, figure 14b)."""
