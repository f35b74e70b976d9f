"""Real time: LiveClock, gateway, workers and executors around dispatch."""
