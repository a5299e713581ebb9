"""KServe v2, the Open Inference Protocol as Triton and MLServer speak it: tensors, infer, generate, control."""
