"""A simulator of text models with known timing, which logs the ground truth; serve/openai has its endpoints.

settings  its settings                                      faults    which fault is injected into which request
server    from a request's arrival to its response          response  one response in progress, also with a fault
timing    timing models, fixed timing, and their timer      batch     a step-synchronous batch engine with a KV cache
prompts   counting prompt tokens, words of responses        truth     its timestamps, one line per request
"""
