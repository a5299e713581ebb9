"""Text generation with continuous batching: decoder.py computes, engine.py schedules, pieces.py makes text of tokens,
kserve.py and language.py are its front ends."""
