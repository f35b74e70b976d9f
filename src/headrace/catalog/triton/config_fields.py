"""All fields of Triton's `config.pbtxt`: those that are carried over and those that are named.

A field that stands in no row is a mistake in the file, or newer than this table: it is refused.
"""

from typing import Any

from google.protobuf import message_factory  # type: ignore[import-untyped]

from headrace.catalog.message_tables import message_pool

_PACKAGE = "triton"

_MESSAGES = {
    "RateLimiterResource": "name 1 string, global 2 bool, count 3 uint32",
    "ModelRateLimiter": "resources 1 *RateLimiterResource, priority 2 uint32",
    "SecondaryDevice": "kind 1 SecondaryDeviceKind, device_id 2 int64",
    "ModelInstanceGroup": (
        "name 1 string, kind 4 InstanceKind, count 2 int32, rate_limiter 6 ModelRateLimiter,"
        " gpus 3 *int32, secondary_devices 8 *SecondaryDevice, profile 5 *string, passive 7 bool,"
        " host_policy 9 string"
    ),
    "ModelTensorReshape": "shape 1 *int64",
    "ModelInput": (
        "name 1 string, data_type 2 DataType, format 3 Format, dims 4 *int64,"
        " reshape 5 ModelTensorReshape, is_shape_tensor 6 bool, allow_ragged_batch 7 bool,"
        " optional 8 bool, is_non_linear_format_io 9 bool"
    ),
    "ModelOutput": (
        "name 1 string, data_type 2 DataType, dims 3 *int64, reshape 5 ModelTensorReshape,"
        " label_filename 4 string, is_shape_tensor 6 bool, is_non_linear_format_io 7 bool"
    ),
    "BatchInput": (
        "kind 1 BatchInputKind, target_name 2 *string, data_type 3 DataType, source_input 4 *string"
    ),
    "BatchOutput": "target_name 1 *string, kind 2 BatchOutputKind, source_input 3 *string",
    "VersionsLatest": "num_versions 1 uint32",
    "VersionsAll": "",
    "VersionsSpecific": "versions 1 *int64",
    "ModelVersionPolicy": (
        "latest 1 |VersionsLatest, all 2 |VersionsAll, specific 3 |VersionsSpecific"
    ),
    "Graph": "level 1 int32",
    "GraphSpecShape": "dim 1 *int64",
    "LowerBound": "batch_size 1 int32, input 2 {GraphSpecShape}",
    "GraphSpec": "batch_size 1 int32, input 2 {GraphSpecShape}, graph_lower_bound 3 LowerBound",
    "Cuda": (
        "graphs 1 bool, busy_wait_events 2 bool, graph_spec 3 *GraphSpec, output_copy_stream 4 bool"
    ),
    "Accelerator": "name 1 string, parameters 2 {string}",
    "ExecutionAccelerators": (
        "gpu_execution_accelerator 1 *Accelerator, cpu_execution_accelerator 2 *Accelerator"
    ),
    "PinnedMemoryBuffer": "enable 1 bool",
    "ModelOptimizationPolicy": (
        "graph 1 Graph, priority 2 ModelPriority, cuda 3 Cuda,"
        " execution_accelerators 4 ExecutionAccelerators, input_pinned_memory 5 PinnedMemoryBuffer,"
        " output_pinned_memory 6 PinnedMemoryBuffer, gather_kernel_buffer_threshold 7 uint32,"
        " eager_batching 8 bool"
    ),
    "ModelQueuePolicy": (
        "timeout_action 1 TimeoutAction, default_timeout_microseconds 2 uint64,"
        " allow_timeout_override 3 bool, max_queue_size 4 uint32"
    ),
    "ModelDynamicBatching": (
        "preferred_batch_size 1 *int32, max_queue_delay_microseconds 2 uint64,"
        " preserve_ordering 3 bool, priority_levels 4 uint64, default_priority_level 5 uint64,"
        " default_queue_policy 6 ModelQueuePolicy,"
        " priority_queue_policy 7 {uint64:ModelQueuePolicy}"
    ),
    "Control": (
        "kind 1 ControlKind, int32_false_true 2 *int32, fp32_false_true 3 *float,"
        " bool_false_true 5 *bool, data_type 4 DataType"
    ),
    "ControlInput": "name 1 string, control 2 *Control",
    "InitialState": (
        "data_type 1 DataType, dims 2 *int64, zero_data 3 |bool, data_file 4 |string, name 5 string"
    ),
    "State": (
        "input_name 1 string, output_name 2 string, data_type 3 DataType, dims 4 *int64,"
        " initial_state 5 *InitialState, use_same_buffer_for_input_output 6 bool,"
        " use_growable_memory 7 bool"
    ),
    "StrategyDirect": "max_queue_delay_microseconds 1 uint64, minimum_slot_utilization 2 float",
    "StrategyOldest": (
        "max_candidate_sequences 1 int32, preferred_batch_size 2 *int32,"
        " max_queue_delay_microseconds 3 uint64, preserve_ordering 4 bool"
    ),
    "ModelSequenceBatching": (
        "direct 3 |StrategyDirect, oldest 4 |StrategyOldest,"
        " max_sequence_idle_microseconds 1 uint64, control_input 2 *ControlInput, state 5 *State,"
        " iterative_sequence 6 bool"
    ),
    "Step": (
        "model_name 1 string, model_version 2 int64, input_map 3 {string}, output_map 4 {string},"
        " model_namespace 5 string"
    ),
    "ModelEnsembling": "step 1 *Step, max_inflight_responses 2 uint32",
    "ModelParameter": "string_value 1 string",
    "WarmupInput": (
        "data_type 1 DataType, dims 2 *int64, zero_data 3 |bool, random_data 4 |bool,"
        " input_data_file 5 |string"
    ),
    "ModelWarmup": "name 1 string, batch_size 2 uint32, inputs 3 {WarmupInput}, count 4 uint32",
    "ModelOperations": "op_library_filename 1 *string",
    "ModelTransactionPolicy": "decoupled 1 bool",
    "Agent": "name 1 string, parameters 2 {string}",
    "ModelRepositoryAgents": "agents 1 *Agent",
    "ModelResponseCache": "enable 1 bool",
    "MetricIdentifier": "family 1 string",
    "HistogramOptions": "buckets 1 *double",
    "MetricControl": (
        "metric_identifier 1 MetricIdentifier, histogram_options 2 |HistogramOptions"
    ),
    "ModelMetrics": "metric_control 1 *MetricControl",
    "ModelConfig": (
        "name 1 string, platform 2 string, backend 17 string, runtime 25 string,"
        " version_policy 3 ModelVersionPolicy, max_batch_size 4 int32, input 5 *ModelInput,"
        " output 6 *ModelOutput, batch_input 20 *BatchInput, batch_output 21 *BatchOutput,"
        " optimization 12 ModelOptimizationPolicy, dynamic_batching 11 |ModelDynamicBatching,"
        " sequence_batching 13 |ModelSequenceBatching, ensemble_scheduling 15 |ModelEnsembling,"
        " instance_group 7 *ModelInstanceGroup, default_model_filename 8 string,"
        " cc_model_filenames 9 {string}, metric_tags 10 {string}, parameters 14 {ModelParameter},"
        " model_warmup 16 *ModelWarmup, model_operations 18 ModelOperations,"
        " model_transaction_policy 19 ModelTransactionPolicy,"
        " model_repository_agents 23 ModelRepositoryAgents, response_cache 24 ModelResponseCache,"
        " model_metrics 26 ModelMetrics"
    ),
}
_ENUMS = {
    "DataType": (
        "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16"
        " TYPE_INT32 TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16"
    ),
    "Format": "FORMAT_NONE FORMAT_NHWC FORMAT_NCHW",
    "InstanceKind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
    "SecondaryDeviceKind": "KIND_NVDLA",
    "BatchInputKind": (
        "BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT"
        " BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
        " BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN"
    ),
    "BatchOutputKind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
    "ModelPriority": "PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN",
    "TimeoutAction": "REJECT DELAY",
    "ControlKind": (
        "CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END CONTROL_SEQUENCE_CORRID"
    ),
}
# proto2, so that a field that was given is told from one that was not.
_POOL = message_pool(_PACKAGE, _MESSAGES, _ENUMS, "proto2")

ModelConfig: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_PACKAGE}.ModelConfig")
)
