"""What users of other tools bring along: their config files and command lines, and the reports that their own tools read.

command_line.py   words and options of a command line
vllm_bench.py     `vllm bench serve`: its options, and what they become (vllm_datasets.py: its datasets)
perf_analyzer.py  perf_analyzer: its options, and what they become
converting.py     from a file or a command line of any of these tools to our YAML
inference_perf/   inference-perf's config files, run unchanged, and its report files
"""
