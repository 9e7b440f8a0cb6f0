/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"
#include "ops/systemd.h"

/* Stands in for systemd: a datagram socket with a name. */
static int listen_fd;

static void begin(const char *name)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t size = strlen(name);

    memcpy(address.sun_path, name, size);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    listen_fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(listen_fd >= 0);
    CHECK(bind(listen_fd, (const struct sockaddr *)&address,
              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)) == 0);
    setenv("NOTIFY_SOCKET", name, 1);
}

static const char *received(void)
{
    static char text[256];
    ssize_t got = recv(listen_fd, text, sizeof text - 1, 0);

    CHECK(got >= 0);
    text[got] = '\0';
    return text;
}

TEST(systemd, without_it_nothing_happens)
{
    struct systemd systemd;
    tr_sender sender;

    unsetenv("NOTIFY_SOCKET");
    CHECK_EQ_INT(systemd_init(&systemd), 0);
    CHECK_EQ_INT(systemd_notify(&systemd, "READY=1"), 0);
    CHECK_EQ_INT(systemd_watchdog_start(NULL, &systemd, (tr_sender){ 0 }, &sender), TR_ENOENT);
    systemd_fini(&systemd);
}

TEST(systemd, state_arrives_whole_over_both_kinds_of_name)
{
    char folder[] = "/tmp/test-systemd-XXXXXX";
    char path[64];
    char abstract[64];
    struct systemd systemd;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/notify", folder);
    snprintf(abstract, sizeof abstract, "@test-systemd-%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        begin(i == 0 ? path : abstract);
        CHECK_EQ_INT(systemd_init(&systemd), 0);
        CHECK_EQ_INT(systemd_notify(&systemd, "READY=1\nSTATUS=serving"), 0);
        CHECK_EQ_STR(received(), "READY=1\nSTATUS=serving");
        CHECK_EQ_INT(systemd_notify_reloading(&systemd, 5000000), 0);
        CHECK_EQ_STR(received(), "RELOADING=1\nMONOTONIC_USEC=5000");
        systemd_fini(&systemd);
        close(listen_fd);
    }
    unlink(path);
    rmdir(folder);
}

TEST(systemd, socket_that_is_not_there_is_an_error)
{
    struct systemd systemd;

    setenv("NOTIFY_SOCKET", "/nowhere/notify", 1);
    CHECK_EQ_INT(systemd_init(&systemd), TR_EIO);
    setenv("NOTIFY_SOCKET", "relative", 1);
    CHECK_EQ_INT(systemd_init(&systemd), TR_EIO);
}

TEST(systemd, watchdog_is_for_the_process_it_names)
{
    struct systemd systemd;
    char pid[16];

    begin("@test-systemd-pid");
    setenv("WATCHDOG_USEC", "2000000", 1);
    CHECK_EQ_INT(systemd_init(&systemd), 0);
    CHECK_EQ_U64(systemd.watchdog_ns, TR_SECONDS(2));
    systemd_fini(&systemd);
    setenv("WATCHDOG_PID", "1", 1);
    CHECK_EQ_INT(systemd_init(&systemd), 0);
    CHECK_EQ_U64(systemd.watchdog_ns, 0);
    systemd_fini(&systemd);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    CHECK_EQ_INT(systemd_init(&systemd), 0);
    CHECK_EQ_U64(systemd.watchdog_ns, TR_SECONDS(2));
    systemd_fini(&systemd);
    setenv("WATCHDOG_USEC", "soon", 1);
    CHECK_EQ_INT(systemd_init(&systemd), 0);
    CHECK_EQ_U64(systemd.watchdog_ns, 0);
    systemd_fini(&systemd);
}

TEST(systemd, watchdog_is_pinged_while_the_system_is_idle)
{
    struct tr_system *system;
    struct systemd systemd;
    tr_sender sender;

    begin("@test-systemd-ping");
    setenv("WATCHDOG_USEC", "20000", 1);
    CHECK_EQ_INT(systemd_init(&systemd), 0);
    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .workers = 1 }, &system), 0);
    CHECK_EQ_INT(systemd_watchdog_start(system, &systemd, (tr_sender){ 0 }, &sender), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_STR(received(), "WATCHDOG=1");
    tr_sender_drop(&sender);
    tr_system_destroy(&system);
    systemd_fini(&systemd);
}

TEST(systemd, queue_that_does_not_move_is_no_progress)
{
    CHECK(systemd_has_progress(5, 5, 0));
    CHECK(systemd_has_progress(5, 6, 100));
    CHECK(!systemd_has_progress(5, 5, 1));
}
