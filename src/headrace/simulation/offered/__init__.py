"""When requests arrive: generated processes, public traces, files of ours."""
