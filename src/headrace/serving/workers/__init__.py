"""Where stages run: processes, their tensors and their control channels.

placement      which process holds which slots, with which executor, on which core
supervisor, supervised, worker_process   processes watched and started again
worker, timelines   what runs in such a process; executors what runs a stage there
frames, channel     the control channel; arena, stage_io the tensors
"""
