/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/systemd.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <troupe/inspect.h>

#include "base/assert.h"
#include "support/log.h"

static int connect_notify(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t size = strlen(path);
    int fd;

    if (size < 2 || size >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@'))
        return -1;
    memcpy(address.sun_path, path, size);
    if (path[0] == '@')
        address.sun_path[0] = '\0'; /* an abstract address */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)&address,
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Return the watchdog interval, or 0. WATCHDOG_PID, if set, must be this process. */
static uint64_t watchdog_ns(void)
{
    const char *interval_us = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    uint64_t number;

    if (pid != NULL && (!span_u64(span_of(pid), &number) || number != (uint64_t)getpid()))
        return 0;
    if (interval_us == NULL || !span_u64(span_of(interval_us), &number))
        return 0;
    return number > UINT64_MAX / 1000 ? 0 : number * 1000;
}

int systemd_init(struct systemd *systemd)
{
    const char *path = getenv("NOTIFY_SOCKET");

    *systemd = (struct systemd){ .fd = -1 };
    if (path == NULL || path[0] == '\0')
        return 0;
    systemd->fd = connect_notify(path);
    if (systemd->fd < 0)
        return TR_EIO;
    systemd->watchdog_ns = watchdog_ns();
    return 0;
}

void systemd_fini(struct systemd *systemd)
{
    if (systemd->fd >= 0)
        close(systemd->fd);
    *systemd = (struct systemd){ .fd = -1 };
}

int systemd_notify(const struct systemd *systemd, const char *state)
{
    ssize_t sent;

    tr_assert(state != NULL);
    if (systemd->fd < 0)
        return 0;
    do
        sent = send(systemd->fd, state, strlen(state), MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? TR_EIO : 0;
}

int systemd_notify_reloading(const struct systemd *systemd, uint64_t now_ns)
{
    char state[64];

    snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%llu",
        (unsigned long long)(now_ns / 1000));
    return systemd_notify(systemd, state);
}

/* ---- the watchdog ---------------------------------------------------------------------------- */

struct watchdog {
    const struct systemd *systemd;
    uint64_t handled;
};

bool systemd_has_progress(uint64_t handled_before, uint64_t handled_now, uint64_t queued_now)
{
    return handled_now != handled_before || queued_now == 0;
}

static int watchdog_start(void *self, struct tr_context *ctx)
{
    const struct watchdog *watchdog = self;

    return tr_every(ctx, watchdog->systemd->watchdog_ns / 2, 0, NULL);
}

static enum tr_next watchdog_handle(void *self, struct tr_context *ctx, void *message)
{
    (void)self;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static enum tr_next watchdog_event(void *self, struct tr_context *ctx, const struct tr_event *event)
{
    struct watchdog *watchdog = self;
    struct tr_system_stats stats;

    if (event->kind != TR_EVENT_TIMER)
        return TR_GO;
    tr_system_stats(tr_system_of(ctx), &stats);
    if (systemd_has_progress(watchdog->handled, stats.handled, stats.queued))
        systemd_notify(watchdog->systemd, "WATCHDOG=1");
    else
        LOG(LOG_ERROR, "ops",
            "No actor has handled a message since the last tick; the watchdog gets no ping.",
            LOG_INT("queued", (int64_t)stats.queued));
    watchdog->handled = stats.handled;
    return TR_GO;
}

static const struct tr_type watchdog_type = {
    .name = "watchdog",
    .message_size = 1,
    .state_size = sizeof(struct watchdog),
    .start = watchdog_start,
    .handle = watchdog_handle,
    .event = watchdog_event,
};

int systemd_watchdog_start(struct tr_system *system, const struct systemd *systemd,
    tr_sender supervisor, tr_sender *ret_sender)
{
    struct watchdog watchdog = { .systemd = systemd };

    if (systemd->watchdog_ns == 0)
        return TR_ENOENT;
    return tr_spawn(system, &watchdog_type, &watchdog,
        &(struct tr_spawn_options){
            .name = "watchdog", .owner = "server", .supervisor = supervisor },
        ret_sender);
}
