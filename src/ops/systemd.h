/* SPDX-License-Identifier: Apache-2.0 */
/* systemd.h: sd_notify(3) without its library: READY, STOPPING, RELOADING and the watchdog. All functions
 * do nothing if systemd did not start the program. */
#ifndef OPS_SYSTEMD_H
#define OPS_SYSTEMD_H

#include <stdbool.h>
#include <stdint.h>

#include <troupe/troupe.h>

struct systemd {
    int fd;               /* connected to NOTIFY_SOCKET, or -1 */
    uint64_t watchdog_ns; /* 0: no watchdog */
};

/* Read the environment and connect. Call it before sandbox_enter. TR_EIO if NOTIFY_SOCKET cannot be
 * reached. */
int systemd_init(struct systemd *systemd);
/* Close the connection. */
void systemd_fini(struct systemd *systemd);
/* Send a state like "READY=1\nSTATUS=serving" in one datagram. TR_EIO. */
int systemd_notify(const struct systemd *systemd, const char *state);
/* Send RELOADING=1 with its start time, as the protocol demands. */
int systemd_notify_reloading(const struct systemd *systemd, uint64_t now_ns);

/* Start an actor that pings the watchdog twice in each interval while actors handle messages. If messages
 * wait and none is handled, it stays silent and systemd restarts the program. TR_ENOENT without a
 * watchdog. `systemd` must outlive the actor. `supervisor` restarts the actor when it fails;
 * borrowed; none: it ends. */
int systemd_watchdog_start(struct tr_system *system, const struct systemd *systemd,
    tr_sender supervisor, tr_sender *ret_sender);
/* Decide whether there was progress between two ticks of the watchdog. */
bool systemd_has_progress(uint64_t handled_before, uint64_t handled_now, uint64_t queued_now);

#endif
