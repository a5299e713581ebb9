"""What NVIDIA's own client gets from a server: run by the Python of the Triton environment, without any code of inferometer.

Reads one job per line from standard input (JSON), and prints one result per line. A job has `url` (http://... or grpc://...), and:

    mode        infer (the default), metadata, config, statistics, index, shared_memory
    protocol    http (binary tensors), http-json, grpc
    model, version, id, priority, timeout, parameters
    inputs      [{name, datatype, shape, data}]; data is the raw tensor in base64
    outputs     names of the requested outputs; default: all of them
    stream      true: over ModelStreamInfer; the result has `responses`, empty if the model sent none
    sequence    {id, start, end}
    classes     their number, for the classification extension

A result has `outputs` ([{name, datatype, shape, data}], with `model`, `version` and `id`), or `responses` (a list of those),
or `result` (the server's own JSON; over gRPC it is protobuf's, without zeros and with 64-bit integers as strings), or `error`
and the `status` that the client saw; `broken` is an error of the oracle itself. `shared_memory` is an inference whose inputs
and outputs are in system shared memory: its result also has the regions registered during and after it.

Another mode, `calls`, has `http` and `grpc` (URLs) and `calls`, a list, and returns `results`, one for each, in that order. With
`ca`, a PEM file, all are made over TLS. A call has `client` (http, http.aio, grpc, grpc.aio) and `call`: any method of that client, with its `words` and `options`, or

    infer          as above, and with `json`, `request_compression`, `response_compression`, `compression`, `client_timeout`
    at_once        the same request `times` times, by async_infer or concurrently; the result has `responses`
    stream         `requests` in one stream; all `responses` with `final`, up to the last one's end or the first error
    shared_memory  as above, for asyncio, too; `room` sets the bytes for each output
"""

import asyncio
import base64
import inspect
import json
import queue
import ssl
import sys
import time
import traceback
import uuid
from contextlib import AsyncExitStack, ExitStack
from urllib.parse import urlsplit

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from tritonclient import utils
from tritonclient.utils import shared_memory

WAIT_S = 30


def main():
    for line in sys.stdin:
        print(json.dumps(run_job(json.loads(line))), flush=True)


def run_job(job):
    if job.get("mode") == "calls":
        return {"results": asyncio.run(calls(job))}
    library, address = module(job), urlsplit(job["url"]).netloc
    try:
        with library.InferenceServerClient(address) as client:
            return MODES[job.get("mode", "infer")](client, job)
    except utils.InferenceServerException as error:
        return {"error": error.message(), "status": error.status()}
    except Exception:
        return {"broken": traceback.format_exc()}


def module(job):
    return grpcclient if job["protocol"] == "grpc" else httpclient


# --- metadata and statistics --------------------------------------------------------------------------------------------


def metadata(client, job):
    if job.get("model"):
        return {"result": plain(client.get_model_metadata, job, job["model"], job.get("version", ""))}
    return {"result": plain(client.get_server_metadata, job)}


def config(client, job):
    found = plain(client.get_model_config, job, job["model"], job.get("version", ""))
    return {"result": found["config"] if job["protocol"] == "grpc" else found}


def statistics(client, job):
    return {"result": plain(client.get_inference_statistics, job, job.get("model", ""), job.get("version", ""))}


def index(client, job):
    found = plain(client.get_model_repository_index, job)
    return {"result": found["models"] if job["protocol"] == "grpc" else found}


def plain(method, job, *words):
    return method(*words, as_json=True) if job["protocol"] == "grpc" else method(*words)


# --- inference ----------------------------------------------------------------------------------------------------------


def infer(client, job):
    words = wishes(job) | {"model_name": job["model"], "inputs": inputs(job), "outputs": outputs(job)}
    if job.get("stream"):
        return {"responses": streamed(client, words)}
    if job["protocol"] == "grpc":
        words["client_timeout"] = WAIT_S
    return view(client.infer(**words), job)


