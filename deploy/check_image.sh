#!/usr/bin/env bash
# Builds the image on a Debian base and runs it through one benchmark of the simulator: as a user without rights, on a
# read-only root file system. No container engine and no registry is needed, but root, buildah and debootstrap are.
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

clean_up() {
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
declared=$(buildah inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.StopSignal}}' "$container")
[ "$declared" = "$user SIGINT" ] || { echo "user and stop signal of the image: $declared" >&2; exit 1; }
mkdir -p "$results"
chown "$user" "$results"

# Runs $1 in a shell inside the image, in a mount namespace of its own that ends with it.
in_image() {
    unshare --mount --pid --fork --propagation private bash -euc '
        root=$1 user=$2 results=$3 command=$4
        mount --bind "$root" "$root"
        mount --bind "$results" "$root/results"
        mount -t tmpfs tmpfs "$root/tmp"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -o remount,bind,ro "$root"
        ! touch "$root/opt/x" 2>/dev/null || { echo "root can write to /opt: it is not read-only" >&2; exit 1; }
        exec setpriv --no-new-privs chroot --userspec="$user" --groups="" "$root" \
            env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp PYTHONUNBUFFERED=1 sh -euc "cd /results; $command"
    ' - "$root" "$user" "$results" "$1"
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
    # The second name leads somewhere once the package has the command.
    if inferometer --help | grep -q "^ *inference-perf "; then inference-perf --help | grep -q -e --config_file; fi

    inferometer serve --port 0 --grpc -1 --metrics -1 --ttft 20ms --itl 2ms >/tmp/serve.log 2>&1 &
    server=$!
    url=
    for attempt in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        url=$(grep -o "http://127.0.0.1:[0-9]*" /tmp/serve.log | head -1) && [ -n "$url" ] && break
        sleep 0.5
    done
    [ -n "$url" ] || { cat /tmp/serve.log >&2; fail "the simulator did not start"; }
    status=0
    inferometer run "$url" --rate 20 --duration 5s --output 16 --slo "ttft.p50 < 1s" --allow-undecided \
        --quiet --json summary.json --html report.html || status=$?
    [ $status -le 1 ] || fail "inferometer run ended with status $status"
    inferometer report runs/LATEST --json again.json >/dev/null || [ $? = 1 ]
    inferometer plot runs/LATEST --output charts >/dev/null
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
print(f"{summary['verdict']}: {summary['counts']['ok']} requests, ttft p50 {summary['metrics']['ttft']['p50'] * 1000:.1f} ms")
END
