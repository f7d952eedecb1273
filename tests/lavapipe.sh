#!/bin/sh
# Install Debian's Mesa, a Vulkan device on the CPU, if there is no driver (as root, with apt). If that is impossible, end
# with status 0; the tests of Vulkan are then skipped and say so.
set -u
ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json >/dev/null 2>&1 && exit 0
[ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq >/dev/null &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libvulkan1 mesa-vulkan-drivers >/dev/null && exit 0
fi
echo "a Vulkan driver (libvulkan1 mesa-vulkan-drivers) cannot be installed from here: the tests of Vulkan will be skipped" >&2
exit 0
