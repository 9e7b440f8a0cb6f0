/* SPDX-License-Identifier: Apache-2.0 */
/* process_helper.c: the process that starts and reaps children, and the parent's side of it.
 *
 * The helper is this program, executed by posix_spawn with an argument of its own. It has one
 * thread, no memory of the parent's and no descriptor but its socket, so it may start programs
 * after the parent has lost the right to. It does nothing but wait in poll():
 *
 *   its socket        a request: execute a child; the end: the parent has gone
 *   a child's pidfd   it has ended: reap it, tell its proxy
 *   a child's notices a packet: kill it; the end: the proxy closed, the child has a while to stop
 *
 * Invariants:
 *   1. A child is in the table from its execution until it was reaped; its proxy is told of both.
 *   2. The helper ends when its socket has ended and the table is empty, so no child outlives it,
 *      unless it is killed itself; then the kernel kills the children (PR_SET_PDEATHSIG).
 *   3. Every descriptor is close-on-exec; child_execute() names those a child inherits. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/process.h"
#include "runtime/system.h"

static const char helper_flag[] = "--troupe-process-helper";
static const char child_flag[] = "--troupe-process-child";
/* Set in a process that must go through tr_process_main(); one that does not would start itself for
 * ever. */
static const char guard_name[] = "TROUPE_PROCESS";
static const char program_path[] = "/proc/self/exe";

enum { REQUEST_MAGIC = 0x74727031, READY_MS = 10000, END_MS = 10000 };
static const uint64_t orphan_grace_ns = UINT64_C(5000000000);

struct request {
    uint32_t magic;
    uint32_t has_argument;
    char name[TR_PROCESS_NAME_MAX + 1];
    char argument[TR_PROCESS_ARGUMENT_MAX + 1];
};

/* ---- both sides ------------------------------------------------------------------------------ */

/* One packet with descriptors. 0 or errno. */
static int packet_send(int fd, const void *bytes, size_t size, const int *fds, uint32_t count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = { 0 };
    struct iovec part = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    ssize_t sent;

    if (count > 0) {
        struct cmsghdr *header;

        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    }
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? errno : 0;
}

/* The size of the packet, 0 at the end, or -errno. Descriptors that are not wanted are closed. */
static ssize_t packet_receive(
    int fd, void *bytes, size_t size, int flags, int *ret_fds, uint32_t *ret_count)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    struct iovec part = { .iov_base = bytes, .iov_len = size };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    ssize_t got;

    *ret_count = 0;
    do
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | flags);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL;
         header = CMSG_NXTHDR(&message, header)) {
        size_t count;

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int received;

            memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof received);
            if (*ret_count < 2)
                ret_fds[(*ret_count)++] = received;
            else
                close(received);
        }
    }
    return message.msg_flags & MSG_TRUNC ? -EMSGSIZE : got;
}

/* Fresh signals whatever the calling thread blocks or ignores. */
static int attributes_init(posix_spawnattr_t *attributes, bool own_group)
{
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    sigset_t set;
    int error;

    error = posix_spawnattr_init(attributes);
    if (error != 0)
        return error;
    /* A group of its own, so that a terminal does not stop it with the parent. */
    if (own_group)
        flags |= POSIX_SPAWN_SETPGROUP;
    posix_spawnattr_setflags(attributes, flags);
    posix_spawnattr_setpgroup(attributes, 0);
    sigemptyset(&set);
    posix_spawnattr_setsigmask(attributes, &set);
    sigfillset(&set);
    sigdelset(&set, SIGKILL);
    sigdelset(&set, SIGSTOP);
    posix_spawnattr_setsigdefault(attributes, &set);
    return 0;
}

/* Execute this program again with `fd` as its descriptor 3 and nothing else. 0 or errno. */
static int program_execute(
    int fd, bool is_helper, char *const *arguments, char *const *environment, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int error;

    error = attributes_init(&attributes, is_helper);
    if (error != 0)
        return error;
    error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        goto free_attributes;
    error = posix_spawn_file_actions_adddup2(&actions, fd, PROCESS_FD);
    if (error == 0)
        error = posix_spawn_file_actions_addclosefrom_np(&actions, PROCESS_FD + 1);
    if (error == 0 && is_helper)
        error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn(ret_pid, program_path, &actions, &attributes, arguments, environment);
    posix_spawn_file_actions_destroy(&actions);

free_attributes:
    posix_spawnattr_destroy(&attributes);
    return error;
}

