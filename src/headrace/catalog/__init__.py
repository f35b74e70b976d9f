"""Files in and out: schema-versioned documents, ONNX graphs, event logs."""
