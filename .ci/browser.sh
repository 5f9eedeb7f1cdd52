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
    quick="-qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15"
    export DEBIAN_FRONTEND=noninteractive
    .ci/install.sh sh -c "apt-get $quick update && apt-get $quick install --no-install-recommends -y chromium fonts-dejavu-core" && exit 0
fi
echo "the page's tests need Chromium. Debian: apt-get install chromium; macOS: brew install --cask chromium" >&2
exit 1
