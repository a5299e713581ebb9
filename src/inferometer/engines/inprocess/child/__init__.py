"""The process that an engine runs in. It has no package of ours: only the standard library and the engine's own packages.

`PYTHON child/ SOCKET` starts it (__main__.py), in whichever interpreter the engine is installed.

host.py              reads commands, hands them to the engine, reports errors; ends when its parent does
errors.py            what went wrong, in words: a package that is missing, too little memory, or anything else
jobs.py              the requests of a level, and what is recorded about them
prompts.py           from a prompt, messages or token ids to token ids
hugging_face.py      transformers: one request at a time, and static batches
continuous.py        transformers: continuous batching
vllm_offline.py      vLLM's LLM.generate
encoders.py          encoders with torch and ONNX Runtime
devices.py           devices and data types of torch, its memory, its profiler
"""
