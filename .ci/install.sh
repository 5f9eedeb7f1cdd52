#!/bin/sh
# Runs a command that installs packages. If it fails because nothing answers, one line says so, instead of the command's
# own pages of errors. Otherwise the last lines of the command are shown.
#
# usage: .ci/install.sh COMMAND [ARGUMENT...]
set -u
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1 && exit 0
if grep -qiE 'name resolution|dns error|resolve host|could not resolve|network is unreachable|no route to host|connection (refused|timed out|reset)|error sending request|failed to connect|timed out|EAI_AGAIN|ENOTFOUND|ECONNREFUSED|ENETUNREACH|offline' "$log"; then
    echo "install: the package index does not answer: check the network, or the proxy and index in HTTPS_PROXY, PIP_INDEX_URL, UV_DEFAULT_INDEX and npm's configuration; then run the same make target again" >&2
elif grep -qiE 'no space left|disk quota' "$log"; then
    echo "install: the disk is full: free some gigabytes, then run the same make target again" >&2
else
    tail -n 20 "$log" >&2
    echo "install: failed: $*" >&2
fi
exit 1
