/* SPDX-License-Identifier: Apache-2.0 */
/* Process actors: each way a child can end, what its askers get, and that nothing is left behind.
 * This program is its own helper and child: the constructor below hands over before the harness's
 * main() runs. */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <troupe/troupe.h>

#include "base/alloc.h"
#include "check.h"
#include "runtime/wire.h"

static const uint64_t ms = UINT64_C(1000000);
static const uint64_t long_ns = UINT64_C(60000000000); /* only if something is broken */

/* ---- the actor in the child ------------------------------------------------------------------ */

enum kind {
    GET, /* the count */
    ADD,
    APPEND, /* must be one more than the one before, or the first */
    RANGE,  /* first and last of those */
    PID,
    SIGNAL, /* raise it */
    EXIT,
    SPIN, /* for ever */
    FAIL,
    STOP,
    LATER,   /* take the duty to answer … */
    RELEASE, /* … and answer all that were taken */
    DROP,    /* no answer */
    ACCEPT,  /* two stages */
    SELF,    /* tell itself to add */
    IS_ASKED,
    KEEP,   /* stash */
    UNKEEP, /* unstash */
    HOLD,   /* ask the latch and hold */
    OPEN,   /* the latch, which answers */
    DESCRIPTORS,
    WRITE,      /* bytes to the wire, behind the port's back */
    WRITE_SPIN, /* and never return */
    WRITE_EXIT,
    CLOSE_WIRE,
    BIG, /* a value of this size */
    LIMIT_FDS,
    NEST, /* a process actor in the process actor */
    DEADLINE,
    DAWDLE, /* longer than `hurried` may */
};

struct subject_message {
    enum kind kind;
    int number;
    uint32_t size;
    unsigned char bytes[100];
};

struct subject {
    int count;
    int first, last;
    int asked_tells;
    tr_reply_handle taken[64];
    int taken_count;
    tr_sender latch;
    tr_sender nested;
    bool keeping;
    char path[200]; /* where stop leaves a word */
};

struct range {
    int first, last, count;
};

/* Takes the ask of a holder and answers when it is told. */
struct latch {
    tr_reply_handle handle;
};

static enum tr_next latch_handle(void *state, struct tr_context *ctx, void *message)
{
    struct latch *self = state;

    (void)message;
    if (tr_is_asked(ctx))
        self->handle = tr_reply_take(ctx);
    else
        tr_reply_send(&self->handle, 0, NULL, 0);
    return TR_GO;
}

static const struct tr_type latch_type = {
    .name = "latch",
    .message_size = sizeof(int),
    .state_size = sizeof(struct latch),
    .handle = latch_handle,
};

enum { ROWS = 5, HURRY_NS = 400000000 };
static const struct tr_process_row rows[ROWS];

static void write_all(int fd, const void *bytes, size_t size)
{
    if (write(fd, bytes, size) != (ssize_t)size)
        _exit(99);
}

static void list_descriptors(struct tr_context *ctx)
{
    char text[2000] = "";
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;

    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char path[300], target[200] = "";
        int fd = (int)strtol(entry->d_name, NULL, 10);

        if (entry->d_name[0] == '.' || fd == dirfd(directory))
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0)
            continue;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%d %s\n", fd, target);
    }
    if (directory != NULL)
        closedir(directory);
    tr_reply(ctx, 0, text, sizeof text);
}

static enum tr_next handle_nest(struct subject *self, struct tr_context *ctx)
{
    struct tr_system *system = tr_system_of(ctx);
    struct subject_message get = { .kind = PID };
    int rc;

    rc = tr_process_start(system, rows, ROWS);
    if (rc == 0)
        rc = tr_process_spawn(system, "subject", NULL, NULL, &self->nested);
    if (rc == 0)
        rc = tr_ask(ctx, self->nested, &get, sizeof get, NULL);
    if (rc < 0)
        tr_reply(ctx, rc, NULL, 0);
    else
        self->taken[self->taken_count++] = tr_reply_take(ctx);
    return TR_GO;
}

static enum tr_next handle_hold(struct subject *self, struct tr_context *ctx)
{
    struct latch latch = { 0 };
    int nothing = 0, rc;

    rc = tr_spawn(tr_system_of(ctx), &latch_type, &latch, NULL, &self->latch);
    if (rc == 0)
        rc = tr_ask(
            ctx, self->latch, &nothing, sizeof nothing, &(struct tr_ask_options){ .hold = true });
    tr_reply(ctx, rc, NULL, 0);
    return TR_GO;
}

/* A call of exit() in the middle of a turn frees nothing, and some of the runtime's pointers are
 * inside words: whether LeakSanitizer reports that memory depends on the registers. */
static bool has_left_early;

int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return has_left_early;
}

static enum tr_next subject_handle(void *state, struct tr_context *ctx, void *message)
{
    static unsigned char big[TR_VALUE_SIZE_MAX];
    struct subject *self = state;
    const struct subject_message *m = message;
    int pid = getpid(), nothing = 0;
    uint64_t left;

    switch (m->kind) {
    case GET:
        tr_reply(ctx, 0, &self->count, sizeof self->count);
        break;
    case ADD:
        self->asked_tells += tr_is_asked(ctx);
        self->count += m->number;
        break;
    case APPEND:
        if (self->count++ == 0)
            self->first = m->number;
        else if (self->last + 1 != m->number)
            _exit(98);
        self->last = m->number;
        break;
    case RANGE: {
        struct range range = { self->first, self->last, self->count };

        tr_reply(ctx, 0, &range, sizeof range);
        break;
    }
    case PID:
        tr_reply(ctx, 0, &pid, sizeof pid);
        break;
    case SIGNAL:
        if (m->number == SIGABRT)
            abort();
        raise(m->number);
        break;
    case EXIT:
        has_left_early = true;
        exit(m->number);
    case SPIN:
        for (;;)
            pause();
    case FAIL:
        return TR_FAIL;
    case STOP:
        return TR_STOP;
    case LATER:
        self->taken[self->taken_count++] = tr_reply_take(ctx);
        break;
    case RELEASE:
        while (self->taken_count > 0) {
            self->taken_count--;
            tr_reply_send(
                &self->taken[self->taken_count], 0, &self->taken_count, sizeof self->taken_count);
        }
        break;
    case DROP:
        break;
    case ACCEPT:
        tr_reply_accept(ctx);
        self->taken[self->taken_count++] = tr_reply_take(ctx);
        break;
    case SELF:
        tr_self_tell(ctx, &(struct subject_message){ .kind = ADD, .number = m->number }, sizeof *m);
        break;
    case IS_ASKED:
        tr_reply(ctx, 0, &self->asked_tells, sizeof self->asked_tells);
        break;
    case KEEP:
        if (!self->keeping) {
            tr_stash(ctx);
        } else if (tr_is_asked(ctx)) {
            tr_reply(ctx, 0, &self->count, sizeof self->count);
        } else {
            self->count += m->number;
        }
        break;
    case UNKEEP:
        self->keeping = true;
        tr_unstash(ctx);
        break;
    case HOLD:
        return handle_hold(self, ctx);
    case OPEN:
        tr_tell(self->latch, &nothing, sizeof nothing);
        tr_sender_drop(&self->latch);
        break;
    case DESCRIPTORS:
        list_descriptors(ctx);
        break;
    case WRITE:
        write_all(3, m->bytes, m->size);
        break;
    case WRITE_SPIN:
        write_all(3, m->bytes, m->size);
        for (;;)
            pause();
    case WRITE_EXIT:
        write_all(3, m->bytes, m->size);
        _exit(0);
    case CLOSE_WIRE:
        close(3);
        for (;;)
            pause();
    case BIG:
        memset(big, 7, sizeof big);
        tr_reply(ctx, 0, big, m->size);
        break;
    case LIMIT_FDS:
        break;
    case NEST:
        return handle_nest(self, ctx);
    case DEADLINE:
        left = tr_deadline_ns(ctx) == 0 ? 0 : tr_deadline_ns(ctx) - tr_now_ns(ctx);
        tr_reply(ctx, 0, &left, sizeof left);
        break;
    case DAWDLE:
        left = tr_now_ns(ctx) + 2 * HURRY_NS;
        tr_reply(ctx, 0, &self->count, sizeof self->count);
        while (tr_now_ns(ctx) < left) {
        }
        break;
    }
    return TR_GO;
}

static enum tr_next subject_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct subject *self = state;

    (void)ctx;
    if (event->kind == TR_EVENT_REPLY && self->nested.box != NULL) {
        tr_sender_drop(&self->nested);
        self->taken_count--;
        tr_reply_send(&self->taken[self->taken_count], event->status, event->value, event->size);
    }
    return TR_GO;
}

static void subject_stop(void *state, struct tr_context *ctx, enum tr_why why)
{
    struct subject *self = state;
    FILE *file;

    (void)ctx;
    if (self->path[0] == '\0')
        return;
    file = fopen(self->path, "w");
    if (file == NULL)
        _exit(97);
    fprintf(file, "%d %d", (int)why, self->count);
    fclose(file);
}

static void subject_finish(void *state)
{
    struct subject *self = state;

    tr_sender_drop(&self->latch);
    tr_sender_drop(&self->nested);
}

