#!/bin/sh
# Installs what the tests of the page need where it is missing: Debian's Chromium and its driver (as root, with apt).
# Ends well also where that is not possible: the tests then skip and say so.
set -u
if command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; then
  exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq >/dev/null &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null && exit 0
fi
echo "Chromium and its driver (chromium, chromedriver) cannot be installed from here: the tests of the page will be skipped" >&2
