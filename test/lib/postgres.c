/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper speaks one byte at a time: a command comes, it is carried out, an answer goes back.
 * The server's stderr is a pipe to the keeper. Every process of the server has it, so its end means
 * that none is left; and the line that says "ready" means that connections are taken. */
#include "postgres.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define BIN "/usr/lib/postgresql/15/bin/"

enum { PATH_SIZE = 256, WORDS_SIZE = 600 };

struct answer {
    pid_t pid; /* of the server; 0: it does not run; -1: not possible on this machine */
};

struct keeper {
    char directory[128];
    char data[PATH_SIZE];
    int fd;
    int log_fd; /* from the server, -1 when none of its processes is left */
    int file;   /* the log is kept there */
    uid_t uid;
    gid_t gid;
    pid_t server;
    char tail[64]; /* of the log, to find a line that came in two reads */
};

/* ---- the keeper ------------------------------------------------------------------------------ */

static void become_user(const struct keeper *keeper)
{
    if (geteuid() != 0)
        return;
    if (setgroups(0, NULL) != 0 || setgid(keeper->gid) != 0 || setuid(keeper->uid) != 0)
        _exit(126);
}

/* A child with the log as its output. */
static pid_t start_program(struct keeper *keeper, char *const *arguments, int log)
{
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    become_user(keeper);
    prctl(PR_SET_PDEATHSIG, SIGQUIT); /* of the keeper: stop at once */
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    setenv("LC_ALL", "C", 1);
    if (chdir(keeper->directory) == 0)
        execv(arguments[0], arguments);
    _exit(127);
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

static void wait_for_server(struct keeper *keeper)
{
    while (keeper->server > 0 && waitpid(keeper->server, NULL, 0) < 0 && errno == EINTR)
        continue;
    keeper->server = 0;
}

_Noreturn static void clean_up(struct keeper *keeper)
{
    char small[PATH_SIZE];

    if (keeper->server > 0)
        kill(keeper->server, SIGQUIT);
    wait_for_server(keeper);
    snprintf(small, sizeof(small), "%s/small", keeper->directory);
    umount2(small, MNT_DETACH);
    nftw(keeper->directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    _exit(0);
}

/* Copies log to the file. True when `wanted` has come by; false when the log has ended. NULL waits
 * for the end. */
static bool follow_log(struct keeper *keeper, const char *wanted)
{
    char text[4096 + sizeof(keeper->tail)];
    struct pollfd wait[2] = { { .fd = keeper->log_fd, .events = POLLIN }, { .fd = keeper->fd } };

    while (keeper->log_fd >= 0) {
        size_t before = strlen(keeper->tail);
        ssize_t size;

        if (poll(wait, 2, -1) < 0)
            continue;
        if ((wait[1].revents & (POLLHUP | POLLERR)) != 0)
            clean_up(keeper); /* the case is gone */
        memcpy(text, keeper->tail, before);
        size = read(keeper->log_fd, text + before, sizeof(text) - before - 1);
        if (size <= 0) {
            close(keeper->log_fd);
            keeper->log_fd = -1;
            return false;
        }
        if (write(keeper->file, text + before, (size_t)size) < 0)
            keeper->tail[0] = '\0'; /* nothing to be done about a log that cannot be kept */
        text[before + (size_t)size] = '\0';
        if (wanted != NULL && strstr(text, wanted) != NULL) {
            keeper->tail[0] = '\0';
            return true;
        }
        before += (size_t)size;
        size = before < sizeof(keeper->tail) ? (ssize_t)before : (ssize_t)sizeof(keeper->tail) - 1;
        memcpy(keeper->tail, text + before - (size_t)size, (size_t)size);
        keeper->tail[size] = '\0';
    }
    return false;
}

static pid_t start_server(struct keeper *keeper)
{
    char program[] = BIN "postgres";
    char option[] = "-D";
    char *arguments[] = { program, option, keeper->data, NULL };
    int log[2];

    if (keeper->server > 0 || pipe2(log, O_CLOEXEC) != 0)
        return 0;
    keeper->tail[0] = '\0';
    keeper->log_fd = log[0];
    keeper->server = start_program(keeper, arguments, log[1]);
    close(log[1]);
    if (follow_log(keeper, "database system is ready to accept"))
        return keeper->server;
    wait_for_server(keeper);
    return 0;
}

static void end_server(struct keeper *keeper, int signal_number)
{
    if (keeper->server > 0)
        kill(keeper->server, signal_number);
    wait_for_server(keeper);
    follow_log(keeper, NULL);
}

static bool run_program(struct keeper *keeper, char *const *arguments)
{
    pid_t pid = start_program(keeper, arguments, keeper->file);
    int status = -1;

    waitpid(pid, &status, 0);
    return status == 0;
}

static bool init_database(struct keeper *keeper, char *data)
{
    char program[] = BIN "initdb";
    char words[][64] = { "--auth=trust", "--username=troupe", "--no-sync", "--encoding=UTF8",
        "--locale=C", "--wal-segsize=1", "-D" };
    char *arguments[] = { program, words[0], words[1], words[2], words[3], words[4], words[5],
        words[6], data, NULL };

    return run_program(keeper, arguments);
}

/* initdb takes half a second of CPU, a copy of what it made a tenth of that. Where programs run
 * together (tools/run-tests.py) the first one leaves a database behind for the others; a program that comes
 * while it is made waits for the lock. */
static bool copy_database(struct keeper *keeper, const char *cache)
{
    char program[] = "/bin/cp", option[] = "-r";
    char model[PATH_SIZE], made[PATH_SIZE], lock[PATH_SIZE];
    char *arguments[] = { program, option, model, keeper->data, NULL };
    bool is_there;
    int fd;

    snprintf(model, sizeof(model), "%s/postgres", cache);
    snprintf(made, sizeof(made), "%s/postgres.new", cache);
    snprintf(lock, sizeof(lock), "%s/postgres.lock", cache);
    fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) != 0)
        return false;
    is_there = access(model, F_OK) == 0;
    if (!is_there && mkdir(made, 0700) == 0)
        is_there = (geteuid() != 0 || chown(made, keeper->uid, keeper->gid) == 0) &&
                   init_database(keeper, made) && rename(made, model) == 0;
    close(fd);
    return is_there && run_program(keeper, arguments);
}

