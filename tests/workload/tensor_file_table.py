"""What each file in perf_analyzer/ gives, and the one of the same name in ../shared: the model that it is for and settings, or the error.

A model is its inputs, `NAME: (datatype, sizes without the batch)`; the datatype has a `?` if the input is optional.
"""

from typing import Any

Inputs = dict[str, tuple[str, list[int]]]

NUMBERS: Inputs = {"INPUT0": ("INT32", [16]), "INPUT1": ("INT32", [16])}
WORDS: Inputs = {"INPUT0": ("BYTES", [16]), "INPUT1": ("BYTES", [16])}
WORD: Inputs = {"INPUT": ("BYTES", [1])}
OPEN_CUBES: Inputs = {"INPUT0": ("INT32", [-1, 8, -1]), "INPUT1": ("INT32", [-1, 8, -1])}
OPEN_WORDS: Inputs = {"INPUT0": ("BYTES", [-1, 8]), "INPUT1": ("BYTES", [-1, 8])}
TEXT: Inputs = {"INPUT0": ("UINT8", [14]), "INPUT1": ("UINT8", [14])}
OPTIONAL: Inputs = {"INPUT0": ("INT32?", [1]), "INPUT1": ("INT32?", [1])}
REPEAT: Inputs = {"IN": ("INT32", [-1]), "DELAY": ("UINT32", [-1]), "WAIT": ("UINT32", [1])}
SHAPED: Inputs = {"INPUT0": ("INT32", [2]), "DUMMY_INPUT0": ("FP32", [16])}
OPEN_MATRIX: Inputs = {"INPUT": ("INT32", [-1, -1])}

STREAMS = {"sequence": "streams"}
CHECKED = {"validate": True}

RUNS: dict[str, tuple[Inputs, dict[str, Any], int]] = {
    "doc_b64.json": (TEXT, {}, 3),
    "doc_content_and_shape.json": (OPEN_MATRIX, {"shape": {"INPUT": [1, 4, 4]}}, 4),
    "doc_sequences.json": (WORD, STREAMS, 9),
    "doc_tensors_flat.json": (NUMBERS, {}, 4),
    "doc_validation_data.json": (NUMBERS, CHECKED, 1),
    "float_data_with_shape.json": ({"INPUT": ("FP32", [-1])}, STREAMS | {"shape": {"INPUT": [1, 2]}}, 9),
    "int_data.json": (NUMBERS, {}, 4),
    "int_data_diff_shape.json": (OPEN_CUBES, {}, 4),
    "int_data_optional.json": (OPTIONAL, {}, 2),
    "output.json": (NUMBERS, CHECKED, 4),
    "repeat_int32_data.json": (REPEAT, {}, 1),
    "seq_data.json": (WORD, STREAMS, 9),
    "shape_tensor_data.json": (SHAPED, {}, 1),
    "string_data.json": (WORDS, {}, 4),
    "string_data_with_shape.json": (OPEN_WORDS, {"shape": {"INPUT0": [1, 2, 8], "INPUT1": [1, 2, 8]}}, 4),
}
"""Files of input_data that run: the model, further settings of the data, and how many different requests there are."""

ERRORS: dict[str, tuple[Inputs, dict[str, Any], str]] = {
    "doc_content_b64_shape.json": ({"INPUT": ("UINT8", [-1])}, {}, "entry 0: INPUT is neither a list nor base64"),
    "doc_openai_payload.json": (NUMBERS, {}, "its entries are requests of OpenAI's API (`payload`), not tensors"),
    "doc_openai_payload_multi_NOT_JSON.txt": (NUMBERS, {}, "is not JSON in the format of perf_analyzer's --input-data"),
    "non_aligned_output.json": (NUMBERS, CHECKED, "validation_data has 1 entries for the 4 of data"),
}
"""Files of input_data that give an error before the run."""

WRONG: dict[str, tuple[Inputs, dict[str, Any], str]] = {
    "wrong_output.json": (NUMBERS, CHECKED, "output OUTPUT0 has 16 elements; 10 were expected"),
    "seq_output.json": (WORD, CHECKED | STREAMS, "output OUTPUT: element 0 is '1', expected '2'"),
}
"""Files of input_data for which some responses are failures (`wrong_output`), with the message."""

CONFIGS: dict[str, dict[str, tuple[str, list[int]]]] = {
    "densenet_onnx.config.pbtxt": {"data_0": ("FP32", [3, 224, 224])},
    "ensemble.config.pbtxt": {"INPUT0": ("FP32", [16]), "INPUT1": ("FP32", [16])},
    "inception_onnx.config.pbtxt": {"input:0": ("FP32", [299, 299, 3])},
    "mock_llm.config.pbtxt": {"text_input": ("BYTES", [1, 1]), "stream": ("BOOL", [1, 1])},
    "simple.config.pbtxt": {"INPUT0": ("INT32", [1, 16]), "INPUT1": ("INT32", [1, 16])},
    "simple_dyna_sequence.config.pbtxt": {"INPUT": ("INT32", [1, 1])},
    "simple_identity.config.pbtxt": {"INPUT0": ("BYTES", [1, 1])},
    "simple_repeat_decoupled.config.pbtxt": {"IN": ("INT32", [1]), "DELAY": ("UINT32", [1]), "WAIT": ("UINT32", [1])},
    "simple_sequence.config.pbtxt": {"INPUT": ("INT32", [1, 1])},
    "simple_string.config.pbtxt": {"INPUT0": ("BYTES", [1, 16]), "INPUT1": ("BYTES", [1, 16])},
}
"""Files of config_pbtxt: the inputs of a random request to such a model, with full shapes."""

NOT_CONFIGS = {"vllm_llama31.config.pbtxt": "its backend declares the inputs when it loads the model"}
"""Files of config_pbtxt from which no request can be made, and why."""