def wishes(job):
    sequence = job.get("sequence", {})
    return {
        "model_version": job.get("version", ""),
        "request_id": job.get("id", ""),
        "sequence_id": sequence.get("id", 0),
        "sequence_start": sequence.get("start", False),
        "sequence_end": sequence.get("end", False),
        "priority": job.get("priority", 0),
        "timeout": job.get("timeout"),
        "parameters": job.get("parameters"),
    }


def inputs(job):
    made = []
    for given in job["inputs"]:
        tensor = module(job).InferInput(given["name"], given["shape"], given["datatype"])
        made.append(tensor)
        if "region" in given:
            tensor.set_shared_memory(given["region"], given["size"], given.get("offset", 0))
            continue
        array = to_array(given)
        if job["protocol"] == "grpc":
            tensor.set_data_from_numpy(array)
        else:
            tensor.set_data_from_numpy(array, binary_data=job["protocol"] == "http")
    return made


def outputs(job):
    names, classes = job.get("outputs"), job.get("classes", 0)
    if names is None and job["protocol"] != "http-json":
        return None
    if names is None:  # without a list the client requests binary data
        names = all_outputs(job)
    if job["protocol"] == "grpc":
        return [grpcclient.InferRequestedOutput(name, class_count=classes) for name in names]
    binary = job["protocol"] == "http"
    return [httpclient.InferRequestedOutput(name, binary_data=binary, class_count=classes) for name in names]


def all_outputs(job):
    with httpclient.InferenceServerClient(urlsplit(job["url"]).netloc) as client:
        found = client.get_model_metadata(job["model"], job.get("version", ""))
    return [output["name"] for output in found["outputs"]]


def streamed(client, words):
    """All responses up to the final one, which is left out if it is an empty marker. An error is a response, too."""
    came, responses = queue.Queue(), []
    client.start_stream(callback=lambda result, error: came.put((result, error)), stream_timeout=WAIT_S)
    client.async_stream_infer(**words, enable_empty_final_response=True)
    last = False
    while not last:
        result, error = came.get(timeout=WAIT_S)
        if error is not None:
            responses.append({"error": error.message(), "status": error.status()})
            break
        last = result.get_response().parameters["triton_final_response"].bool_param
        if result.get_response().outputs:
            responses.append(view(result, {"protocol": "grpc"}))
    client.stop_stream()
    return responses


def view(result, job):
    response = result.get_response(as_json=True) if job["protocol"] == "grpc" else result.get_response()
    return {
        "outputs": [
            {
                "name": output["name"],
                "datatype": output["datatype"],
                "shape": [int(length) for length in output["shape"]],
                "data": to_raw(result.as_numpy(output["name"]), output["datatype"]),
            }
            for output in response.get("outputs", [])
        ],
        "model": response["model_name"],
        "version": response.get("model_version", ""),
        "id": response.get("id", ""),
    }


def to_array(tensor):
    raw, shape = base64.b64decode(tensor["data"]), tensor["shape"]
    if tensor["datatype"] == "BYTES":
        return utils.deserialize_bytes_tensor(raw).reshape(shape)
    return np.frombuffer(raw, utils.triton_to_np_dtype(tensor["datatype"])).reshape(shape)


def to_raw(array, datatype):
    if datatype == "BYTES":
        packed = utils.serialize_byte_tensor(array)
        return base64.b64encode(packed.item() if packed.size else b"").decode()
    assert array.dtype == utils.triton_to_np_dtype(datatype), (array.dtype, datatype)
    return base64.b64encode(array.tobytes()).decode()


# --- shared memory --------------------------------------------------------------------------------------------------------


