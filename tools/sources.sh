#!/bin/sh
# Prints the files that match the given patterns, one a line, sorted; nothing when none does.
# meson has no wildcards on purpose; meson.build calls this, and tools/build.sh configures again when
# the answer has changed, so that a new file is picked up without editing a list.
LC_ALL=C
export LC_ALL
for pattern in "$@"; do
    for file in $pattern; do
        [ -f "$file" ] && printf '%s\n' "$file"
    done
done
exit 0
