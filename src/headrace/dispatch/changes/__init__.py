"""From one plan to the next: the order of devices, the gate in front of a plan, the migration."""
