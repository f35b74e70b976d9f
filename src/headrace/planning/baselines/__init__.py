"""What planners are compared with.

no_partitioning, replicated_pairs   of pooled pipelines: whole models, and DART-r
gpulet       elastic partitioning (gpu-lets), without and with interference
squishy      squishy bin packing (Nexus): whole devices in turns
guided       guided self-tuning (GSLICE): parts of devices, no turns
every_split  the gpu-let heuristic on every cut of all devices
parts/       what the heuristics of shared devices have in common
"""
