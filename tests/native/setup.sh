#!/bin/sh
# Install Debian's MLIR tools and clang of one release, if mlir-opt is not there (as root, with apt). If that is
# impossible, end with status 0; the tests of native code are then skipped and say so.
set -u
for name in mlir-opt mlir-opt-19 mlir-opt-20 mlir-opt-21; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq >/dev/null &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mlir-19-tools clang-19 >/dev/null && exit 0
fi
echo "MLIR's tools (mlir-19-tools clang-19) cannot be installed from here: the tests of native code will be skipped" >&2
exit 0
