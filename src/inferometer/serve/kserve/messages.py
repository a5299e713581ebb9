"""The protocol's message classes: one schema for the whole server, since descriptor pools cannot be mixed."""

from typing import Any

from inferometer.wire import protobuf

SCHEMA = protobuf.bundled("kserve")
"""kserve.proto with its import, model_config.proto."""

Message = Any
"""An instance of a class that exists only at run time."""

KSERVE_SERVICE = "inference.GRPCInferenceService"


def _class(name: str) -> type[Any]:
    return SCHEMA.message(name)


ModelConfig = _class("inference.ModelConfig")
ModelStatistics = _class("inference.ModelStatistics")
ModelInferRequest = _class("inference.ModelInferRequest")
ModelInferResponse = _class("inference.ModelInferResponse")
InferTensorContents = _class("inference.InferTensorContents")
ModelStreamInferResponse = _class("inference.ModelStreamInferResponse")

ServerMetadataResponse = _class("inference.ServerMetadataResponse")
ModelMetadataResponse = _class("inference.ModelMetadataResponse")
ModelConfigResponse = _class("inference.ModelConfigResponse")
ModelStatisticsResponse = _class("inference.ModelStatisticsResponse")
RepositoryIndexResponse = _class("inference.RepositoryIndexResponse")
SystemSharedMemoryStatusResponse = _class("inference.SystemSharedMemoryStatusResponse")
CudaSharedMemoryStatusResponse = _class("inference.CudaSharedMemoryStatusResponse")
TraceSettingResponse = _class("inference.TraceSettingResponse")
LogSettingsResponse = _class("inference.LogSettingsResponse")