static const char *subject_message_name(const void *message)
{
    const struct subject_message *m = message;

    return m->kind == SIGNAL ? "signal" : m->kind == APPEND ? "append" : "other";
}

static const struct tr_type subject_type = {
    .name = "subject",
    .message_size = sizeof(struct subject_message),
    .state_size = sizeof(struct subject),
    .handle = subject_handle,
    .event = subject_event,
    .stop = subject_stop,
    .finish = subject_finish,
    .message_name = subject_message_name,
};
TR_ACTOR(subject, struct subject, struct subject_message)

static int subject_prepare(void *state, const char *argument)
{
    struct subject *self = state;

    if (argument == NULL)
        return 0;
    if (strcmp(argument, "fail") == 0)
        return TR_EINVAL;
    if (strcmp(argument, "spin") == 0)
        for (;;)
            pause();
    snprintf(self->path, sizeof self->path, "%s", argument);
    return 0;
}

/* ---- another, with messages that own memory and a codec of its own --------------------------- */

struct words_message {
    char *text; /* owned */
};

static int words_drops; /* in the parent */

static void words_message_drop(void *message)
{
    struct words_message *m = message;

    words_drops++;
    free(m->text);
}

static enum tr_next words_handle(void *state, struct tr_context *ctx, void *message)
{
    struct words_message *m = message;

    (void)state;
    tr_reply(ctx, 0, m->text, strlen(m->text) + 1);
    free(m->text);
    return TR_GO;
}

static int words_encode(const void *message, void *bytes, uint32_t size, uint32_t *ret_size)
{
    const struct words_message *m = message;
    size_t length = strlen(m->text);

    if (length > size)
        return TR_ETOOBIG;
    memcpy(bytes, m->text, length);
    *ret_size = (uint32_t)length;
    return 0;
}

static int words_decode(const void *bytes, uint32_t size, void *message)
{
    struct words_message *m = message;

    if (size > 0 && *(const char *)bytes == '?')
        return TR_EPROTO;
    m->text = strndup(bytes, size);
    return m->text == NULL ? TR_ENOMEM : 0;
}

/* Without the terminating zero, and twice: so that a value that was not decoded is seen. */
static int words_encode_value(
    const void *value, uint32_t value_size, void *bytes, uint32_t size, uint32_t *ret_size)
{
    if (2 * (value_size - 1) > size)
        return TR_ETOOBIG;
    memcpy(bytes, value, value_size - 1);
    memcpy((char *)bytes + value_size - 1, value, value_size - 1);
    *ret_size = 2 * (value_size - 1);
    return 0;
}

static int words_decode_value(
    const void *bytes, uint32_t size, void *value, uint32_t *ret_value_size)
{
    if (*(const char *)bytes == '!')
        return TR_EPROTO;
    memcpy(value, bytes, size / 2);
    ((char *)value)[size / 2] = '\0';
    *ret_value_size = size / 2 + 1;
    return 0;
}

static const struct tr_type words_type = {
    .name = "words",
    .message_size = sizeof(struct words_message),
    .handle = words_handle,
    .message_drop = words_message_drop,
};
TR_ACTOR(words, struct words_message, struct words_message)

/* ---- one that cannot start ------------------------------------------------------------------- */

static int stillborn_start(void *state, struct tr_context *ctx)
{
    (void)state;
    (void)ctx;
    return TR_EIO;
}

static const struct tr_type stillborn_type = {
    .name = "stillborn",
    .message_size = sizeof(struct subject_message),
    .state_size = sizeof(struct subject),
    .start = stillborn_start,
    .handle = subject_handle,
};

/* ---- one that has little time --------------------------------------------------------------- */

static const struct tr_type hurried_type = {
    .name = "hurried",
    .message_size = sizeof(struct subject_message),
    .state_size = sizeof(struct subject),
    .turn_ns_max = HURRY_NS,
    .handle = subject_handle,
    .event = subject_event,
};

static const struct subject ready_made = { .count = 1000 };

static const struct tr_process_row rows[ROWS] = {
    { .name = "subject", .type = &subject_type, .prepare = subject_prepare },
    { .name = "words",
        .type = &words_type,
        .codec = { .bytes_max = 1000,
            .encode = words_encode,
            .decode = words_decode,
            .encode_value = words_encode_value,
            .decode_value = words_decode_value } },
    { .name = "stillborn", .type = &stillborn_type },
    { .name = "ready-made", .type = &subject_type, .state = &ready_made },
    { .name = "hurried", .type = &hurried_type },
};

/* ---- a program that has a process actor and is killed ---------------------------------------- */

static const char victim_flag[] = "--victim";

/* Says who its child and its helper are, and waits to be killed. */
static _Noreturn void victim(char **argv)
{
    struct subject_message spin = { .kind = SPIN };
    struct tr_process process = { .argument = argv[2][0] != '\0' ? argv[2] : NULL };
    struct tr_process_info info;
    struct tr_system *system;
    tr_sender sender;
    int pid;

    if (tr_system_create(&(struct tr_system_options){ .workers = 1 }, &system) < 0 ||
        tr_process_start(system, rows, ROWS) < 0 ||
        tr_process_spawn(system, "subject", &process, NULL, &sender) < 0 ||
        tr_ask_wait(sender, &(struct subject_message){ .kind = PID },
            sizeof(struct subject_message), &pid, sizeof pid, long_ns) < 0 ||
        tr_process_info(sender, &info) < 0)
        _exit(96);
    if (strcmp(argv[3], "spin") == 0 && tr_tell(sender, &spin, sizeof spin) < 0)
        _exit(95);
    write_all(STDOUT_FILENO, (int[]){ pid, info.helper_pid }, 2 * sizeof(int));
    for (;;)
        pause();
}

/* glibc gives constructors main's arguments. */
__attribute__((constructor)) static void hand_over(int argc, char **argv)
{
    const struct rlimit no_core = { 0, 0 };
    int code;

    if (argc < 2 || strncmp(argv[1], "--", 2) != 0)
        return;
    if (argc == 4 && strcmp(argv[1], victim_flag) == 0)
        victim(argv);
    setrlimit(RLIMIT_CORE, &no_core);
    code = tr_process_main(argc, argv, rows, ROWS);
    if (code >= 0)
        exit(code);
}

/* ---- shared by the cases -------------------------------------------------------------------- */

static struct tr_system *start_system(void)
{
    struct tr_system *system;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_process_start(system, rows, ROWS), 0);
    return system;
}

static const struct tr_process quick = {
    .backoff_ns_min = 1000000, .backoff_ns_max = 2000000, .restarts_max = 100000
};

static subject_sender spawn_subject(struct tr_system *system, const struct tr_process *process)
{
    tr_sender sender;

    CHECK_EQ_INT(tr_process_spawn(system, "subject", process, NULL, &sender), 0);
    return subject_of(sender);
}

static struct tr_future *ask_later(subject_sender sender, struct subject_message message)
{
    struct tr_future *future;
    int rc;

    /* A full box has room again soon: asking from a thread does not wait for it. */
    while ((rc = subject_future(sender, message, long_ns, &future)) == TR_EFULL)
        sched_yield();
    CHECK_EQ_INT(rc, 0);
    return future;
}

static int end_of(struct tr_future **future, void *value, size_t size)
{
    int rc = tr_future_wait(*future, value, size, NULL, 0);

    tr_future_drop(future);
    return rc;
}

static int ask_for(subject_sender sender, struct subject_message message, void *value, size_t size)
{
    struct tr_future *future = ask_later(sender, message);

    return end_of(&future, value, size);
}

static int get(subject_sender sender)
{
    int count = -1;

    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = GET }, &count, sizeof count), 0);
    return count;
}

static int pid_of(subject_sender sender)
{
    int pid = -1;

    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = PID }, &pid, sizeof pid), 0);
    return pid;
}

static struct tr_process_info info_of(subject_sender sender)
{
    struct tr_process_info info;

    CHECK_EQ_INT(tr_process_info(sender.raw, &info), 0);
    return info;
}

/* sent = handled + dead + queued, and nothing is queued. */
static void check_conservation(struct tr_system *system)
{
    struct tr_system_stats stats;

    tr_system_stats(system, &stats);
    CHECK_EQ_U64(stats.sent, stats.handled + stats.dead);
}

static void end_system(struct tr_system **system, subject_sender *sender)
{
    if (sender != NULL)
        subject_drop(sender);
    CHECK_EQ_INT(tr_system_join(*system, long_ns), 0);
    check_conservation(*system);
    tr_system_destroy(system);
}

static unsigned count_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(directory != NULL);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count - 3; /* two dots and itself */
}

/* Processes whose parent this is, and how many of them are zombies. */
static unsigned count_children(int parent, unsigned *ret_zombies)
{
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    unsigned count = 0;

    CHECK(directory != NULL);
    *ret_zombies = 0;
    while ((entry = readdir(directory)) != NULL) {
        char path[300], text[500], *end;
        FILE *file;
        char state;
        int ppid;

        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue;
        end = fgets(text, sizeof text, file) == NULL ? NULL : strrchr(text, ')');
        fclose(file);
        if (end == NULL || sscanf(end, ") %c %d", &state, &ppid) != 2 || ppid != parent)
            continue;
        count++;
        *ret_zombies += state == 'Z';
    }
    closedir(directory);
    return count;
}

