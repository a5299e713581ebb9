"""Several processes that are one server to the outside: front ends that share the ports, and models in processes of
their own. `hub` starts them and passes on what concerns all of them, `model_process` has the two ends of a model in
another process, and `link` connects them."""