static bool make_database(struct keeper *keeper)
{
    const char *cache = getenv("TROUPE_TEST_CACHE");

    return cache != NULL ? copy_database(keeper, cache) : init_database(keeper, keeper->data);
}

/* In a mount table of its own, so that it vanishes with the last process that sees it. */
static bool make_small_disk(struct keeper *keeper, size_t bytes)
{
    char path[PATH_SIZE];
    char how[64];

    snprintf(path, sizeof(path), "%s/small", keeper->directory);
    snprintf(how, sizeof(how), "size=%zu", bytes);
    return geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mkdir(path, 0700) == 0 &&
           mount("troupe-test", path, "tmpfs", 0, how) == 0 &&
           chown(path, keeper->uid, keeper->gid) == 0;
}

static void answer(const struct keeper *keeper, pid_t pid)
{
    const struct answer answer = { pid };

    if (send(keeper->fd, &answer, sizeof(answer), MSG_NOSIGNAL) < 0)
        return; /* the case is gone; the next read says so */
}

_Noreturn static void keep(struct keeper *keeper, size_t small_disk_bytes)
{
    char command;
    struct pollfd wait[2];

    if (small_disk_bytes > 0 && !make_small_disk(keeper, small_disk_bytes)) {
        answer(keeper, -1);
        clean_up(keeper);
    }
    answer(keeper, make_database(keeper) ? 1 : 0);
    for (;;) {
        wait[0] = (struct pollfd){ .fd = keeper->fd, .events = POLLIN };
        wait[1] = (struct pollfd){ .fd = keeper->log_fd, .events = POLLIN };
        if (poll(wait, 2, -1) < 0)
            continue;
        if (wait[1].revents != 0) {
            /* One read at most: there is something. */
            char text[4096];
            ssize_t size = read(keeper->log_fd, text, sizeof(text));

            if (size <= 0 || write(keeper->file, text, (size_t)size) < 0) {
                close(keeper->log_fd);
                keeper->log_fd = -1;
            }
        }
        if (wait[0].revents == 0)
            continue;
        if (read(keeper->fd, &command, 1) != 1)
            clean_up(keeper);
        if (command == 'S')
            start_server(keeper);
        else if (command == 'F' || command == 'K')
            end_server(keeper, command == 'F' ? SIGINT : SIGKILL);
        answer(keeper, keeper->server);
    }
}

/* ---- the case -------------------------------------------------------------------------------- */

static void show_log(const struct test_postgres *postgres, char *ret_words, size_t size)
{
    char path[PATH_SIZE];
    int fd;
    ssize_t got = 0;

    snprintf(path, sizeof(path), "%s/log", postgres->directory);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        off_t end = lseek(fd, 0, SEEK_END);

        got = pread(fd, ret_words, size - 1, end > (off_t)size - 1 ? end - (off_t)size + 1 : 0);
        close(fd);
    }
    ret_words[got > 0 ? got : 0] = '\0';
}

static pid_t hear(struct test_postgres *postgres)
{
    struct answer answer;

    CHECK_MSG(recv(postgres->fd, &answer, sizeof(answer), MSG_WAITALL) == (ssize_t)sizeof(answer),
        "the keeper of PostgreSQL has ended");
    return answer.pid;
}

static pid_t ask(struct test_postgres *postgres, char command)
{
    CHECK(send(postgres->fd, &command, 1, MSG_NOSIGNAL) == 1);
    postgres->pid = hear(postgres);
    return postgres->pid;
}

/* Root may not run PostgreSQL. */
static void find_user(uid_t *ret_uid, gid_t *ret_gid)
{
    struct passwd *user;

    *ret_uid = geteuid();
    *ret_gid = getegid();
    if (geteuid() != 0)
        return;
    user = getpwnam("postgres");
    if (user == NULL)
        user = getpwnam("nobody");
    if (user == NULL)
        SKIP("PostgreSQL does not run as root, and there is no user postgres or nobody");
    *ret_uid = user->pw_uid;
    *ret_gid = user->pw_gid;
}