static void wait_for_end(int pidfd)
{
    struct pollfd wait = { .fd = pidfd, .events = POLLIN };

    CHECK_EQ_INT(poll(&wait, 1, 60000), 1);
    close(pidfd);
}

/* ---- a child that is well -------------------------------------------------------------------- */

TEST(process, tell_and_ask_reach_an_actor_in_another_process)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);

    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = ADD, .number = 3 }), 0);
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = ADD, .number = 4 }), 0);
    CHECK_EQ_INT(get(sender), 7);
    CHECK(pid_of(sender) != getpid());
    CHECK_EQ_INT(info_of(sender).pid, pid_of(sender));
    CHECK_EQ_INT(info_of(sender).restarts, 0);
    CHECK_EQ_INT(info_of(sender).last_end, TR_PROCESS_RUNNING);
    end_system(&system, &sender);
}

TEST(process, row_gives_the_first_state)
{
    struct tr_system *system = start_system();
    tr_sender raw;
    subject_sender sender;

    CHECK_EQ_INT(tr_process_spawn(system, "ready-made", NULL, NULL, &raw), 0);
    sender = subject_of(raw);
    CHECK_EQ_INT(get(sender), 1000);
    end_system(&system, &sender);
}

TEST(process, queued_messages_are_handled_in_order)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    struct range range;

    for (int i = 0; i < 5000; i++)
        CHECK_EQ_INT(subject_tell_wait(
                         sender, (struct subject_message){ .kind = APPEND, .number = i }, long_ns),
            0);
    CHECK_EQ_INT(
        ask_for(sender, (struct subject_message){ .kind = RANGE }, &range, sizeof range), 0);
    CHECK_EQ_INT(range.first, 0);
    CHECK_EQ_INT(range.last, 4999);
    CHECK_EQ_INT(range.count, 5000);
    end_system(&system, &sender);
}

TEST(process, natural_shutdown_drains_and_runs_the_stop_hook)
{
    char path[] = "/tmp/troupe-process-XXXXXX", text[50] = "";
    struct tr_process process = { .argument = path };
    struct tr_system *system = start_system();
    subject_sender sender;
    unsigned zombies;
    FILE *file;
    int helper, fd;

    fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    sender = spawn_subject(system, &process);
    memset(path + 5, '?', 6); /* it has a copy */
    for (int i = 0; i < 1000; i++)
        CHECK_EQ_INT(subject_tell_wait(
                         sender, (struct subject_message){ .kind = ADD, .number = 1 }, long_ns),
            0);
    helper = info_of(sender).helper_pid;
    memcpy(path + 5, "troupe", 6);
    subject_drop(&sender);
    CHECK_EQ_INT(tr_system_join(system, long_ns), 0);
    /* It has exited and was reaped: the join did not return before. */
    CHECK_EQ_INT(count_children(helper, &zombies), 0);
    check_conservation(system);
    file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fgets(text, sizeof text, file) != NULL);
    fclose(file);
    unlink(path);
    CHECK_EQ_STR(text, "0 1000"); /* TR_WHY_DONE, all handled */
    tr_system_destroy(&system);
}

TEST(process, child_inherits_its_socket_and_nothing_else)
{
    char text[2000];
    const char *at = text;
    subject_sender sender;
    struct tr_system *system;
    unsigned seen = 0, sockets = 0;

    /* Left open without close-on-exec, as careless programs do. */
    CHECK(open("/dev/zero", O_RDONLY) >= 0);
    CHECK(dup2(open("/dev/zero", O_RDONLY), 70) == 70);
    system = start_system();
    CHECK(dup2(open("/dev/zero", O_RDONLY), 71) == 71);
    sender = spawn_subject(system, NULL);
    CHECK_EQ_INT(
        ask_for(sender, (struct subject_message){ .kind = DESCRIPTORS }, text, sizeof text), 0);
    while (*at != '\0') {
        char target[200];
        int fd;

        CHECK_EQ_INT(sscanf(at, "%d %199s", &fd, target), 2);
        at = strchr(at, '\n') + 1;
        seen |= fd < 4 ? 1u << fd : 0;
        if (fd == 0)
            CHECK_EQ_STR(target, "/dev/null");
        sockets += strncmp(target, "socket:", 7) == 0;
        /* Those it has made itself. */
        if (fd > 3)
            CHECK_MSG(strncmp(target, "anon_inode:", 11) == 0, "descriptor %d is %s", fd, target);
    }
    CHECK_EQ_INT(seen, 15);
    CHECK_EQ_INT(sockets, 1);
    end_system(&system, &sender);
}

TEST(process, actor_in_the_child_sees_tells_as_tells)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    int asked = -1;

    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = ADD, .number = 1 }), 0);
    CHECK_EQ_INT(
        ask_for(sender, (struct subject_message){ .kind = IS_ASKED }, &asked, sizeof asked), 0);
    CHECK_EQ_INT(asked, 0);
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = SELF, .number = 9 }), 0);
    while (get(sender) != 10) { /* its own message is behind those that were there */
    }
    end_system(&system, &sender);
}

TEST(process, actor_in_the_child_may_stash_and_answer_later)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    struct tr_future *kept, *first, *second;
    int value;

    kept = ask_later(sender, (struct subject_message){ .kind = KEEP });
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = KEEP, .number = 5 }), 0);
    CHECK_EQ_INT(get(sender), 0);
    CHECK(!tr_future_is_ended(kept));
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = UNKEEP }), 0);
    CHECK_EQ_INT(end_of(&kept, &value, sizeof value), 0);
    CHECK_EQ_INT(value, 0); /* in order: the tell came after it */
    CHECK_EQ_INT(get(sender), 5);

    first = ask_later(sender, (struct subject_message){ .kind = LATER });
    second = ask_later(sender, (struct subject_message){ .kind = LATER });
    CHECK_EQ_INT(get(sender), 5);
    CHECK_EQ_INT(info_of(sender).asks, 2);
    CHECK(!tr_future_is_ended(first));
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = RELEASE }), 0);
    CHECK_EQ_INT(end_of(&first, &value, sizeof value), 0);
    CHECK_EQ_INT(value, 0);
    CHECK_EQ_INT(end_of(&second, &value, sizeof value), 0);
    CHECK_EQ_INT(value, 1);
    CHECK_EQ_INT(info_of(sender).asks, 0);
    end_system(&system, &sender);
}

TEST(process, answers_in_two_stages_travel)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    struct tr_future *future = ask_later(sender, (struct subject_message){ .kind = ACCEPT });
    int value;

    CHECK_EQ_INT(get(sender), 0);
    CHECK(tr_future_is_accepted(future));
    CHECK(!tr_future_is_ended(future));
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = RELEASE }), 0);
    CHECK_EQ_INT(end_of(&future, &value, sizeof value), 0);
    end_system(&system, &sender);
}

TEST(process, control_messages_reach_a_child_that_holds)
{
    struct tr_system *system = start_system();
    /* One ahead: the box is where the others wait. */
    subject_sender sender = spawn_subject(system, &(struct tr_process){ .ahead_max = 1 });
    struct subject_message open = { .kind = OPEN };
    struct tr_future *waiting[3];
    int value;

    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = HOLD }, NULL, 0), 0);
    for (int i = 0; i < 3; i++)
        waiting[i] = ask_later(sender, (struct subject_message){ .kind = GET });
    CHECK_EQ_INT(tr_tell_with(sender.raw, &open, sizeof open,
                     &(struct tr_send_options){ .lane = TR_CONTROL }),
        0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(end_of(&waiting[i], &value, sizeof value), 0);
    end_system(&system, &sender);
}

TEST(process, answer_that_is_never_given_is_dropped)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);

    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = DROP }, NULL, 0), TR_EDROPPED);
    end_system(&system, &sender);
}

TEST(process, asks_open_at_the_natural_end_are_answered)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    struct tr_future *future = ask_later(sender, (struct subject_message){ .kind = LATER });

    subject_drop(&sender);
    CHECK_EQ_INT(end_of(&future, NULL, 0), TR_EDROPPED);
    end_system(&system, NULL);
}

TEST(process, deadline_travels_with_the_message)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    uint64_t left = 1;

    CHECK_EQ_INT(subject_ask_wait(sender, (struct subject_message){ .kind = DEADLINE }, &left,
                     sizeof left, long_ns),
        0);
    CHECK(left > 0 && left <= long_ns);
    CHECK_EQ_INT(subject_ask_wait(
                     sender, (struct subject_message){ .kind = DEADLINE }, &left, sizeof left, 0),
        0);
    CHECK_EQ_U64(left, 0);
    end_system(&system, &sender);
}

TEST(process, deadline_ends_an_ask_and_not_the_child)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    int pid = pid_of(sender);

    for (int i = 0; i < 20; i++)
        CHECK_EQ_INT(
            subject_ask_wait(sender, (struct subject_message){ .kind = LATER }, NULL, 0, 5 * ms),
            TR_ETIMEOUT);
    CHECK_EQ_INT(pid_of(sender), pid);
    CHECK_EQ_INT(info_of(sender).restarts, 0);
    end_system(&system, &sender);
}