/* ---- the parent's side ----------------------------------------------------------------------- */

static int row_check(const struct tr_process_row *row)
{
    uint32_t bytes_max = tr__codec_bytes_max(&row->codec);

    if (row->name == NULL || row->name[0] == '\0' || strlen(row->name) > TR_PROCESS_NAME_MAX)
        return TR_EINVAL;
    if (row->type == NULL || row->type->handle == NULL || row->type->name == NULL)
        return TR_EINVAL;
    if (bytes_max > TR_CODEC_BYTES_MAX)
        return TR_EINVAL;
    if (row->codec.encode == NULL && row->type->message_size > bytes_max)
        return TR_EINVAL;
    if ((row->codec.encode == NULL) != (row->codec.decode == NULL) ||
        (row->codec.encode_value == NULL) != (row->codec.decode_value == NULL))
        return TR_EINVAL;
    return 0;
}

static char **environment_with_guard(char *guard)
{
    size_t count = 0;
    char **copy;

    while (environ != NULL && environ[count] != NULL)
        count++;
    copy = base_alloc((count + 2) * sizeof *copy);
    if (copy == NULL)
        return NULL;
    if (count > 0)
        memcpy(copy, environ, count * sizeof *copy);
    copy[count] = guard;
    copy[count + 1] = NULL;
    return copy;
}

static int helper_execute(struct tr__processes *processes)
{
    char guard[sizeof guard_name + 2], flag[sizeof helper_flag];
    char *arguments[] = { program_invocation_name, flag, NULL };
    char **environment;
    int pair[2], error;

    snprintf(guard, sizeof guard, "%s=1", guard_name);
    memcpy(flag, helper_flag, sizeof flag);
    environment = environment_with_guard(guard);
    if (environment == NULL)
        return TR_ENOMEM;
    if (base_fault_hit() || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        base_free(environment);
        return TR_ELIMIT;
    }
    error = base_fault_hit()
                ? EAGAIN
                : program_execute(pair[1], true, arguments, environment, &processes->pid);
    base_free(environment);
    close(pair[1]);
    if (error != 0) {
        close(pair[0]);
        return error == ENOMEM                      ? TR_ENOMEM
               : error == EAGAIN || error == EMFILE ? TR_ELIMIT
                                                    : TR_EIO;
    }
    processes->fd = pair[0];
    /* If it cannot be made the helper still ends with its socket; it only is not waited for by it.
     */
    processes->pidfd = base_fault_hit() ? -1 : pidfd_open(processes->pid, 0);
    return 0;
}

static bool is_readable_in(int fd, int timeout_ms)
{
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    int rc;

    do
        rc = poll(&wait, 1, timeout_ms);
    while (rc < 0 && errno == EINTR);
    return rc > 0;
}

static int helper_wait_ready(struct tr__processes *processes)
{
    struct tr__notice notice;
    int pidfd;

    /* A debugger or a busy machine may be slow; a helper that is gone is seen at once. */
    if (!is_readable_in(processes->fd, READY_MS) ||
        tr__process_notice(processes->fd, &notice, &pidfd) < 0)
        return TR_EIO;
    return notice.kind == NOTICE_READY ? 0 : TR_EIO;
}

/* Its socket closes, so it ends; by force if it does not. */
static void helper_end(struct tr__processes *processes)
{
    int pidfd = processes->pidfd;
    siginfo_t info;

    close(processes->fd);
    if (pidfd >= 0 && !is_readable_in(pidfd, END_MS))
        pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
    while (waitid(pidfd >= 0 ? P_PIDFD : P_PID, (id_t)(pidfd >= 0 ? pidfd : processes->pid), &info,
               WEXITED) < 0 &&
           errno == EINTR) {
    }
    if (pidfd >= 0)
        close(pidfd);
}

void tr__processes_stop(struct tr_system *system)
{
    struct tr__processes *processes =
        atomic_load_explicit(&system->processes, memory_order_acquire);

    if (processes == NULL)
        return;
    tr_assert(tr__list_is_empty(&processes->live)); /* every actor has ended */
    helper_end(processes);
    pthread_mutex_destroy(&processes->lock);
    base_free(processes);
    tr__set(system->processes, NULL);
}

