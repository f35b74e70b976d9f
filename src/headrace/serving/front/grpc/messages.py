"""The protocol's messages, from one table: names, numbers and types as they are on the wire."""

from typing import Any

from google.protobuf import message_factory  # type: ignore[import-untyped]

from headrace.catalog.message_tables import message_pool

PACKAGE = "inference"

_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live 1 bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready 1 bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name 1 string, version 2 string, extensions 3 *string",
    "ModelReadyRequest": "name 1 string, version 2 string",
    "ModelReadyResponse": "ready 1 bool",
    "ModelMetadataRequest": "name 1 string, version 2 string",
    "TensorMetadata": "name 1 string, datatype 2 string, shape 3 *int64",
    "ModelMetadataResponse": (
        "name 1 string, versions 2 *string, platform 3 string,"
        " inputs 4 *TensorMetadata, outputs 5 *TensorMetadata"
    ),
    "ModelConfigRequest": "name 1 string, version 2 string",
    "ModelInput": "name 1 string, data_type 2 DataType, dims 4 *int64",
    "ModelOutput": "name 1 string, data_type 2 DataType, dims 3 *int64",
    "ModelParameter": "string_value 1 string",
    "ModelSequenceBatching": "max_sequence_idle_microseconds 1 uint64",
    "ModelConfig": (
        "name 1 string, platform 2 string, backend 17 string, max_batch_size 4 int32,"
        " input 5 *ModelInput, output 6 *ModelOutput, parameters 14 {ModelParameter},"
        " sequence_batching 13 ModelSequenceBatching"
    ),
    "ModelConfigResponse": "config 1 ModelConfig",
    "InferParameter": (
        "bool_param 1 |bool, int64_param 2 |int64, string_param 3 |string,"
        " double_param 4 |double, uint64_param 5 |uint64"
    ),
    "InferTensorContents": (
        "bool_contents 1 *bool, int_contents 2 *int32, int64_contents 3 *int64,"
        " uint_contents 4 *uint32, uint64_contents 5 *uint64, fp32_contents 6 *float,"
        " fp64_contents 7 *double, bytes_contents 8 *bytes"
    ),
    "InferInputTensor": (
        "name 1 string, datatype 2 string, shape 3 *int64, parameters 4 {InferParameter},"
        " contents 5 InferTensorContents"
    ),
    "InferRequestedOutputTensor": "name 1 string, parameters 2 {InferParameter}",
    "ModelInferRequest": (
        "model_name 1 string, model_version 2 string, id 3 string, parameters 4 {InferParameter},"
        " inputs 5 *InferInputTensor, outputs 6 *InferRequestedOutputTensor,"
        " raw_input_contents 7 *bytes"
    ),
    "InferOutputTensor": (
        "name 1 string, datatype 2 string, shape 3 *int64, parameters 4 {InferParameter},"
        " contents 5 InferTensorContents"
    ),
    "ModelInferResponse": (
        "model_name 1 string, model_version 2 string, id 3 string, parameters 4 {InferParameter},"
        " outputs 5 *InferOutputTensor, raw_output_contents 6 *bytes"
    ),
    "ModelStreamInferResponse": "error_message 1 string, infer_response 2 ModelInferResponse",
    "ModelStatisticsRequest": "name 1 string, version 2 string",
    "StatisticDuration": "count 1 uint64, ns 2 uint64",
    "InferStatistics": (
        "success 1 StatisticDuration, fail 2 StatisticDuration, queue 3 StatisticDuration,"
        " compute_input 4 StatisticDuration, compute_infer 5 StatisticDuration,"
        " compute_output 6 StatisticDuration, cache_hit 7 StatisticDuration,"
        " cache_miss 8 StatisticDuration"
    ),
    "InferBatchStatistics": (
        "batch_size 1 uint64, compute_input 2 StatisticDuration,"
        " compute_infer 3 StatisticDuration, compute_output 4 StatisticDuration"
    ),
    "ModelStatistics": (
        "name 1 string, version 2 string, last_inference 3 uint64, inference_count 4 uint64,"
        " execution_count 5 uint64, inference_stats 6 InferStatistics,"
        " batch_stats 7 *InferBatchStatistics"
    ),
    "ModelStatisticsResponse": "model_stats 1 *ModelStatistics",
    "RepositoryIndexRequest": "repository_name 1 string, ready 2 bool",
    "ModelIndex": "name 1 string, version 2 string, state 3 string, reason 4 string",
    "RepositoryIndexResponse": "models 1 *ModelIndex",
    "ModelRepositoryParameter": (
        "bool_param 1 |bool, int64_param 2 |int64, string_param 3 |string, bytes_param 4 |bytes"
    ),
    "RepositoryModelLoadRequest": (
        "repository_name 1 string, model_name 2 string, parameters 3 {ModelRepositoryParameter}"
    ),
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": (
        "repository_name 1 string, model_name 2 string, parameters 3 {ModelRepositoryParameter}"
    ),
    "RepositoryModelUnloadResponse": "",
    "HealthCheckRequest": "service 1 string",
    "HealthCheckResponse": "status 1 int32",
}
_ENUMS = {
    "DataType": (
        "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16"
        " TYPE_INT32 TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16"
    )
}
_POOL = message_pool(PACKAGE, _MESSAGES, _ENUMS)


def message(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