TEST(process, asks_past_the_limit_get_full_until_their_askers_give_up)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &(struct tr_process){ .asks_max = 4 });
    struct tr_future *futures[5];
    int pid = pid_of(sender);

    for (int i = 0; i < 4; i++)
        futures[i] = ask_later(sender, (struct subject_message){ .kind = LATER });
    futures[4] = ask_later(sender, (struct subject_message){ .kind = GET });
    CHECK_EQ_INT(end_of(&futures[4], NULL, 0), TR_EFULL);
    for (int i = 0; i < 4; i++)
        tr_future_drop(&futures[i]);
    CHECK_EQ_INT(pid_of(sender), pid);
    /* The child answers those that were given up: late, but no garbage. */
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = RELEASE }), 0);
    CHECK_EQ_INT(pid_of(sender), pid);
    end_system(&system, &sender);
}

TEST(process, box_bounds_what_waits_for_a_child)
{
    struct tr_system *system = start_system();
    struct tr_process process = { .ahead_max = 2, .hang_ns = long_ns };
    struct tr_spawn_options options = { .box = { .capacity = 4, .full = TR_FULL_FAIL } };
    unsigned accepted = 0;
    subject_sender sender;
    tr_sender raw;

    CHECK_EQ_INT(tr_process_spawn(system, "subject", &process, &options, &raw), 0);
    sender = subject_of(raw);
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = SPIN }), 0);
    for (int i = 0; i < 1000; i++)
        accepted += subject_tell(sender, (struct subject_message){ .kind = ADD }) == 0;
    CHECK(accepted >= 3 && accepted <= 5);
    tr_system_destroy(&system); /* kills it */
}

TEST(process, codec_carries_messages_that_own_memory)
{
    struct tr_system *system = start_system();
    char text[100] = "", *long_text;
    words_sender sender;
    tr_sender raw;

    CHECK_EQ_INT(tr_process_spawn(system, "words", &quick, NULL, &raw), 0);
    sender = words_of(raw);
    CHECK_EQ_INT(words_ask_wait(sender, (struct words_message){ strdup("hello there") }, text,
                     sizeof text, long_ns),
        0);
    CHECK_EQ_STR(text, "hello there");
    CHECK_EQ_INT(words_drops, 1);

    /* Too large: refused here, and the memory of the message is freed. */
    long_text = malloc(2000);
    memset(long_text, 'x', 1999);
    long_text[1999] = '\0';
    CHECK_EQ_INT(
        words_ask_wait(sender, (struct words_message){ long_text }, NULL, 0, long_ns), TR_ETOOBIG);
    /* Its value is too large there. */
    long_text = malloc(900);
    memset(long_text, 'x', 899);
    long_text[899] = '\0';
    CHECK_EQ_INT(
        words_ask_wait(sender, (struct words_message){ long_text }, NULL, 0, long_ns), TR_ETOOBIG);
    /* Not understood there: this one is refused, the child goes on. */
    CHECK_EQ_INT(
        words_ask_wait(sender, (struct words_message){ strdup("?") }, NULL, 0, long_ns), TR_EPROTO);
    /* A value that is not understood here: the child is not to be trusted. */
    CHECK_EQ_INT(
        words_ask_wait(sender, (struct words_message){ strdup("!") }, NULL, 0, long_ns), TR_EPROTO);
    CHECK_EQ_INT(words_ask_wait(
                     sender, (struct words_message){ strdup("again") }, text, sizeof text, long_ns),
        0);
    CHECK_EQ_STR(text, "again");
    CHECK_EQ_INT(words_drops, 6);
    words_drop(&sender);
    CHECK_EQ_INT(tr_system_join(system, long_ns), 0);
    check_conservation(system);
    tr_system_destroy(&system);
}

TEST(process, large_values_and_many_of_them_travel)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    static unsigned char value[TR_VALUE_SIZE_MAX];
    struct tr_future *futures[50];

    for (int i = 0; i < 50; i++)
        futures[i] = ask_later(sender,
            (struct subject_message){ .kind = BIG, .size = TR_VALUE_SIZE_MAX - (uint32_t)i });
    for (int i = 0; i < 50; i++) {
        size_t size;

        CHECK_EQ_INT(tr_future_wait(futures[i], value, sizeof value, &size, long_ns), 0);
        CHECK_EQ_U64(size, TR_VALUE_SIZE_MAX - (size_t)i);
        CHECK_EQ_INT(value[size - 1], 7);
        tr_future_drop(&futures[i]);
    }
    end_system(&system, &sender);
}

TEST(process, child_may_have_process_actors_of_its_own)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    int pid = 0;

    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = NEST }, &pid, sizeof pid), 0);
    CHECK(pid > 0 && pid != pid_of(sender) && pid != getpid());
    end_system(&system, &sender);
}

TEST(process, two_systems_have_a_helper_each)
{
    struct tr_system *one = start_system(), *two = start_system();
    subject_sender a = spawn_subject(one, NULL), b = spawn_subject(two, NULL);

    CHECK(pid_of(a) != pid_of(b));
    CHECK(info_of(a).helper_pid != info_of(b).helper_pid);
    end_system(&one, &a);
    CHECK_EQ_INT(get(b), 0);
    end_system(&two, &b);
}

TEST(process, driven_system_has_process_actors_too)
{
    struct tr_system *system;
    subject_sender sender;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .driven = true, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_process_start(system, rows, ROWS), 0);
    sender = spawn_subject(system, &quick);
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = ADD, .number = 3 }), 0);
    CHECK_EQ_INT(get(sender), 3);
    CHECK_EQ_INT(
        ask_for(sender, (struct subject_message){ .kind = SIGNAL, .number = SIGSEGV }, NULL, 0),
        TR_ECRASHED);
    CHECK_EQ_INT(get(sender), 0);
    end_system(&system, &sender);
}

/* An actor like any other, beside which the process actor is one like any other. */
struct client {
    tr_sender subject; /* owned */
    tr_reply_handle waiting;
    bool hold;
};

static enum tr_next client_handle(void *state, struct tr_context *ctx, void *message)
{
    struct client *self = state;
    const struct subject_message *m = message;
    int rc;

    if (m->kind == APPEND) { /* passed on, with the duty to answer */
        tr_forward(ctx, self->subject);
        return TR_GO;
    }
    rc = tr_ask(ctx, self->subject, m, sizeof *m, &(struct tr_ask_options){ .hold = self->hold });
    if (rc < 0)
        tr_reply(ctx, rc, NULL, 0);
    else
        self->waiting = tr_reply_take(ctx);
    return TR_GO;
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *self = state;

    (void)ctx;
    CHECK_EQ_INT(event->kind, TR_EVENT_REPLY);
    tr_reply_send(&self->waiting, event->status, event->value, event->size);
    return TR_GO;
}

static void client_finish(void *state)
{
    struct client *self = state;

    tr_sender_drop(&self->subject);
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = sizeof(struct subject_message),
    .state_size = sizeof(struct client),
    .handle = client_handle,
    .event = client_event,
    .finish = client_finish,
};

static void check_client(bool hold)
{
    struct tr_system *system = start_system();
    subject_sender subject = spawn_subject(system, &quick), sender;
    struct client client = { .subject = subject.raw, .hold = hold };
    struct tr_future *forwarded;
    tr_sender raw;

    CHECK_EQ_INT(tr_spawn(system, &client_type, &client, NULL, &raw), 0);
    sender = subject_of(raw);
    CHECK(pid_of(sender) != getpid());
    CHECK_EQ_INT(
        ask_for(sender, (struct subject_message){ .kind = SIGNAL, .number = SIGKILL }, NULL, 0),
        TR_ECRASHED);
    CHECK_EQ_INT(get(sender), 0);
    forwarded = ask_later(sender, (struct subject_message){ .kind = APPEND });
    CHECK_EQ_INT(end_of(&forwarded, NULL, 0), TR_EDROPPED);
    CHECK_EQ_INT(get(sender), 1);
    end_system(&system, &sender); /* and the client's sender with it: the whole chain ends */
}

TEST(process, actors_ask_and_forward_like_to_any_other)
{
    check_client(false);
}

TEST(process, actors_hold_for_it_like_for_any_other)
{
    check_client(true);
}

TEST(process, many_at_once)
{
    struct tr_system *system = start_system();
    subject_sender sender[40];
    struct tr_future *futures[40];
    int count;

    for (int i = 0; i < 40; i++)
        sender[i] = spawn_subject(system, &quick);
    for (int i = 0; i < 40; i++) {
        CHECK_EQ_INT(
            subject_tell(sender[i], (struct subject_message){ .kind = ADD, .number = i }), 0);
        futures[i] = ask_later(sender[i], (struct subject_message){ .kind = GET });
    }
    for (int i = 0; i < 40; i++) {
        CHECK_EQ_INT(end_of(&futures[i], &count, sizeof count), 0);
        CHECK_EQ_INT(count, i);
        subject_drop(&sender[i]);
    }
    end_system(&system, NULL);
}

TEST(process, sender_dropped_at_once_ends_it)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);

    end_system(&system, &sender);
}

/* ---- each way to end ------------------------------------------------------------------------- */

/* The message ends the child: its asker gets `status`; the next child answers, and has forgotten.
 */