int tr_process_start(struct tr_system *system, const struct tr_process_row *rows, uint32_t count)
{
    struct tr__processes *processes, *none = NULL;
    int rc;

    tr_assert_use(system->sim == NULL, "a process actor in a simulation could not be replayed");
    tr_assert_use(getenv(guard_name) == NULL, "main() begins with tr_process_main()");
    if (rows == NULL || count == 0)
        return TR_EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        rc = row_check(&rows[i]);
        if (rc < 0)
            return rc;
    }
    if (atomic_load_explicit(&system->processes, memory_order_acquire) != NULL)
        return TR_EEXIST;
    processes = base_calloc(sizeof *processes + count * sizeof processes->types[0]);
    if (processes == NULL)
        return TR_ENOMEM;
    processes->system = system;
    processes->count = count;
    tr__list_init(&processes->live);
    for (uint32_t i = 0; i < count; i++)
        tr__process_type_init(&processes->types[i], &rows[i], processes);
    rc = helper_execute(processes);
    if (rc < 0)
        goto free_processes;
    rc = helper_wait_ready(processes);
    if (rc < 0)
        goto end_helper;
    pthread_mutex_init(&processes->lock, NULL);
    /* Release publishes the types; pairs with the acquire of a spawn. */
    if (!atomic_compare_exchange_strong_explicit(
            &system->processes, &none, processes, memory_order_release, memory_order_relaxed)) {
        pthread_mutex_destroy(&processes->lock);
        rc = TR_EEXIST;
        goto end_helper;
    }
    return 0;

end_helper:
    helper_end(processes);
free_processes:
    base_free(processes);
    return rc;
}

bool tr__process_helper_lives(const struct tr__processes *processes)
{
    struct pollfd look = { .fd = processes->fd, .events = 0 };

    return poll(&look, 1, 0) <= 0 || !(look.revents & (POLLHUP | POLLERR));
}

int tr__process_request(struct tr__processes *processes, const char *name, const char *argument,
    int *ret_wire, int *ret_notices)
{
    struct request request = { .magic = REQUEST_MAGIC, .has_argument = argument != NULL };
    size_t length = argument != NULL ? strlen(argument) : 0;
    int wire[2], notices[2], error;

    snprintf(request.name, sizeof request.name, "%s", name);
    if (length > TR_PROCESS_ARGUMENT_MAX)
        return TR_ETOOBIG;
    if (length > 0)
        memcpy(request.argument, argument, length);
    if (base_fault_hit() ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, wire) < 0)
        return TR_ELIMIT;
    if (base_fault_hit() ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, notices) < 0) {
        close(wire[0]);
        close(wire[1]);
        return TR_ELIMIT;
    }
    error = base_fault_hit() ? EAGAIN
                             : packet_send(processes->fd, &request,
                                   offsetof(struct request, argument) + length + 1,
                                   (int[]){ wire[1], notices[1] }, 2);
    close(wire[1]);
    close(notices[1]);
    if (error != 0) {
        close(wire[0]);
        close(notices[0]);
        return error == EPIPE || error == ECONNRESET ? TR_ECLOSED
               : error == EAGAIN                     ? TR_EAGAIN
                                                     : TR_ELIMIT;
    }
    *ret_wire = wire[0];
    *ret_notices = notices[0];
    return 0;
}

int tr__process_notice(int fd, struct tr__notice *ret_notice, int *ret_pidfd)
{
    struct tr__notice notice;
    uint32_t count;
    int fds[2];
    ssize_t got;

    if (base_fault_hit())
        return TR_ECLOSED;
    got = packet_receive(fd, &notice, sizeof notice, MSG_DONTWAIT, fds, &count);
    if (got == -EAGAIN)
        return TR_EAGAIN;
    *ret_pidfd = count > 0 ? fds[0] : -1;
    if (count > 1)
        close(fds[1]);
    if (got != (ssize_t)sizeof notice) {
        if (count > 0)
            close(fds[0]);
        return TR_ECLOSED;
    }
    *ret_notice = notice;
    return 0;
}

void tr__process_kill(int notices)
{
    struct tr__notice nothing = { 0 };

    if (notices >= 0)
        packet_send(notices, &nothing, sizeof nothing, NULL, 0);
}

/* ---- the helper ------------------------------------------------------------------------------ */

struct helped {
    pid_t pid;
    int pidfd;
    int notices;         /* -1: its proxy closed its end */
    uint64_t kill_at_ns; /* 0: not to be killed */
};

struct helper {
    char *program; /* argv[0] */
    char pid_text[16];
    struct helped *children;
    struct pollfd *polls; /* room for all of them */
    uint32_t count, capacity;
    bool parent_gone;
};

static uint64_t now_ns(void)
{
    const struct tr_env *env = tr_env_real();

    return env->now_ns(env->data);
}

