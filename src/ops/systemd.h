/* SPDX-License-Identifier: Apache-2.0 */
/* systemd.h: sd_notify(3) without its library: READY, STOPPING, RELOADING and the watchdog. Does
 * nothing when the program was not started by systemd. */
#ifndef OPS_SYSTEMD_H
#define OPS_SYSTEMD_H

#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

struct systemd {
    int fd;               /* connected to NOTIFY_SOCKET, or -1 */
    uint64_t watchdog_ns; /* 0: nobody watches */
};

/* Reads the environment and connects: before the sandbox closes. TR_EIO if there is a socket that
 * cannot be reached. */
int systemd_init(struct systemd *systemd);
void systemd_finish(struct systemd *systemd);
/* "READY=1\nSTATUS=serving": whole, or not at all. */
int systemd_notify(const struct systemd *systemd, const char *state);
/* RELOADING=1 with the time it began, as the protocol demands. */
int systemd_notify_reloading(const struct systemd *systemd, uint64_t now_ns);

/* An actor that pings twice in each watchdog interval, in its turn on a worker, and only while
 * messages are being handled: with a queue that does not move it stays silent and systemd restarts
 * us. No watchdog: TR_ENOENT. `systemd` must outlive the actor. */
int systemd_watchdog_start(
    struct tr_system *system, const struct systemd *systemd, tr_sender *ret_sender);
/* What it decides: is there progress between two looks? */
bool systemd_has_progress(uint64_t handled_before, uint64_t handled_now, uint64_t queued_now);

#endif
