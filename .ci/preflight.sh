#!/bin/sh
# What the demo and the tests need from the machine, checked before anything is installed. Every problem is one line on
# stderr that says how to solve it; then the status is 1. Otherwise the Python to use is printed on stdout.
#
# usage: .ci/preflight.sh CHECKOUT [MINIMUM_FREE_DISK_IN_MIB]
# environment: PYTHON (this one and no other), JAVA_HOME (as Spark: before PATH)
set -u
checkout=$1
need_disk=${2:-4096}
need_memory=3072
problems=0

problem() {
    printf 'preflight: %s\n' "$1" >&2
    problems=$((problems + 1))
}

# The first Python between 3.11 and 3.14 that runs. A name on PATH may be a shim of a version manager that does not.
python=
for candidate in ${PYTHON:-python3.12 python3.11 python3.13 python3 python python3.14}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    problem "no Python 3.11 to 3.14 ${PYTHON:+as PYTHON=$PYTHON }found. Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.12; or make … PYTHON=/path/to/python3"
elif ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    problem "$python has no venv module. Debian, Ubuntu: apt-get install python3-venv"
fi

# Spark 4 needs Java 17. On macOS java may be a stub that only prints how to get one.
java=java
[ -n "${JAVA_HOME:-}" ] && java=$JAVA_HOME/bin/java
get_java="Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17; or set JAVA_HOME"
if version=$("$java" -version 2>&1); then
    major=$(printf '%s\n' "$version" | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1)
    if [ -z "$major" ]; then
        problem "$java does not say its version; Spark needs Java 17 or newer. $get_java"
    elif [ "$major" -lt 17 ]; then
        problem "$java is Java $major; Spark needs Java 17 or newer. $get_java"
    fi
else
    problem "no Java ${JAVA_HOME:+in JAVA_HOME=$JAVA_HOME }found; Spark needs Java 17 or newer. $get_java"
fi

# Free memory: Airflow takes about 1 GiB, each of two workers about 1 GiB with its Spark.
memory=
if [ -r "${MEMINFO:-/proc/meminfo}" ]; then
    memory=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' "${MEMINFO:-/proc/meminfo}")
elif bytes=$(sysctl -n hw.memsize 2>/dev/null); then
    memory=$((bytes / 1048576))
fi
if [ -n "$memory" ] && [ "$memory" -lt "$need_memory" ]; then
    problem "$memory MiB of memory are free, $need_memory are needed: close something, or use a larger machine"
fi

temporary=${TMPDIR:-/tmp}
disk=$(df -Pk "$temporary" | awk 'NR == 2 { print int($4 / 1024) }')
if [ -n "$disk" ] && [ "$disk" -lt 1024 ]; then
    problem "$disk MiB of disk are free in $temporary, 1024 are needed: free some, or set TMPDIR to a folder on another disk"
fi

disk=$(df -Pk "$checkout" | awk 'NR == 2 { print int($4 / 1024) }')
if [ -n "$disk" ] && [ "$disk" -lt "$need_disk" ]; then
    problem "$disk MiB of disk are free in $checkout, $need_disk are needed: free some, or clone to another disk"
fi

[ "$problems" -eq 0 ] || exit 1
printf '%s\n' "$python"
