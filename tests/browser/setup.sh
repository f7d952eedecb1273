#!/bin/sh
# Install the needs of the page tests if they are missing: Debian's Chromium and its driver (as root, with apt), and
# axe-core (with npm). If that is impossible, end with status 0; the tests are then skipped and say so.
set -u
here=$(dirname "$0")

install_axe() {
  [ -f "$here/axe/node_modules/axe-core/axe.min.js" ] && return
  command -v npm >/dev/null 2>&1 && (cd "$here/axe" && npm ci --silent --fetch-retries=1 --fetch-timeout=20000 >/dev/null 2>&1) && return
  echo "axe-core cannot be installed from here (npm): the accessibility of pages will not be checked" >&2
}

install_chromium() {
  command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1 && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq >/dev/null &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null && return
  fi
  echo "Chromium and its driver (chromium, chromedriver) cannot be installed from here: the tests of the page will be skipped" >&2
}

install_axe
install_chromium
exit 0
