"""What users of other tools bring along: their config files and command lines, and the reports that their own tools read.

inference_perf/   inference-perf's config files, run unchanged, and its report files
"""
