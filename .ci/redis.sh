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
    quick="-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15"
    export DEBIAN_FRONTEND=noninteractive
    .ci/install.sh sh -c "apt-get $quick update && apt-get $quick install --no-install-recommends -y redis-server" && exit 0
fi
echo "the tests of Airflow with Celery need Redis. Debian: apt-get install redis-server; macOS: brew install redis" >&2
exit 1
