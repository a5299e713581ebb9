-- What wrk sends: the body that inferometer sends, about 1.2 kB.
wrk.method = "POST"
wrk.body = '{"model":"null","prompt":"' .. string.rep("hello ", 190) .. '","max_tokens":1}'
wrk.headers["Content-Type"] = "application/json"
