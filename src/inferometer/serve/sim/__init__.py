"""OpenAI endpoints on a simulator whose timing is known, which logs the ground truth.

settings    what it is told                       openai, frames   what is asked, and the bytes of answers
jobs        what a timing model promises          prompts          tokens in, words out
fixed       TTFT and ITL as told                  answer           one answer under way
batch, kv   a step-synchronous engine             faults, shaping  what goes wrong, on purpose
clockwork   one timer drives it all               metrics          /metrics, with vLLM's names
truth       its own stamps, a line a request      server           routes: from arrival to answer
"""
