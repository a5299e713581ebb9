"""Several processes that are one server to the outside: front ends that share the ports, and models in processes of
their own. `hub` starts them and passes on what concerns all of them, `group` is a front end's view of the others,
`model_process` has the two ends of a model in another process, `link` and `segments` connect them."""
