#!/bin/sh
# Builds the fake library: build.sh DIRECTORY leaves DIRECTORY/libnvidia-ml.so.1 there.
set -eu
out=${1:?usage: build.sh DIRECTORY}
cd "$(dirname "$0")"
mkdir -p "$out"
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -Wno-format-truncation -fPIC -shared -fvisibility=hidden \
    -Wl,-soname,libnvidia-ml.so.1 -o "$out/libnvidia-ml.so.1.new" config.c system.c device.c links.c processes.c load.c mig.c events.c -lpthread
mv "$out/libnvidia-ml.so.1.new" "$out/libnvidia-ml.so.1"