def in_shared_memory(client, job):
    """Each output gets as much room as the first input."""
    given, requested, handles = inputs(job), [], {}
    with ExitStack() as stack:
        for tensor, source in zip(given, job["inputs"], strict=True):
            array = to_array(source)
            region, handle = registered(stack, client, array.nbytes)
            shared_memory.set_shared_memory_region(handle, [array])
            tensor.set_shared_memory(region, array.nbytes)
        for name in job["outputs"]:
            size = to_array(job["inputs"][0]).nbytes
            region, handles[name] = registered(stack, client, size)
            requested.append(module(job).InferRequestedOutput(name))
            requested[-1].set_shared_memory(region, size)
        during = status(client, job)
        result = client.infer(job["model"], given, outputs=requested)
        tensors = [from_region(result, name, handle, job) for name, handle in handles.items()]
    return {"outputs": tensors, "registered": during, "afterwards": status(client, job)}


def registered(stack, client, size):
    """A region of shared memory, registered with the server until the stack unwinds."""
    name = f"oracle-{uuid.uuid4().hex}"
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", size)
    stack.callback(shared_memory.destroy_shared_memory_region, handle)
    client.register_system_shared_memory(name, f"/{name}", size)
    stack.callback(unregister, client, name)
    return name, handle


def unregister(client, name):
    """Triton releases a region slightly after its response."""
    for _ in range(200):
        try:
            return client.unregister_system_shared_memory(name)
        except utils.InferenceServerException as error:
            if "currently in use" not in error.message():
                raise
        time.sleep(0.01)
    raise AssertionError(f"{name} is in use for good")


def status(client, job):
    found = plain(client.get_system_shared_memory_status, job)
    if job["protocol"] == "grpc":
        found = list(found.get("regions", {}).values())
    return [
        {
            "name": each["name"],
            "key": each["key"],
            "byte_size": int(each["byte_size"]),
            "offset": int(each.get("offset", 0)),
        }
        for each in found
    ]


def from_region(result, name, handle, job):
    output = result.get_output(name)
    if job["protocol"] == "grpc":
        output = {"shape": list(output.shape), "datatype": output.datatype}
    array = shared_memory.get_contents_as_numpy(
        handle, utils.triton_to_np_dtype(output["datatype"]), output["shape"]
    ).copy()
    return {"name": name} | output | {"data": to_raw(array, output["datatype"])}


# --- any calls of any client ----------------------------------------------------------------------------------------------

CLIENTS = {"http": httpclient, "http.aio": httpaio, "grpc": grpcclient, "grpc.aio": grpcaio}
AT_ONCE = 8


async def calls(job):
    clients = {}
    try:
        for name, library in CLIENTS.items():
            more = {"concurrency": AT_ONCE} if name == "http" else {}
            more |= over_tls(name, job["ca"]) if "ca" in job else {}
            clients[name] = library.InferenceServerClient(urlsplit(job[name[:4]]).netloc, **more)
        return [await called(clients[call["client"]], call | urls(job, call)) for call in job["calls"]]
    finally:
        for client in clients.values():
            await awaited(client.close())


def over_tls(name, ca):
    """The options of a client for servers whose certificates are signed by `ca` (a PEM file)."""
    if name == "http.aio":
        return {"ssl": True, "ssl_context": ssl.create_default_context(cafile=ca)}
    return {"ssl": True} | ({"ssl_options": {"ca_certs": ca}} if name == "http" else {"root_certificates": ca})


def urls(job, call):
    protocol = call["client"][:4]
    return {"url": job[protocol], "protocol": "http-json" if call.get("json") else protocol}


async def called(client, call):
    try:
        return await INFERENCES.get(call["call"], call_method)(client, call)
    except utils.InferenceServerException as error:
        return {"error": error.message(), "status": error.status()}
    except Exception:
        return {"broken": traceback.format_exc()}


async def awaited(value):
    return await value if inspect.isawaitable(value) else value


async def call_method(client, call):
    method, options = getattr(client, call["call"]), call.get("options", {})
    if "as_json" in inspect.signature(method).parameters:
        options = options | {"as_json": True}
    return {"result": await awaited(method(*call.get("words", ()), **options))}


def request(call):
    """The arguments of every kind of inference."""
    return wishes(call) | {"model_name": call["model"], "inputs": inputs(call), "outputs": outputs(call)}


