"""One module per command of the `headrace` program; each only wires layers together."""
