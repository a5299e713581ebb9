"""The protocol's message classes: one schema for the whole server, since descriptor pools cannot be mixed."""

from typing import Any

from inferometer.wire import protobuf

SCHEMA = protobuf.bundled("kserve")
"""kserve.proto with its import, model_config.proto."""

Message = Any
"""An instance of a class that exists only at run time."""

KSERVE_SERVICE = "inference.GRPCInferenceService"

ModelConfig = SCHEMA.message("inference.ModelConfig")
ModelStatistics = SCHEMA.message("inference.ModelStatistics")
ModelStatisticsResponse = SCHEMA.message("inference.ModelStatisticsResponse")
ModelInferRequest = SCHEMA.message("inference.ModelInferRequest")
ModelInferResponse = SCHEMA.message("inference.ModelInferResponse")
ModelStreamInferResponse = SCHEMA.message("inference.ModelStreamInferResponse")
