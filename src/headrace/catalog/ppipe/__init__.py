"""The published artifact of PPipe: its profiles, problems and plans as ours; its own counting."""
