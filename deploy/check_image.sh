#!/usr/bin/env bash
# Builds the image on a Debian base and runs it through benchmarks of the simulator, with both of its commands: as a user without
# rights, on a read-only root file system. No container engine and no registry is needed, but root, buildah and debootstrap are.
# Results also go to a bucket if the S3 store of tools/real_servers/install.sh moto is installed.
#
#   deploy/check_image.sh [FOLDER]        FOLDER gets what the benchmark stored; default: a temporary folder
#
# The base is an image of this machine only. It is kept between runs; REMOVE_BASE=1 removes it, too. What Kubernetes would
# do is imitated with util-linux: a mount namespace with the image's root mounted read-only, a /tmp in memory, a folder as
# the volume /results, user 65532 without capabilities, and no_new_privs. Not imitated: seccomp, cgroups, a network namespace.
set -euo pipefail
cd "$(dirname "$0")/.."

base=localhost/inferometer-base:bookworm
image=localhost/inferometer:check
work=$(mktemp -d)
results=${1:-$work/results}
container=
store=

clean_up() {
    [ -z "$store" ] || kill "$store" 2>/dev/null || true
    [ -z "$container" ] || buildah rm "$container" >/dev/null
    ! buildah inspect "$image" >/dev/null 2>&1 || buildah rmi "$image" >/dev/null
    [ -z "${REMOVE_BASE:-}" ] || buildah rmi "$base" >/dev/null
    rm -rf "$work"
}
trap clean_up EXIT

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    echo "Making the base image from Debian's packages"
    debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$work/base" >"$work/log" ||
        { tail -5 "$work/log" >&2; exit 1; }
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/base" / >/dev/null
    buildah commit --quiet "$container" "$base" >/dev/null
    buildah rm "$container" >/dev/null
    container=
fi

echo "Building the image"
# The certificates are this machine's, in case its package index has one of its own.
buildah bud --isolation chroot --pull=never --build-arg BASE="$base" --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --file deploy/Dockerfile --tag "$image" . >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
buildah images --format '{{.Size}}' "$image"

container=$(buildah from --pull-never "$image")
root=$(buildah mount "$container")
user=65532:65532
declared=$(buildah inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.StopSignal}} {{.OCIv1.Config.WorkingDir}}' "$container")
[ "$declared" = "$user SIGINT /results" ] || { echo "user, stop signal and working directory of the image: $declared" >&2; exit 1; }
buildah inspect --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "$container" | sed '/^$/d' >"$work/environment"
mkdir -p "$results"
chown "$user" "$results"

moto=${INFEROMETER_REAL:-$HOME/.cache/inferometer/real}/moto
if [ -f "$moto/installed.txt" ]; then
    mkfifo "$work/open"
    "$moto/bin/python" tools/real_servers/moto/serve.py <"$work/open" >"$work/store" 2>&1 &
    store=$!
    exec 9>"$work/open" # the store ends when this is closed
    timeout 60 sh -c 'until [ -s "$0" ]; do sleep 0.2; done' "$work/store" || true
    bucket=$(grep -o 'http://127.0.0.1:[0-9]*' "$work/store") || { cat "$work/store" >&2; exit 1; }
    printf '%s\n' "BUCKET=$bucket" AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any AWS_REGION=us-east-1 >>"$work/environment"
else
    echo "moto is not installed: nothing is uploaded"
fi

# Runs $1 in a shell inside the image, in a mount namespace of its own that ends with it.
in_image() {
    unshare --mount --pid --fork --propagation private bash -euc '
        root=$1 user=$2 results=$3 command=$4
        mapfile -t variables <"$5"
        mount --bind "$root" "$root"
        mount --bind "$results" "$root/results"
        mount -t tmpfs tmpfs "$root/tmp"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -o remount,bind,ro "$root"
        ! touch "$root/opt/x" 2>/dev/null || { echo "root can write to /opt: it is not read-only" >&2; exit 1; }
        exec setpriv --no-new-privs chroot --userspec="$user" --groups="" "$root" \
            env -i PATH=/usr/local/bin:/usr/bin:/bin "${variables[@]}" sh -euc "cd /results; $command"
    ' - "$root" "$user" "$results" "$1" "$work/environment"
}