static int helper_reserve(struct helper *helper)
{
    uint32_t capacity = helper->capacity;
    struct helped *children;
    struct pollfd *polls;

    if (helper->count < capacity)
        return 0;
    children = base_grow(helper->children, &capacity, 16, sizeof *children);
    if (children == NULL)
        return ENOMEM;
    helper->children = children;
    polls = base_realloc(helper->polls, (1 + 2 * (size_t)capacity) * sizeof *polls);
    if (polls == NULL)
        return ENOMEM;
    helper->polls = polls;
    helper->capacity = capacity;
    return 0;
}

static int child_execute(
    struct helper *helper, const struct request *request, int wire, pid_t *ret_pid)
{
    char flag[sizeof child_flag], name[sizeof request->name], argument[sizeof request->argument];
    char *arguments[] = { helper->program, flag, name, helper->pid_text,
        request->has_argument ? argument : NULL, NULL };

    memcpy(flag, child_flag, sizeof flag);
    memcpy(name, request->name, sizeof name);
    memcpy(argument, request->argument, sizeof argument);
    return program_execute(wire, false, arguments, environ, ret_pid);
}

/* 0 or errno. On success the child is in the table. */
static int helper_child_start(
    struct helper *helper, const struct request *request, int wire, int notices)
{
    struct tr__notice notice = { .kind = NOTICE_SPAWNED };
    int pidfd, error;
    pid_t pid;

    if (request->magic != REQUEST_MAGIC || request->has_argument > 1 ||
        memchr(request->name, '\0', sizeof request->name) == NULL)
        return EINVAL;
    error = helper_reserve(helper);
    if (error != 0)
        return error;
    error = child_execute(helper, request, wire, &pid);
    if (error != 0)
        return error;
    pidfd = pidfd_open(pid, 0); /* not reaped yet: the number is still its own */
    if (pidfd < 0) {
        error = errno;
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        return error;
    }
    helper->children[helper->count++] =
        (struct helped){ .pid = pid, .pidfd = pidfd, .notices = notices };
    notice.pid = pid;
    /* A proxy that has gone meanwhile is seen by poll. */
    packet_send(notices, &notice, sizeof notice, &pidfd, 1);
    return 0;
}

static void on_request(struct helper *helper)
{
    struct request request = { 0 };
    uint32_t count;
    int fds[2], error = EINVAL;
    ssize_t got;

    got = packet_receive(PROCESS_FD, &request, sizeof request, MSG_DONTWAIT, fds, &count);
    if (got == -EAGAIN)
        return;
    if (got == 0 || got == -ECONNRESET) {
        helper->parent_gone = true;
        return;
    }
    /* Sent up to the end of its argument, of which zero is a part. */
    if (count == 2 && got > (ssize_t)offsetof(struct request, argument) &&
        ((const char *)&request)[got - 1] == '\0')
        error = helper_child_start(helper, &request, fds[0], fds[1]);
    if (error != 0 && count == 2) {
        struct tr__notice notice = { .kind = NOTICE_REFUSED, .code = error };

        packet_send(fds[1], &notice, sizeof notice, NULL, 0);
        close(fds[1]);
    }
    if (count > 0)
        close(fds[0]); /* the child has its own */
}

/* True if it was reaped and is out of the table. */
static bool child_reap(struct helper *helper, uint32_t index)
{
    struct helped *child = &helper->children[index];
    struct tr__notice notice = { .kind = NOTICE_EXITED, .pid = child->pid };
    siginfo_t info = { 0 };

    if (waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED | WNOHANG) < 0) {
        if (errno == EINTR)
            return false;
    } else if (info.si_pid == 0) {
        return false;
    }
    notice.code = info.si_code;
    notice.status = info.si_status;
    if (child->notices >= 0) {
        packet_send(child->notices, &notice, sizeof notice, NULL, 0);
        close(child->notices);
    }
    close(child->pidfd);
    *child = helper->children[--helper->count];
    return true;
}

