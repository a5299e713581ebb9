"""KServe v2 (the open inference protocol, as Triton and MLServer speak it): tensors, infer, generate, control."""