echo "Running it"
in_image '
    fail() { echo "$1" >&2; exit 1; }
    [ "$(id -u)" = 65532 ] || fail "runs as user $(id -u)"
    grep -q "^CapEff:[[:space:]]*0*$" /proc/self/status || fail "has capabilities"
    for folder in / /opt/inferometer /var/tmp /run; do # some of these may be written by everybody if the root is not read-only
        ! touch "$folder/x" 2>/dev/null || fail "$folder can be written"
    done

    inferometer --version
    inference-perf --help | grep -q -e --config_file

    inferometer serve --port 0 --grpc -1 --metrics -1 --ttft 20ms --itl 2ms >/tmp/serve.log 2>&1 &
    server=$!
    timeout 60 sh -c "until grep -q http:// /tmp/serve.log; do sleep 0.2; done" 2>/dev/null || true
    url=$(grep -o "http://127.0.0.1:[0-9]*" /tmp/serve.log | head -1)
    [ -n "$url" ] || { cat /tmp/serve.log >&2; fail "the simulator did not start"; }

    # Runs a measurement. On a busy machine it may be INVALID, which is status 1 and not the fault of the image.
    measure() {
        status=0
        inferometer run "$url" "$@" --quiet || status=$?
        [ $status -le 1 ] || fail "inferometer run $* ended with status $status"
    }

    measure --rate 20 --duration 5s --output-tokens 16 --slo "ttft.p50 < 1s" --set client.processes=2 \
        --json summary.json --html report.html
    inferometer report runs/LATEST --json again.json >/dev/null || [ $? = 1 ]
    inferometer plot runs/LATEST --output charts >/dev/null 2>plot.log
    [ ! -s plot.log ] || { cat plot.log >&2; fail "the charts came with complaints"; } # such as a cache that cannot be written

    # The library behind data sets of the hub, which reads a folder as well.
    mkdir questions
    echo "{\"question\": \"How far is it?\"}" >questions/rows.jsonl
    measure --requests 3 --set data.type=hub --set data.path=questions --set data.columns.prompt=question --json hub.json >/dev/null

    cat >config.yml <<END
api: {type: completion, streaming: true}
server: {type: vllm, model_name: sim, base_url: $url}
tokenizer: {pretrained_model_name_or_path: builtin}
data: {type: random, input_distribution: {min: 10, max: 20}, output_distribution: {min: 4, max: 8}}
load: {type: constant, stages: [{rate: 5, duration: 2}], num_workers: 2}
storage: {local_storage: {path: "reports-{timestamp}"}}
END
    inference-perf --config_file config.yml >inference-perf.log 2>&1 || { cat inference-perf.log >&2; fail "inference-perf failed"; }
    grep -q "Stage 0 - run completed" inference-perf.log
    inference-perf --analyze reports-* >analyze.log 2>&1 || { cat analyze.log >&2; fail "inference-perf --analyze failed"; }

    if [ -n "${BUCKET:-}" ]; then
        measure --requests 3 --set output=s3://bench/image --set "storage.endpoint=$BUCKET" >/dev/null
        AWS_ENDPOINT_URL=$BUCKET inferometer runs s3://bench/image >runs.txt
    fi
    kill $server
    wait $server || true
'

# The verdict itself is left to the tests: on a busy machine a correct run may be INVALID. What the image must do is measure.
python3 - "$results" <<'END'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
summary = json.loads((folder / "summary.json").read_text())
assert summary["counts"]["ok"] > 50 and summary["counts"]["failed"] == 0, summary["counts"]
assert summary["metrics"]["ttft"]["p50"] >= 0.02, summary["metrics"]["ttft"]
assert summary == json.loads((folder / "again.json").read_text()), "the stored run gives another report"
assert (folder / "report.html").stat().st_size > 50_000 and list((folder / "charts").iterdir())
assert json.loads((folder / "hub.json").read_text())["counts"]["ok"] == 3
(reports,) = folder.glob("reports-*")
figures = json.loads((reports / "summary_lifecycle_metrics.json").read_text())
assert figures["successes"]["count"] == 10 and figures["failures"]["count"] == 0, figures
assert list(reports.rglob("*.png")), "inference-perf --analyze drew nothing"
if (folder / "runs.txt").exists():
    assert (folder / "runs.txt").read_text().count(" complete ") == 1, (folder / "runs.txt").read_text()
print(f"{summary['verdict']}: {summary['counts']['ok']} requests, ttft p50 {summary['metrics']['ttft']['p50'] * 1000:.1f} ms")
END