static void check_crash(struct subject_message message, const struct tr_process *process,
    int status, enum tr_process_end end, int code)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, process);
    struct tr_process_info info;

    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = ADD, .number = 3 }), 0);
    CHECK_EQ_INT(get(sender), 3);
    CHECK_EQ_INT(ask_for(sender, message, NULL, 0), status);
    CHECK_EQ_INT(get(sender), 0);
    info = info_of(sender);
    CHECK_EQ_INT(info.restarts, 1);
    CHECK_EQ_INT(info.starts, 2);
    CHECK_EQ_INT(info.last_end, end);
    if (code >= 0)
        CHECK_EQ_INT(info.last_code, code);
    /* As a tell it is a dead letter, once. */
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CRASHED), 1);
    CHECK_EQ_INT(subject_tell(sender, message), 0);
    CHECK_EQ_INT(get(sender), 0);
    CHECK_EQ_INT(info_of(sender).restarts, 2);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CRASHED), 2);
    end_system(&system, &sender);
}

/* Sanitizers make an exit of what would be a signal. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CRASH_END TR_PROCESS_EXITED
#define CRASH_CODE(signal) (-1)
#else
#define CRASH_END TR_PROCESS_SIGNALED
#define CRASH_CODE(signal) (signal)
#endif

TEST(process, segmentation_fault_is_an_error_and_a_restart)
{
    check_crash((struct subject_message){ .kind = SIGNAL, .number = SIGSEGV }, &quick, TR_ECRASHED,
        CRASH_END, CRASH_CODE(SIGSEGV));
}

TEST(process, abort_is_an_error_and_a_restart)
{
    check_crash((struct subject_message){ .kind = SIGNAL, .number = SIGABRT }, &quick, TR_ECRASHED,
        TR_PROCESS_SIGNALED, SIGABRT);
}

TEST(process, kill_is_an_error_and_a_restart)
{
    check_crash((struct subject_message){ .kind = SIGNAL, .number = SIGKILL }, &quick, TR_ECRASHED,
        TR_PROCESS_SIGNALED, SIGKILL);
}

TEST(process, exit_is_an_error_and_a_restart)
{
    check_crash((struct subject_message){ .kind = EXIT, .number = 3 }, &quick, TR_ECRASHED,
        TR_PROCESS_EXITED, 3);
}

TEST(process, exit_with_success_is_an_error_too)
{
    check_crash((struct subject_message){ .kind = EXIT, .number = 0 }, &quick, TR_ECRASHED,
        TR_PROCESS_EXITED, 0);
}

TEST(process, failing_actor_is_an_error_and_a_restart)
{
    check_crash((struct subject_message){ .kind = FAIL }, &quick, TR_ECRASHED, TR_PROCESS_EXITED,
        TR_PROCESS_EXIT_FAILED);
}

TEST(process, hang_is_killed_and_a_timeout_for_askers)
{
    struct tr_process process = quick;

    process.hang_ns = 1000 * ms;
    check_crash(
        (struct subject_message){ .kind = SPIN }, &process, TR_ETIMEOUT, TR_PROCESS_HUNG, 0);
}

TEST(process, child_that_closes_its_socket_is_killed)
{
    struct tr_process process = quick;

    process.hang_ns = 1000 * ms;
    check_crash(
        (struct subject_message){ .kind = CLOSE_WIRE }, &process, TR_ETIMEOUT, TR_PROCESS_HUNG, 0);
}

TEST(process, busy_child_that_gives_signs_of_life_is_not_killed)
{
    struct tr_system *system = start_system();
    struct tr_process process = { .hang_ns = 600 * ms };
    subject_sender sender = spawn_subject(system, &process);
    struct tr_future *future;
    int pid = pid_of(sender), value;

    /* It owes an answer for twice hang_ns; that time is the ask's own, so nothing sleeps. */
    future = ask_later(sender, (struct subject_message){ .kind = LATER });
    CHECK_EQ_INT(
        subject_ask_wait(sender, (struct subject_message){ .kind = LATER }, NULL, 0, 1300 * ms),
        TR_ETIMEOUT);
    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = RELEASE }), 0);
    CHECK_EQ_INT(end_of(&future, &value, sizeof value), 0);
    CHECK_EQ_INT(pid_of(sender), pid);
    CHECK_EQ_INT(info_of(sender).restarts, 0);
    end_system(&system, &sender);
}

TEST(process, asks_the_child_had_taken_end_with_it)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    struct tr_future *taken[10];

    for (int i = 0; i < 10; i++)
        taken[i] = ask_later(sender, (struct subject_message){ .kind = LATER });
    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = EXIT, .number = 1 }, NULL, 0),
        TR_ECRASHED);
    for (int i = 0; i < 10; i++)
        CHECK_EQ_INT(end_of(&taken[i], NULL, 0), TR_ECRASHED);
    CHECK_EQ_INT(get(sender), 0);
    end_system(&system, &sender);
}

TEST(process, only_the_message_that_crashed_it_is_lost)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    struct tr_dead_letter letters[5];
    struct tr_future *crash;
    struct range range;

    for (int i = 0; i < 200; i++) {
        CHECK_EQ_INT(subject_tell_wait(
                         sender, (struct subject_message){ .kind = APPEND, .number = i }, long_ns),
            0);
        if (i == 99)
            crash =
                ask_later(sender, (struct subject_message){ .kind = SIGNAL, .number = SIGSEGV });
    }
    CHECK_EQ_INT(end_of(&crash, NULL, 0), TR_ECRASHED);
    CHECK_EQ_INT(
        ask_for(sender, (struct subject_message){ .kind = RANGE }, &range, sizeof range), 0);
    /* The next child begins with the one behind it, and misses none: APPEND checks that. */
    CHECK_EQ_INT(range.first, 100);
    CHECK_EQ_INT(range.last, 199);
    CHECK_EQ_INT(range.count, 100);
    CHECK_EQ_U64(tr_dead_letters(system, letters, 5), 1);
    CHECK_EQ_INT(letters[0].reason, TR_DEAD_CRASHED);
    CHECK_EQ_STR(letters[0].message, "signal");
    CHECK_EQ_STR(letters[0].type, "subject");
    end_system(&system, &sender);
}

TEST(process, asks_behind_a_crash_are_answered_by_the_next_child)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    struct tr_future *crash, *behind[100];
    int value;

    crash = ask_later(sender, (struct subject_message){ .kind = SIGNAL, .number = SIGSEGV });
    for (int i = 0; i < 100; i++)
        behind[i] = ask_later(sender, (struct subject_message){ .kind = GET });
    CHECK_EQ_INT(end_of(&crash, NULL, 0), TR_ECRASHED);
    for (int i = 0; i < 100; i++)
        CHECK_EQ_INT(end_of(&behind[i], &value, sizeof value), 0);
    end_system(&system, &sender);
}

/* The call that took too long is known for it only when it has returned. */
TEST(process, message_over_its_time_is_lost_and_those_behind_it_are_not)
{
    for (int is_ask = 0; is_ask < 2; is_ask++) {
        struct tr_system *system = start_system();
        struct tr_future *slow = NULL, *behind[20];
        struct tr_dead_letter letters[5];
        subject_sender sender;
        tr_sender raw;
        int count = -1;

        CHECK_EQ_INT(tr_process_spawn(system, "hurried", &quick, NULL, &raw), 0);
        sender = subject_of(raw);
        CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = ADD, .number = 3 }), 0);
        CHECK_EQ_INT(get(sender), 3);
        if (is_ask)
            slow = ask_later(sender, (struct subject_message){ .kind = DAWDLE });
        else
            CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = DAWDLE }), 0);
        for (int i = 0; i < 20; i++)
            behind[i] = ask_later(sender, (struct subject_message){ .kind = GET });
        if (is_ask) {
            CHECK_EQ_INT(end_of(&slow, &count, sizeof count), 0);
            CHECK_EQ_INT(count, 3);
        }
        for (int i = 0; i < 20; i++) {
            CHECK_EQ_INT(end_of(&behind[i], &count, sizeof count), 0);
            CHECK_EQ_INT(count, 0);
        }
        CHECK_EQ_U64(tr_dead_letters(system, letters, 5), 1);
        CHECK_EQ_INT(letters[0].reason, TR_DEAD_CRASHED);
        CHECK_EQ_INT(info_of(sender).restarts, 1);
        end_system(&system, &sender);
    }
}

TEST(process, ask_with_a_deadline_ends_by_it_while_the_child_is_down)
{
    struct tr_process process = { .backoff_ns_min = long_ns, .backoff_ns_max = long_ns };
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &process);

    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = EXIT, .number = 1 }, NULL, 0),
        TR_ECRASHED);
    CHECK_EQ_INT(
        subject_ask_wait(sender, (struct subject_message){ .kind = GET }, NULL, 0, 20 * ms),
        TR_ETIMEOUT);
    CHECK_EQ_INT(info_of(sender).pid, 0);
    tr_stop(tr_sender_weaken(sender.raw)); /* not the back-off: a minute */
    end_system(&system, &sender);
}

TEST(process, without_senders_or_messages_no_child_is_started_again)
{
    struct tr_process process = { .backoff_ns_min = 100 * long_ns,
        .backoff_ns_max = 100 * long_ns };
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &process);

    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = EXIT, .number = 1 }, NULL, 0),
        TR_ECRASHED);
    end_system(&system, &sender);
}

