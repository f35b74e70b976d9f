"""What runs a stage inside a worker. One kind per file, imported only where it is used."""
