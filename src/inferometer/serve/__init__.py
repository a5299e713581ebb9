"""The reference server: OpenAI endpoints on a simulator whose timing is known, which logs the ground truth.

settings    what it is told                       parse, http      bytes in and out, with the kernel's receive stamps
jobs        what a timing model promises          openai, frames   what is asked, and the bytes of answers
fixed       TTFT and ITL as told                  prompts          tokens in, words out
batch, kv   a step-synchronous engine             answer           one answer under way
clockwork   one timer drives it all               faults, shaping  what goes wrong, on purpose
truth       its own stamps, a line a request      metrics          /metrics, with vLLM's names
server      routes: from arrival to answer        app, background  running it, here or in a child process
"""