TEST(process, what_is_queued_when_the_senders_go_is_handled_also_after_a_crash)
{
    char path[] = "/tmp/troupe-process-XXXXXX", text[50] = "";
    struct tr_process process = quick;
    struct tr_system *system = start_system();
    int fd = mkstemp(path);
    subject_sender sender;

    CHECK(fd >= 0);
    process.argument = path;
    sender = spawn_subject(system, &process);
    for (int i = 0; i < 100; i++)
        CHECK_EQ_INT(subject_tell_wait(sender,
                         i == 40 ? (struct subject_message){ .kind = EXIT, .number = 1 }
                                 : (struct subject_message){ .kind = APPEND, .number = i },
                         long_ns),
            0);
    end_system(&system, &sender);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    unlink(path);
    CHECK_EQ_STR(text, "0 59"); /* TR_WHY_DONE, and all behind the one that crashed it */
}

TEST(process, actor_that_stops_by_itself_ends_the_proxy)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    struct tr_future *behind[20];
    int rc;

    CHECK_EQ_INT(subject_tell(sender, (struct subject_message){ .kind = STOP }), 0);
    for (int i = 0; i < 20; i++) {
        rc = subject_future(sender, (struct subject_message){ .kind = GET }, 0, &behind[i]);
        CHECK(rc == 0 || rc == TR_ECLOSED);
        if (rc < 0)
            behind[i] = NULL;
    }
    for (int i = 0; i < 20; i++)
        if (behind[i] != NULL)
            CHECK_EQ_INT(end_of(&behind[i], NULL, 0), TR_ECLOSED);
    CHECK_EQ_INT(tr_sender_wait_closed(sender.raw, long_ns), 0);
    CHECK_EQ_U64(tr_dead_count(system, TR_DEAD_CRASHED), 0);
    end_system(&system, &sender);
}

TEST(process, child_that_does_not_stop_is_killed_after_its_grace)
{
    struct tr_process process = { .grace_ns = 20 * ms, .hang_ns = long_ns };
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &process);
    struct tr_future *spin;
    unsigned zombies;
    int helper;

    get(sender);
    spin = ask_later(sender, (struct subject_message){ .kind = SPIN });
    while (info_of(sender).ahead == 0) { /* it is the child's now */
    }
    helper = info_of(sender).helper_pid;
    CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender.raw)), 0);
    CHECK_EQ_INT(tr_sender_wait_closed(sender.raw, long_ns), 0);
    CHECK(end_of(&spin, NULL, 0) < 0);
    CHECK_EQ_INT(count_children(helper, &zombies), 0);
    end_system(&system, &sender);
}

TEST(process, child_that_is_not_up_yet_is_stopped_too)
{
    struct tr_system *system = start_system();
    subject_sender sender =
        spawn_subject(system, &(struct tr_process){ .argument = "spin", .start_ns = long_ns });
    struct tr_future *future = ask_later(sender, (struct subject_message){ .kind = GET });

    CHECK_EQ_INT(tr_stop(tr_sender_weaken(sender.raw)), 0);
    CHECK_EQ_INT(end_of(&future, NULL, 0), TR_ECLOSED);
    end_system(&system, &sender);
}

/* ---- starting -------------------------------------------------------------------------------- */

/* A child that never comes up: restarts_max starts, then the proxy fails and its askers know. */
static void check_no_start(const char *row, const struct tr_process *process)
{
    struct tr_system *system = start_system();
    struct tr_future *futures[20];
    subject_sender sender;
    tr_sender raw;

    CHECK_EQ_INT(tr_process_spawn(system, row, process, NULL, &raw), 0);
    sender = subject_of(raw);
    for (int i = 0; i < 20; i++)
        if (subject_future(sender, (struct subject_message){ .kind = GET }, 0, &futures[i]) < 0)
            futures[i] = NULL;
    for (int i = 0; i < 20; i++)
        if (futures[i] != NULL)
            CHECK_EQ_INT(end_of(&futures[i], NULL, 0), TR_ECRASHED);
    CHECK_EQ_INT(tr_sender_wait_closed(sender.raw, long_ns), 0);
    end_system(&system, &sender);
}

TEST(process, actor_that_cannot_start_is_given_up)
{
    check_no_start("stillborn",
        &(struct tr_process){ .restarts_max = 3, .backoff_ns_min = ms, .backoff_ns_max = ms });
}

TEST(process, state_that_cannot_be_prepared_is_given_up)
{
    check_no_start("subject",
        &(struct tr_process){
            .argument = "fail", .restarts_max = 3, .backoff_ns_min = ms, .backoff_ns_max = ms });
}

TEST(process, child_that_says_nothing_is_killed_and_given_up)
{
    check_no_start("subject", &(struct tr_process){ .argument = "spin",
                                  .start_ns = 100 * ms,
                                  .restarts_max = 2,
                                  .backoff_ns_min = ms,
                                  .backoff_ns_max = ms });
}

TEST(process, want_of_descriptors_is_waited_for)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    struct rlimit before, none;

    get(sender);
    CHECK_EQ_INT(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_EQ_INT(ask_for(sender, (struct subject_message){ .kind = EXIT, .number = 1 }, NULL, 0),
        TR_ECRASHED);
    while (info_of(sender).restarts < 5)
        sched_yield();
    CHECK_EQ_INT(info_of(sender).last_end, TR_PROCESS_NO_START);
    CHECK_EQ_INT(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ_INT(get(sender), 0);
    end_system(&system, &sender);
}

TEST(process, proxy_fails_past_its_restarts)
{
    struct tr_process process = {
        .restarts_max = 2, .window_ns = long_ns, .backoff_ns_min = ms, .backoff_ns_max = ms
    };
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &process);
    struct tr_system_stats stats;

    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(
            ask_for(sender, (struct subject_message){ .kind = EXIT, .number = 1 }, NULL, 0),
            TR_ECRASHED);
    CHECK_EQ_INT(tr_sender_wait_closed(sender.raw, long_ns), 0);
    tr_system_stats(system, &stats);
    CHECK_EQ_U64(stats.crashes, 1);
    end_system(&system, &sender);
}

TEST(process, supervisor_restarts_a_proxy_that_failed)
{
    struct tr_process process = {
        .restarts_max = 1, .window_ns = long_ns, .backoff_ns_min = ms, .backoff_ns_max = ms
    };
    struct tr_system *system = start_system();
    tr_sender raw, top;
    struct tr_child child = { .name = "subject",
        .type = tr_process_type(system, "subject"),
        .state = &process,
        .ret_sender = &raw };
    struct tr_supervisor table = {
        .name = "top", .restarts_max = 100, .children = &child, .child_count = 1
    };
    struct tr_system_stats stats;
    subject_sender sender;

    CHECK_EQ_INT(tr_supervise(system, &table, "test", &top), 0);
    sender = subject_of(raw);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ_INT(
            ask_for(sender, (struct subject_message){ .kind = EXIT, .number = 1 }, NULL, 0),
            TR_ECRASHED);
        CHECK_EQ_INT(get(sender), 0);
    }
    tr_system_stats(system, &stats);
    CHECK_EQ_U64(stats.crashes, 2);
    CHECK_EQ_U64(stats.restarts, 2);
    CHECK_EQ_INT(info_of(sender).restarts, 5);
    /* Killed from outside it is one that crashed. */
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender.raw)), 0);
    CHECK_EQ_INT(get(sender), 0);
    tr_sender_drop(&top);
    end_system(&system, &sender);
}

TEST(process, killed_proxy_takes_its_child_with_it)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    int pidfd = pidfd_open(pid_of(sender), 0);
    struct tr_future *taken = ask_later(sender, (struct subject_message){ .kind = LATER });

    CHECK_EQ_INT(get(sender), 0);
    CHECK_EQ_INT(tr_kill(tr_sender_weaken(sender.raw)), 0);
    CHECK_EQ_INT(end_of(&taken, NULL, 0), TR_EDROPPED);
    wait_for_end(pidfd);
    end_system(&system, &sender);
}

TEST(process, destroyed_system_takes_all_with_it)
{
    unsigned before = count_descriptors(), zombies;
    struct tr_system *system = start_system();
    subject_sender sender[5];
    int pidfd[6];
    struct tr_future *spin;

    for (int i = 0; i < 5; i++) {
        sender[i] = spawn_subject(system, NULL);
        pidfd[i] = pidfd_open(pid_of(sender[i]), 0);
    }
    pidfd[5] = pidfd_open(info_of(sender[0]).helper_pid, 0);
    spin = ask_later(sender[0], (struct subject_message){ .kind = SPIN });
    tr_system_destroy(&system);
    CHECK(tr_future_is_ended(spin));
    tr_future_drop(&spin);
    for (int i = 0; i < 6; i++)
        wait_for_end(pidfd[i]);
    CHECK_EQ_INT(count_children(getpid(), &zombies), 0);
    CHECK_EQ_INT(count_descriptors(), before);
}

