"""The libraries behind tokenizers: one file per format, each with a class that is a tokenizer.Tokenizer."""
