"""From one plan to the next: the order of devices, slots taken out of service, the migration."""