TEST(process, row_that_cannot_be_is_refused)
{
    static const struct tr_process_row no_name = { .type = &subject_type };
    static const struct tr_process_row no_type = { .name = "x" };
    static const struct tr_process_row too_large = {
        .name = "x", .type = &subject_type, .codec = { .bytes_max = 10 }
    };
    static const struct tr_process_row half = {
        .name = "x", .type = &words_type, .codec = { .encode = words_encode }
    };
    struct tr_system *system;
    tr_sender sender;
    struct tr_done *done;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &system), 0);
    CHECK_EQ_INT(tr_process_start(system, NULL, 0), TR_EINVAL);
    CHECK_EQ_INT(tr_process_start(system, &no_name, 1), TR_EINVAL);
    CHECK_EQ_INT(tr_process_start(system, &no_type, 1), TR_EINVAL);
    CHECK_EQ_INT(tr_process_start(system, &too_large, 1), TR_EINVAL);
    CHECK_EQ_INT(tr_process_start(system, &half, 1), TR_EINVAL);
    CHECK_EQ_INT(tr_process_spawn(system, "subject", NULL, NULL, &sender), TR_ENOENT);
    CHECK_EQ_INT(tr_process_start(system, rows, ROWS), 0);
    CHECK_EQ_INT(tr_process_start(system, rows, ROWS), TR_EEXIST);
    CHECK_EQ_INT(tr_process_spawn(system, "nobody", NULL, NULL, &sender), TR_ENOENT);
    CHECK_EQ_INT(tr_process_spawn(system, "subject", NULL,
                     &(struct tr_spawn_options){ .ret_done = &done }, &sender),
        TR_EINVAL);
    tr_system_destroy(&system);
}

TEST_ABORTS(process, in_a_simulation_asserts, "could not be replayed")
{
    struct tr_sim *sim;

    CHECK_EQ_INT(tr_sim_create(&(struct tr_sim_options){ .seed = 1 }, &sim), 0);
    tr_process_start(tr_sim_system(sim), rows, ROWS);
}

TEST_ABORTS(process, program_without_process_main_asserts, "main() begins with tr_process_main()")
{
    setenv("TROUPE_PROCESS", "1",
        1); /* the argument of such a program when it is executed as a helper */
    start_system();
}

/* ---- garbage on the wire --------------------------------------------------------------------- */

/* A frame as the child could send it, or nearly. */
static struct subject_message write_frame(enum kind kind, struct tr__wire_frame frame)
{
    struct subject_message message = { .kind = kind, .size = WIRE_HEADER };

    tr__wire_header(message.bytes, &frame);
    return message;
}

TEST_LONG(process, garbage_is_an_error_for_askers_and_a_restart, 60)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    struct subject_message garbage[40] = { 0 };
    unsigned count = 0;

#define FRAME(...) (garbage[count++] = write_frame(WRITE, (struct tr__wire_frame){ __VA_ARGS__ }))
    FRAME(.kind = 0);
    FRAME(.kind = WIRE_KINDS);
    FRAME(.kind = (enum tr__wire_kind)200);
    FRAME(.kind = WIRE_TELL, .id = 1);
    FRAME(.kind = WIRE_PING, .id = 1);
    FRAME(.kind = WIRE_STOP);
    FRAME(.kind = WIRE_HELLO, .id = WIRE_VERSION, .argument = sizeof(struct subject_message));
    FRAME(.kind = WIRE_BEGIN, .id = 0);
    FRAME(.kind = WIRE_BEGIN, .id = UINT64_MAX);
    FRAME(.kind = WIRE_BEGIN, .id = UINT64_C(1) << 16 | 5);
    FRAME(.kind = WIRE_DONE, .id = 12345);
    FRAME(.kind = WIRE_REPLY, .id = 12345);
    FRAME(.kind = WIRE_ACCEPT, .id = 12345);
    FRAME(.kind = WIRE_PONG, .id = 1);
    FRAME(.kind = WIRE_BYE, .id = 1);
    FRAME(.kind = WIRE_REPLY, .id = 1, .argument = 5);
    FRAME(.kind = WIRE_BEGIN, .id = 1, .lane = 1);
    FRAME(.kind = WIRE_REPLY, .size = TR_CODEC_BYTES_DEFAULT + 1); /* oversize: only announced */
    FRAME(.kind = WIRE_REPLY, .size = UINT32_MAX - 20);
#undef FRAME
    garbage[count] = write_frame(WRITE, (struct tr__wire_frame){ .kind = WIRE_BEGIN, .id = 1 });
    garbage[count++].bytes[6] = 1; /* not zero */
    garbage[count++] = (struct subject_message){ .kind = WRITE, .size = 24 };
    garbage[count++] = (struct subject_message){ .kind = WRITE, .size = 4 }; /* too small a size */
    garbage[count] = (struct subject_message){ .kind = WRITE, .size = 100 };
    memset(garbage[count++].bytes, 0xff, 100);
    garbage[count] = (struct subject_message){ .kind = WRITE, .size = 100 };
    memcpy(garbage[count++].bytes, "HTTP/1.1 400 Bad Request\r\n\r\n", 29);
    /* The same again, and the child does not return to its port: it must be killed for it. */
    garbage[count] = garbage[0];
    garbage[count++].kind = WRITE_SPIN;
    for (unsigned i = 0; i < count; i++) {
        struct tr_future *taken = ask_later(sender, (struct subject_message){ .kind = LATER });
        struct tr_process_info info;

        CHECK_MSG(ask_for(sender, garbage[i], NULL, 0) == TR_EPROTO, "garbage %u", i);
        CHECK_EQ_INT(end_of(&taken, NULL, 0), TR_EPROTO);
        CHECK_EQ_INT(get(sender), 0);
        info = info_of(sender);
        CHECK_EQ_INT(info.restarts, (int)i + 1);
        CHECK_EQ_INT(info.last_end, TR_PROCESS_GARBAGE);
    }
    end_system(&system, &sender);
}

/* Answers to what was asked, but not as the protocol has it: ids are serial << 16 | slot. */
TEST(process, answering_twice_or_unbegun_is_garbage)
{
    static const enum tr__wire_kind kinds[] = { WIRE_BEGIN, WIRE_DONE, WIRE_REPLY };

    for (int i = 0; i < 3; i++) {
        struct tr_system *system = start_system();
        subject_sender sender = spawn_subject(system, &quick);
        struct subject_message message = write_frame(
            WRITE, (struct tr__wire_frame){ .kind = kinds[i], .id = UINT64_C(1) << 16 });

        /* The first message is the one that writes about itself: begun a second time; or done and
         * answered before its port says so. */
        CHECK_EQ_INT(ask_for(sender, message, NULL, 0), kinds[i] == WIRE_REPLY ? 0 : TR_EPROTO);
        CHECK_EQ_INT(get(sender), 0);
        CHECK_EQ_INT(info_of(sender).last_end, TR_PROCESS_GARBAGE);
        end_system(&system, &sender);
    }
}

static int stages;

static enum tr_next count_stages(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    if (event->status != TR_ACCEPTED)
        return client_event(state, ctx, event);
    stages++;
    return TR_GO;
}

/* Each would be a message in its asker's box, which does not count them. */
TEST(process, child_that_accepts_again_and_again_is_heard_once)
{
    static const struct tr_type type = { .name = "client",
        .message_size = sizeof(struct subject_message),
        .state_size = sizeof(struct client),
        .handle = client_handle,
        .event = count_stages,
        .finish = client_finish };
    struct tr_system *system = start_system();
    subject_sender subject = spawn_subject(system, &quick), sender;
    struct client client = { .subject = subject.raw };
    struct subject_message message =
        write_frame(WRITE, (struct tr__wire_frame){ .kind = WIRE_ACCEPT, .id = UINT64_C(1) << 16 });
    tr_sender raw;

    while (message.size + WIRE_HEADER <= sizeof message.bytes) {
        memcpy(message.bytes + message.size, message.bytes, WIRE_HEADER);
        message.size += WIRE_HEADER;
    }
    CHECK_EQ_INT(tr_spawn(system, &type, &client, NULL, &raw), 0);
    sender = subject_of(raw);
    CHECK_EQ_INT(ask_for(sender, message, NULL, 0), TR_EDROPPED);
    CHECK_EQ_INT(stages, 1);
    CHECK_EQ_INT(get(sender), 0);
    end_system(&system, &sender);
}

TEST(process, frame_cut_off_by_an_exit_is_a_crash)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);

    for (uint32_t size = 1; size < WIRE_HEADER + 5; size += 3) {
        struct subject_message message = write_frame(
            WRITE_EXIT, (struct tr__wire_frame){ .kind = WIRE_REPLY, .id = 1, .size = 10 });

        message.size = size;
        CHECK_EQ_INT(ask_for(sender, message, NULL, 0), TR_ECRASHED);
        CHECK_EQ_INT(get(sender), 0);
        CHECK_EQ_INT(info_of(sender).last_end, TR_PROCESS_EXITED);
    }
    end_system(&system, &sender);
}

TEST(process, frame_that_never_ends_is_a_hang)
{
    struct tr_process process = quick;
    struct tr_system *system = start_system();
    struct subject_message message =
        write_frame(WRITE_SPIN, (struct tr__wire_frame){ .kind = WIRE_REPLY, .id = 1, .size = 10 });
    subject_sender sender;

    process.hang_ns = 1000 * ms;
    sender = spawn_subject(system, &process);
    CHECK_EQ_INT(ask_for(sender, message, NULL, 0), TR_ETIMEOUT);
    CHECK_EQ_INT(get(sender), 0);
    CHECK_EQ_INT(info_of(sender).last_end, TR_PROCESS_HUNG);
    end_system(&system, &sender);
}

