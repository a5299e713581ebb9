"""A simulator of text models with known timing, which logs the ground truth; serve/openai has its endpoints.

settings    its settings                             prompts          counting prompt tokens, words of responses
jobs        the interface of timing models           response         one response in progress
fixed       fixed TTFT and ITL                       faults           injected faults
batch, kv   a step-synchronous batch engine          metrics          /metrics with vLLM's names
clockwork   one timer that drives everything         server           from a request's arrival to its response
truth       its timestamps, one line per request
"""