def unary(call):
    if call["protocol"] == "grpc":
        more = {"compression_algorithm": call.get("compression"), "client_timeout": call.get("client_timeout", WAIT_S)}
    else:
        more = {f"{way}_compression_algorithm": call.get(f"{way}_compression") for way in ("request", "response")}
    return request(call) | more


async def inferred(client, call):
    return view(await awaited(client.infer(**unary(call))), call)


async def at_once(client, call):
    words, times = unary(call), range(call["times"])
    if call["client"].endswith("aio"):
        results = await asyncio.gather(*(client.infer(**words) for _ in times))
    elif call["protocol"] == "grpc":
        came = queue.Queue()
        for _ in times:
            client.async_infer(**words, callback=lambda result, error: came.put((result, error)))
        results = []
        for result, error in [came.get(timeout=WAIT_S) for _ in times]:
            if error is not None:
                raise error
            results.append(result)
    else:
        results = [waiting.get_result() for waiting in [client.async_infer(**words) for _ in times]]
    return {"responses": [view(result, call) for result in results]}


async def in_stream(client, call):
    wanted = [request(call | each) | {"enable_empty_final_response": True} for each in call["requests"]]
    came = aio_stream(client, wanted) if call["client"].endswith("aio") else sync_stream(client, wanted)
    responses, ended = [], 0
    async for result, error in came:
        if error is not None:
            responses.append({"error": error.message(), "status": error.status()})
            break
        final = result.get_response().parameters["triton_final_response"].bool_param
        responses.append(view(result, call) | {"final": final})
        ended += final
        if ended == len(wanted):
            break
    await came.aclose()
    return {"responses": responses}


async def sync_stream(client, wanted):
    came = queue.Queue()
    client.start_stream(callback=lambda result, error: came.put((result, error)), stream_timeout=WAIT_S)
    try:
        for words in wanted:
            client.async_stream_infer(**words)
        while True:
            yield came.get(timeout=WAIT_S)
    finally:
        client.stop_stream()


async def aio_stream(client, wanted):
    async def requests():
        for words in wanted:
            yield words

    stream = client.stream_infer(requests(), stream_timeout=WAIT_S)
    try:
        async for pair in stream:
            yield pair
    finally:
        stream.cancel()


async def over_shared_memory(client, call):
    given, requested, handles = inputs(call), [], {}
    async with AsyncExitStack() as stack:
        for tensor, source in zip(given, call["inputs"], strict=True):
            array = to_array(source)
            region, handle = await shared(stack, client, array.nbytes)
            shared_memory.set_shared_memory_region(handle, [array])
            tensor.set_shared_memory(region, array.nbytes)
        for name in call["outputs"]:
            size = call.get("room", to_array(call["inputs"][0]).nbytes)
            region, handles[name] = await shared(stack, client, size)
            requested.append(module(call).InferRequestedOutput(name))
            requested[-1].set_shared_memory(region, size)
        result = await awaited(client.infer(call["model"], given, outputs=requested))
        tensors = [from_region(result, name, handle, call) for name, handle in handles.items()]
    return {"outputs": tensors}


async def shared(stack, client, size):
    name = f"oracle-{uuid.uuid4().hex}"
    handle = shared_memory.create_shared_memory_region(name, f"/{name}", size)
    stack.callback(shared_memory.destroy_shared_memory_region, handle)
    await awaited(client.register_system_shared_memory(name, f"/{name}", size))

    stack.push_async_callback(unregistered, client, name)
    return name, handle


async def unregistered(client, name):
    """Like `unregister`."""
    for _ in range(200):
        try:
            return await awaited(client.unregister_system_shared_memory(name))
        except utils.InferenceServerException as error:
            if "currently in use" not in error.message():
                raise
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} is in use for good")


INFERENCES = {"infer": inferred, "at_once": at_once, "stream": in_stream, "shared_memory": over_shared_memory}


MODES = {
    "infer": infer,
    "metadata": metadata,
    "config": config,
    "statistics": statistics,
    "index": index,
    "shared_memory": in_shared_memory,
}


if __name__ == "__main__":
    main()