static int helper_wait(struct helper *helper)
{
    uint64_t first = UINT64_MAX, now = now_ns();
    int timeout_ms = -1;

    helper->polls[0] =
        (struct pollfd){ .fd = helper->parent_gone ? -1 : PROCESS_FD, .events = POLLIN };
    for (uint32_t i = 0; i < helper->count; i++) {
        const struct helped *child = &helper->children[i];

        helper->polls[1 + 2 * i] = (struct pollfd){ .fd = child->pidfd, .events = POLLIN };
        helper->polls[2 + 2 * i] = (struct pollfd){ .fd = child->notices, .events = POLLIN };
        if (child->kill_at_ns != 0 && child->kill_at_ns < first)
            first = child->kill_at_ns;
    }
    if (first != UINT64_MAX)
        timeout_ms = first <= now ? 0 : (int)((first - now) / 1000000) + 1;
    return poll(helper->polls, 1 + 2 * (nfds_t)helper->count, timeout_ms);
}

static bool is_told_to_kill(const struct helped *child)
{
    struct tr__notice nothing;
    uint32_t count;
    int fds[2];

    return packet_receive(child->notices, &nothing, sizeof nothing, MSG_DONTWAIT, fds, &count) > 0;
}

static void helper_on_child(struct helper *helper, uint32_t index)
{
    struct helped *child = &helper->children[index];

    if (child->notices >= 0 && helper->polls[2 + 2 * index].revents != 0) {
        if (is_told_to_kill(child)) {
            child->kill_at_ns = now_ns();
        } else {
            /* A parent that died closes it too, and then the child is about to stop by itself. */
            close(child->notices);
            child->notices = -1;
            child->kill_at_ns = now_ns() + orphan_grace_ns;
        }
    }
    if (child->kill_at_ns != 0 && now_ns() >= child->kill_at_ns) {
        pidfd_send_signal(child->pidfd, SIGKILL, NULL, 0);
        child->kill_at_ns = 0;
    }
    if (helper->polls[1 + 2 * index].revents != 0)
        child_reap(helper, index);
}

static int helper_main(char *program)
{
    struct helper helper = { .program = program };
    struct tr__notice ready = { .kind = NOTICE_READY };

    snprintf(helper.pid_text, sizeof helper.pid_text, "%d", (int)getpid());
    if (fcntl(PROCESS_FD, F_SETFD, FD_CLOEXEC) < 0 || helper_reserve(&helper) != 0 ||
        packet_send(PROCESS_FD, &ready, sizeof ready, NULL, 0) != 0)
        return TR_PROCESS_EXIT_SETUP;
    while (!helper.parent_gone || helper.count > 0) {
        if (helper_wait(&helper) < 0)
            continue; /* EINTR; with valid arguments there is nothing else but a want of memory */
        /* From the last to the first: reaping moves the last one into the gap. The request comes
         * after them, because it adds one that was not polled. */
        for (uint32_t i = helper.count; i-- > 0;)
            helper_on_child(&helper, i);
        if (helper.polls[0].revents != 0)
            on_request(&helper);
    }
    base_free(helper.children);
    base_free(helper.polls);
    return 0;
}

/* ---- main ------------------------------------------------------------------------------------ */

/* Started by hand? Then there is no socket. */
static bool is_socket(int fd)
{
    int domain = 0;
    socklen_t size = sizeof domain;

    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

static int child_main(int argc, char **argv, const struct tr_process_row *rows, uint32_t count)
{
    char *end;
    long helper_pid;

    if (argc < 4)
        return TR_PROCESS_EXIT_SETUP;
    helper_pid = strtol(argv[3], &end, 10);
    if (*end != '\0' || helper_pid <= 0)
        return TR_PROCESS_EXIT_SETUP;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, argv[2]) == 0)
            return tr__process_child(&rows[i], argc > 4 ? argv[4] : NULL, (pid_t)helper_pid);
    fprintf(stderr, "troupe: no process actor is called %s\n", argv[2]);
    return TR_PROCESS_EXIT_SETUP;
}

int tr_process_main(int argc, char **argv, const struct tr_process_row *rows, uint32_t count)
{
    bool is_helper = argc >= 2 && strcmp(argv[1], helper_flag) == 0;
    bool is_child = argc >= 2 && strcmp(argv[1], child_flag) == 0;

    if (!is_helper && !is_child)
        return -1;
    if (!is_socket(PROCESS_FD)) {
        fprintf(stderr, "%s: %s is for the program itself\n", argv[0], argv[1]);
        return TR_PROCESS_EXIT_SETUP;
    }
    /* Both end when the parent does. Signals that end the program (from a terminal, or a service
     * manager that signals the whole group) are for the parent, which then stops its children in
     * order. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (is_helper)
        return helper_main(argv[0]); /* its children inherit the guard */
    unsetenv(guard_name);            /* a child may have process actors of its own */
    return child_main(argc, argv, rows, count);
}
