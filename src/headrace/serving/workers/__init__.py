"""Where stages run: processes, their tensors and their control channels.

placement      which process holds which slots, with which executor, on which core
cores, control_groups, device_parts   what keeps slots to their parts of a processor, and of a GPU
host           a machine that workers run on: starts them, says what they may use
supervisor, supervised, worker_process   processes watched and started again
beats, pulse   signs of life of a worker, and the watch for them
activity       whether a process that says nothing is hung, or has had no core to say it on
hangs          how long a batch may take in a worker that gives them
descriptors, kept_files   what the server holds open, so that a worker can be started at any time
worker, timelines   what runs in such a process; `headrace.executors` what runs a stage there
frames, channel     the control channel
arena, stage_io, transport, placeholder_tensors   the tensors, and how they get to the next stage
status         what all of that is doing
"""
