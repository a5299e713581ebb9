"""One small file per server engine. Each has `ENGINE`: a function from a Start to a Launch, and how the engine is installed."""