/* ---- deaths from outside --------------------------------------------------------------------- */

TEST_LONG(process, kill_9_in_a_loop_leaves_nothing_behind, 120)
{
    unsigned before_all = count_descriptors(), before, zombies;
    unsigned kills = check_is_long() ? 1000 : 200, crashed = 0, answered = 0;
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    int helper;

    get(sender);
    helper = info_of(sender).helper_pid;
    before = count_descriptors();
    for (unsigned i = 0; i < kills; i++) {
        struct tr_future *futures[24];
        int pid = pid_of(sender), rc;

        /* In all states: taken by the child, being handled, on the way, in the box. */
        for (int k = 0; k < 24; k++) {
            if (k == (int)(i % 24))
                CHECK_EQ_INT(kill(pid, SIGKILL), 0);
            futures[k] =
                ask_later(sender, (struct subject_message){ .kind = k % 3 == 0 ? LATER : GET });
        }
        CHECK_EQ_INT(
            subject_tell_wait(sender, (struct subject_message){ .kind = RELEASE }, long_ns), 0);
        for (int k = 0; k < 24; k++) {
            rc = end_of(&futures[k], NULL, 0);
            CHECK(rc == 0 || rc == TR_ECRASHED);
            crashed += rc != 0;
            answered += rc == 0;
        }
    }
    pid_of(sender);
    CHECK_EQ_INT(info_of(sender).restarts, kills);
    CHECK(answered > 0);
    CHECK_EQ_INT(count_children(helper, &zombies), 1);
    CHECK_EQ_INT(zombies, 0);
    CHECK_EQ_INT(count_descriptors(), before);
    printf("%u killed: %u asks answered, %u crashed\n", kills, answered, crashed);
    end_system(&system, &sender);
    CHECK_EQ_INT(count_children(getpid(), &zombies), 0);
    CHECK_EQ_INT(count_descriptors(), before_all);
}

static void run_victim(const char *argument, const char *how, int *ret_pid, int *ret_child_pidfd,
    int *ret_helper_pidfd)
{
    char flag[] = "--victim", path[200], last[10];
    char *arguments[] = { flag, flag, path, last, NULL };
    posix_spawn_file_actions_t actions;
    int ends[2], pids[2], pid;

    snprintf(path, sizeof path, "%s", argument);
    snprintf(last, sizeof last, "%s", how);
    CHECK_EQ_INT(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    CHECK_EQ_INT(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    CHECK_EQ_INT(read(ends[0], pids, sizeof pids), sizeof pids);
    close(ends[0]);
    *ret_pid = pid;
    *ret_child_pidfd = pidfd_open(pids[0], 0);
    *ret_helper_pidfd = pidfd_open(pids[1], 0);
    CHECK(*ret_child_pidfd >= 0);
    CHECK(*ret_helper_pidfd >= 0);
}

TEST(process, child_of_a_killed_parent_stops_by_itself)
{
    char path[] = "/tmp/troupe-process-XXXXXX", text[50] = "";
    int pid, child, helper, fd = mkstemp(path);
    FILE *file;

    CHECK(fd >= 0);
    close(fd);
    run_victim(path, "idle", &pid, &child, &helper);
    CHECK_EQ_INT(kill(pid, SIGKILL), 0);
    wait_for_end(child);
    wait_for_end(helper);
    waitpid(pid, NULL, 0);
    file = fopen(path, "r");
    CHECK(file != NULL && fgets(text, sizeof text, file) != NULL);
    fclose(file);
    unlink(path);
    CHECK_EQ_STR(text, "1 0"); /* TR_WHY_STOPPED: its stop hook ran */
}

TEST(process, hung_child_of_a_killed_parent_is_killed)
{
    int pid, child, helper;

    run_victim("", "spin", &pid, &child, &helper);
    CHECK_EQ_INT(kill(pid, SIGKILL), 0);
    wait_for_end(child);
    wait_for_end(helper);
    waitpid(pid, NULL, 0);
}

TEST(process, children_of_a_killed_parent_and_helper_are_killed)
{
    int pid, child, helper;

    run_victim("", "spin", &pid, &child, &helper);
    CHECK_EQ_INT(pidfd_send_signal(helper, SIGKILL, NULL, 0), 0);
    CHECK_EQ_INT(kill(pid, SIGKILL), 0);
    wait_for_end(child);
    wait_for_end(helper);
    waitpid(pid, NULL, 0);
}

/* A terminal or a service manager signals all processes of a program. */
TEST(process, signals_that_end_programs_are_left_to_the_parent)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, NULL);
    int pid = pid_of(sender);
    static const int signals[] = { SIGTERM, SIGINT, SIGHUP };

    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(kill(pid, signals[i]), 0);
        CHECK_EQ_INT(kill(info_of(sender).helper_pid, signals[i]), 0);
    }
    CHECK_EQ_INT(pid_of(sender), pid);
    end_system(&system, &sender);
}

TEST(process, helper_that_stands_still_strands_nobody)
{
    struct tr_system *system = start_system();
    subject_sender sender = spawn_subject(system, &quick);
    struct tr_future *taken = ask_later(sender, (struct subject_message){ .kind = LATER });
    int pid = pid_of(sender), helper = info_of(sender).helper_pid;

    CHECK_EQ_INT(kill(helper, SIGSTOP), 0);
    CHECK_EQ_INT(kill(pid, SIGKILL), 0);
    CHECK_EQ_INT(end_of(&taken, NULL, 0), TR_ECRASHED); /* its pidfd says it */
    CHECK_EQ_INT(info_of(sender).last_end, TR_PROCESS_EXITED);
    CHECK_EQ_INT(info_of(sender).last_code, -1); /* how, only the helper knows */
    CHECK_EQ_INT(kill(helper, SIGCONT), 0);
    CHECK_EQ_INT(get(sender), 0);
    end_system(&system, &sender);
}

TEST(process, dead_helper_ends_all_children_and_fails_the_proxies)
{
    struct tr_system *system = start_system();
    subject_sender sender[3];
    struct tr_future *taken[3];
    int pidfd[3], rc;

    for (int i = 0; i < 3; i++) {
        sender[i] = spawn_subject(system, &quick);
        pidfd[i] = pidfd_open(pid_of(sender[i]), 0);
        taken[i] = ask_later(sender[i], (struct subject_message){ .kind = LATER });
        get(sender[i]);
    }
    CHECK_EQ_INT(kill(info_of(sender[0]).helper_pid, SIGKILL), 0);
    for (int i = 0; i < 3; i++) {
        wait_for_end(pidfd[i]);
        CHECK_EQ_INT(end_of(&taken[i], NULL, 0), TR_ECRASHED);
        CHECK_EQ_INT(tr_sender_wait_closed(sender[i].raw, long_ns), 0);
        rc = subject_tell(sender[i], (struct subject_message){ .kind = ADD });
        CHECK_EQ_INT(rc, TR_ECLOSED);
        subject_drop(&sender[i]);
    }
    /* Nor does a new one start. */
    sender[0] = spawn_subject(system, NULL);
    CHECK_EQ_INT(tr_sender_wait_closed(sender[0].raw, long_ns), 0);
    end_system(&system, &sender[0]);
}

/* ---- every fallible call --------------------------------------------------------------------- */

/* Start, spawn, ask and end, with the n-th fallible call failing. Each fault is an error or a
 * restart; no asker is left waiting, and nothing leaks. Returns false when n was past the last
 * call. */
static bool run_with_fault(uint64_t n)
{
    unsigned before = count_descriptors(), zombies;
    struct tr_system *system;
    tr_sender raw;
    uint64_t calls;
    int rc;

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 1, .quiet = true }, &system), 0);
    base_fault_countdown(n, 1);
    rc = tr_process_start(system, rows, ROWS);
    if (rc == 0)
        rc = tr_process_spawn(system, "subject", &quick, NULL, &raw);
    if (rc == 0) {
        int count = 0;

        rc = tr_ask_wait(raw, &(struct subject_message){ .kind = GET },
            sizeof(struct subject_message), &count, sizeof count, long_ns);
        CHECK(rc == 0 || rc == TR_ECRASHED || rc == TR_ECLOSED || rc == TR_ENOMEM);
        tr_sender_drop(&raw);
        CHECK_EQ_INT(tr_system_join(system, long_ns), 0);
        check_conservation(system);
    } else {
        CHECK(rc == TR_ENOMEM || rc == TR_ELIMIT || rc == TR_EIO);
    }
    calls = base_fault_countdown(0, 0);
    tr_system_destroy(&system);
    CHECK_EQ_INT(count_children(getpid(), &zombies), 0);
    CHECK_EQ_INT(count_descriptors(), before);
    return calls >= n;
}

TEST_LONG(process, every_fallible_call_may_fail, 60)
{
    uint64_t n = 1;

    while (run_with_fault(n))
        n++;
    printf("%llu calls\n", (unsigned long long)n);
    CHECK(n > 10);
}