/* Prefers a file system in memory: a kill leaves the same files there, and a new database takes a
 * third of the time. TMPDIR overrides it. */
static const char *find_parent(void)
{
    static const char memory[] = "/dev/shm";
    enum { PATH_BYTES_MAX = 60 }; /* the path of a socket has at most 107 */
    const uint64_t needed = (uint64_t)256 << 20;
    const char *chosen = getenv("TMPDIR");
    struct statvfs about;

    if (chosen != NULL && chosen[0] == '/' && strlen(chosen) <= PATH_BYTES_MAX)
        return chosen;
    if (access(memory, W_OK) == 0 && statvfs(memory, &about) == 0 &&
        (uint64_t)about.f_bavail * about.f_frsize >= needed)
        return memory;
    return "/tmp";
}

static void start_keeper(struct test_postgres *postgres, uid_t uid, gid_t gid, size_t small_bytes)
{
    struct keeper keeper = { .log_fd = -1, .uid = uid, .gid = gid };
    int pair[2];
    int null;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    postgres->fd = pair[0];
    postgres->keeper = fork();
    CHECK(postgres->keeper >= 0);
    if (postgres->keeper > 0) {
        close(pair[1]);
        return;
    }
    setsid(); /* a signal to the case's group must not end the process that cleans up after it */
    null = open("/dev/null", O_RDWR);
    keeper.fd = fcntl(pair[1], F_DUPFD_CLOEXEC, 100);
    snprintf(keeper.directory, sizeof(keeper.directory), "%s", postgres->directory);
    snprintf(keeper.data, sizeof(keeper.data), "%s/data", postgres->directory);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    close_range(3, (unsigned)keeper.fd - 1, 0);
    close_range((unsigned)keeper.fd + 1, ~0U, 0);
    if (chdir(keeper.directory) != 0)
        _exit(1);
    keeper.file = open("log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    keep(&keeper, small_bytes);
}

static const char base_settings[] = "listen_addresses = ''\n"
                                    "max_connections = 40\n"
                                    "shared_buffers = 16MB\n"
                                    "min_wal_size = 8MB\n"
                                    "max_wal_size = 64MB\n"
                                    "log_min_messages = warning\n"
                                    "autovacuum = off\n";

static void write_settings(struct test_postgres *postgres, const char *settings)
{
    char path[PATH_SIZE];
    FILE *file;

    /* Read after postgresql.conf, so it wins. */
    snprintf(path, sizeof(path), "%s/data/postgresql.auto.conf", postgres->directory);
    file = fopen(path, "we");
    CHECK(file != NULL);
    fprintf(file, "unix_socket_directories = '%s'\n%s%s\n", postgres->directory, base_settings,
        settings != NULL ? settings : "");
    CHECK(fclose(file) == 0);
}

void test_postgres_open(struct test_postgres *postgres, const struct test_postgres_options *options)
{
    static const struct test_postgres_options none;
    const char *parent;
    char words[WORDS_SIZE];
    uid_t uid;
    gid_t gid;
    pid_t heard;

    if (options == NULL)
        options = &none;
    if (access(BIN "initdb", X_OK) != 0)
        SKIP("PostgreSQL 15 is not installed: %sinitdb is not there", BIN);
    find_user(&uid, &gid);
    *postgres = (struct test_postgres){ .fd = -1 };
    parent = find_parent();
    snprintf(postgres->directory, sizeof(postgres->directory), "%s/troupe-pg-XXXXXX", parent);
    CHECK(mkdtemp(postgres->directory) != NULL);
    CHECK(geteuid() != 0 || chown(postgres->directory, uid, gid) == 0);
    snprintf(postgres->url, sizeof(postgres->url), "postgresql:///postgres?host=%s&user=troupe",
        postgres->directory);
    start_keeper(postgres, uid, gid, options->small_disk_bytes);
    heard = hear(postgres);
    if (heard < 0)
        SKIP("a small file system needs root and the right to mount");
    if (heard == 0) {
        show_log(postgres, words, sizeof(words));
        CHECK_MSG(false, "initdb failed: %s", words);
    }
    write_settings(postgres, options->settings);
    if (!test_postgres_start(postgres)) {
        show_log(postgres, words, sizeof(words));
        CHECK_MSG(false, "PostgreSQL does not start: %s", words);
    }
}

void test_postgres_close(struct test_postgres *postgres)
{
    if (postgres->keeper <= 0)
        return;
    close(postgres->fd);
    waitpid(postgres->keeper, NULL, 0);
    *postgres = (struct test_postgres){ .fd = -1 };
}

bool test_postgres_start(struct test_postgres *postgres)
{
    return ask(postgres, 'S') > 0;
}

void test_postgres_stop(struct test_postgres *postgres)
{
    ask(postgres, 'F');
}

void test_postgres_kill(struct test_postgres *postgres)
{
    ask(postgres, 'K');
}

void test_postgres_configure(struct test_postgres *postgres, const char *settings)
{
    write_settings(postgres, settings);
}
