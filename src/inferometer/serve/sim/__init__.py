"""A simulator with OpenAI endpoints and known timing, which logs the ground truth.

settings    its settings                             openai, frames   parsing requests, encoding responses
jobs        the interface of timing models           prompts          counting prompt tokens, words of responses
fixed       fixed TTFT and ITL                       answer           one response in progress
batch, kv   a step-synchronous batch engine          faults, shaping  injected faults
clockwork   one timer that drives everything         metrics          /metrics with vLLM's names
truth       its timestamps, one line per request     server           routes, from arrival to response
"""
