"""The planners of apps, by name; apart, since what they import compiles loops (decision 0009)."""

APP_PLANNERS = (
    "least-cost",
    "least-cost-dummy",
    "harpagon-optimal",
    "exhaustive",
    "harpagon",
    "nexus",
    "scrooge",
    "inferline",
    "clipper",
    "harp-2d",
    "harp-dt",
    "harp-1c",
    "harp-2c",
    "harp-nb",
    "harp-nhc",
    "harp-nhe",
    "harp-nd",
    "harp-0re",
    "harp-1re",
    "harp-tb",
    "harp-q0.01",
    "harp-q0.1",
    "harp-nnm",
    "harp-ncd",
)
"""exact: the first two, the optimum of the paper's form, and by trying everything; the paper's:
harpagon; its baselines; its ablations (section IV.C)."""
