#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# packaging/troupe.service: systemd understands every line of it and finds little that is open.
set -u
cd "$(dirname "$0")/../.."
# A database that comes up after us: no number of failed starts is the last one, and they do not spin.
if ! grep -qx 'StartLimitIntervalSec=0' packaging/troupe.service || ! grep -qx 'Restart=on-failure' packaging/troupe.service ||
    ! grep -qx 'RestartSec=5' packaging/troupe.service; then
    echo "the unit gives up when PostgreSQL is late, or tries too often"
    exit 1
fi
if ! command -v systemd-analyze >/dev/null; then
    echo "systemd-analyze is not installed"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# verify wants a program that is there.
sed 's#/usr/bin/troupe#/bin/true#' packaging/troupe.service >"$work/troupe.service"
systemd-analyze verify "$work/troupe.service" 2>"$work/complaints"
if grep -v -e 'Failed to' -e 'SYSTEMD_' "$work/complaints" | grep -F troupe.service; then
    echo "systemd does not understand the unit"
    exit 1
fi
if ! systemd-analyze security --offline=true --threshold=15 "$work/troupe.service" >"$work/said" 2>&1; then
    if ! grep -q 'Overall exposure' "$work/said"; then
        echo "systemd-analyze cannot judge units here: $(tail -n 1 "$work/said")"
        exit 77
    fi
    grep -v '✓' "$work/said"
    exit 1
fi
tail -n 1 "$work/said"
