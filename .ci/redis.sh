#!/bin/sh
# The tests of Airflow with Celery need a Redis server: installs Debian's in a container, else says how to get one.
# Outside of a container Debian's package would also start a service, so it is not installed unasked.
set -u
for name in redis-server valkey-server; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && [ ! -d /run/systemd/system ]; then
    echo "installing Redis for the tests of Airflow with Celery"
    log=$(mktemp)
    if { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install \
        --no-install-recommends -y redis-server; } >"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
fi
echo "the tests of Airflow with Celery need Redis. Debian: apt-get install redis-server; macOS: brew install redis" >&2
exit 1
