"""The `data` section of the config: one class per kind of data, which workload.KINDS has the code for."""

from inferometer.config.data.datasets import Csv, Hub, Jsonl, OpenAiBatch, Parquet, Prompts, PythonCode, ShareGpt
from inferometer.config.data.generated import PrefixTier, Random, SharedPrefix, Synthetic
from inferometer.config.data.mix import Mix, TrafficClass, Unmixed, class_headers
from inferometer.config.data.sessions import Conversation
from inferometer.config.data.tensors import Images, InputFill, Messages, TensorInput, Tensors
from inferometer.config.data.traces import Trace

Data = Unmixed | Mix

__all__ = [
    "Conversation",
    "Csv",
    "Data",
    "Hub",
    "Images",
    "InputFill",
    "Jsonl",
    "Messages",
    "Mix",
    "OpenAiBatch",
    "Parquet",
    "PrefixTier",
    "Prompts",
    "PythonCode",
    "Random",
    "ShareGpt",
    "SharedPrefix",
    "Synthetic",
    "TensorInput",
    "Tensors",
    "Trace",
    "TrafficClass",
    "Unmixed",
    "class_headers",
]
