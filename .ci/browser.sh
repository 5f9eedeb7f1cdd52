#!/bin/sh
# The page's tests need a real Chromium: installs Debian's where that is possible, else says how to get one.
set -u
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing Chromium for the page's tests"
    log=$(mktemp)
    if { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install \
        --no-install-recommends -y chromium fonts-dejavu-core; } >"$log" 2>&1; then
        rm -f "$log"
        exit 0
    fi
    tail -n 5 "$log" >&2
    rm -f "$log"
fi
echo "the page's tests need Chromium. Debian: apt-get install chromium; macOS: brew install --cask chromium" >&2
exit 1
