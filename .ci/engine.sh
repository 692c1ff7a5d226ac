#!/usr/bin/env bash
# Makes a real Docker engine answer on this machine: installs Debian's packages when they are missing and starts
# dockerd by hand when nothing answers yet. Safe to call again.
#   DOCKERD_LOG   where the engine writes its log (default: /tmp/dockerd.log)
#   DOCKERD_ARGS  more arguments for dockerd
set -euo pipefail

log=${DOCKERD_LOG:-/tmp/dockerd.log}

answers() { docker version --format '{{.Server.Version}}' 2>/dev/null; }

if version=$(answers) && [ -n "$version" ]; then
    echo "engine: Docker $version already answers"
    exit 0
fi

[ "$(id -u)" = 0 ] || { echo "engine: no Docker engine answers, and starting one needs root" >&2; exit 1; }

missing=()
command -v dockerd >/dev/null || missing+=(docker.io)
command -v debootstrap >/dev/null || missing+=(debootstrap)
command -v iptables >/dev/null || missing+=(iptables)
if [ ${#missing[@]} -gt 0 ]; then
    echo "engine: installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# Debian's package knows no inner mount of control groups on machines without systemd.
if ! grep -q ' /sys/fs/cgroup' /proc/mounts; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi

# A dockerd that was killed leaves this behind, and its number may be some other process's by now.
if [ -f /var/run/docker.pid ] && ! grep -qs dockerd "/proc/$(cat /var/run/docker.pid)/comm"; then
    rm -f /var/run/docker.pid
fi

if [ ! -f /var/run/docker.pid ]; then
    echo "engine: starting dockerd, log in $log"
    # shellcheck disable=SC2086
    setsid nohup dockerd ${DOCKERD_ARGS:-} >"$log" 2>&1 </dev/null &
fi

for _ in $(seq 1 120); do
    if version=$(answers) && [ -n "$version" ]; then
        echo "engine: Docker $version answers"
        exit 0
    fi
    sleep 0.5
done
echo "engine: dockerd did not answer within a minute; the end of $log:" >&2
tail -n 20 "$log" >&2
exit 1
