#!/bin/sh
# Runs a command that installs packages. If it fails because nothing answers, one line says so, instead of the command's
# own pages of errors. Otherwise the last lines of the command are shown.
#
# usage: .ci/install.sh COMMAND [ARGUMENT...]
set -u
# A network that is not there is said within seconds.
export UV_HTTP_RETRIES="${UV_HTTP_RETRIES:-1}" PIP_RETRIES="${PIP_RETRIES:-1}"
export npm_config_fetch_retries="${npm_config_fetch_retries:-1}" npm_config_fetch_retry_mintimeout="${npm_config_fetch_retry_mintimeout:-2000}"
log=$(mktemp) || { echo "install: no file can be written in ${TMPDIR:-/tmp}: free some of its disk, or set TMPDIR" >&2; exit 1; }
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1 && exit 0
if grep -qiE 'name resolution|failure resolving|dns error|resolve host|could not resolve|network is unreachable|no route to host|connection (refused|timed out|reset)|error sending request|failed to connect|timed out|EAI_AGAIN|ENOTFOUND|ECONNREFUSED|ENETUNREACH|offline' "$log"; then
    echo "install: the package index does not answer: check the network, or the proxy and index in HTTPS_PROXY, PIP_INDEX_URL, UV_DEFAULT_INDEX and the configuration of npm and apt; then run the same make target again" >&2
elif grep -qiE 'no space left|disk quota' "$log"; then
    echo "install: the disk is full: free some gigabytes, then run the same make target again" >&2
else
    tail -n 20 "$log" >&2
    echo "install: failed: $*" >&2
fi
exit 1
