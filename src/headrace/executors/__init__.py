"""What runs the stages of a plan, one kind of executor per file.

table      the kinds there are; placement, workers, migration, `serve` and `profile` read it
base       what a kind states, and the contract of what it opens
onnx, onnx_session, onnx_runs   ONNX Runtime on a CPU core
opened     a file is open once in a process
pytorch    PyTorch on a CPU core, by torch_model over torch_program; translated/: ONNX's operators
cuda       an NVIDIA GPU, by either
mps, mps_keeper   processes that have a part of one each
emulated   hardware that is not here
"""
