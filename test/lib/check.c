/* SPDX-License-Identifier: Apache-2.0 */
/* How a case runs: the parent forks; the child closes every inherited descriptor, sends stdout and
 * stderr to a memory file and runs the case. Parent and child share one page, the note, in which
 * the child says how far it came and which seed it uses. So however the child ends, the parent
 * knows the seed, and a case that calls exit(0) half way does not count as passed.
 *
 * A memory file and not a pipe: nobody has to read while the case runs, and a process the case left
 * behind cannot hold the run up by keeping the pipe open. */
#include "check.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOBS_MAX 64
#define OUTPUT_SHOWN_MAX 65536 /* of a failed case; the end of it, where the reason is */
#define SEED_DEFAULT 1

/* A sanitized program is 2 to 10 times slower; its limits must not depend on luck. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMIT_FACTOR 5
#define ROUNDS_DIVISOR 4
#else
#define LIMIT_FACTOR 1
#define ROUNDS_DIVISOR 1
#endif
#define LIMIT_FACTOR_LONG 20
#define LIMIT_STRETCH_MAX 10 /* on a busy machine */

enum verdict {
    RUNNING,
    RETURNED,
    CHECK_FAILED,
    SKIPPED,
};

/* Written by the child, read by the parent after the child's death. */
struct note {
    atomic_int verdict;
    _Atomic uint64_t seed;
    atomic_uint seed_index; /* from 1; 0 when the case does not walk seeds */
    atomic_uint seed_count;
    char reason[256]; /* of a skip */
};

struct running {
    const struct check_case *test;
    struct note *note;
    pid_t pid;
    int pidfd;
    int output;
    unsigned limit_s;
    int64_t started_ms;
    bool timed_out;
};

struct options {
    const char *filter;
    unsigned jobs;
    bool verbose;
    bool list;
    bool no_fork;
};

static struct check_case *first_case;
static struct check_case **last_link = &first_case;
static const char *program;
static bool in_process; /* --no-fork */

static struct note first_note; /* until a child has a shared one, and for --no-fork */
static struct note *note = &first_note;

static struct {
    bool started;
    uint64_t next;
    unsigned left;
} sweep;

static struct {
    unsigned passed, failed, skipped;
} totals;

void check_register(struct check_case *test)
{
    *last_link = test;
    last_link = &test->next;
}

/* ---- inside a case ---- */

/* One write, so that lines of two threads do not mix. */
static void say(const char *text, size_t length)
{
    ssize_t written = write(STDERR_FILENO, text, length);
    (void)written; /* there is no better place to report it */
}

void check_fail(const char *file, int line, const char *format, ...)
{
    char text[4096];
    int used = snprintf(text, sizeof(text), "%s:%d: ", file, line);
    va_list args;

    va_start(args, format);
    used += vsnprintf(text + used, sizeof(text) - (size_t)used - 1, format, args);
    va_end(args);
    if ((size_t)used > sizeof(text) - 2)
        used = (int)sizeof(text) - 2;
    text[used] = '\n';
    fflush(stdout);
    say(text, (size_t)used + 1);
    atomic_store(&note->verdict, CHECK_FAILED);
    if (in_process)
        abort(); /* the debugger stops here */
    _exit(1);
}

void check_skip(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(note->reason, sizeof(note->reason), format, args);
    va_end(args);
    atomic_store(&note->verdict, SKIPPED);
    if (in_process)
        printf("skipped: %s\n", note->reason);
    fflush(stdout);
    _exit(0);
}

void check_eq_int(const char *file, int line, const char *what, long long a, long long b)
{
    if (a != b)
        check_fail(file, line, "CHECK_EQ_INT(%s): %lld is not %lld", what, a, b);
}

void check_eq_u64(const char *file, int line, const char *what, uint64_t a, uint64_t b)
{
    if (a != b)
        check_fail(file, line,
            "CHECK_EQ_U64(%s): %" PRIu64 " (%#" PRIx64 ") is not %" PRIu64 " (%#" PRIx64 ")", what,
            a, a, b, b);
}

void check_eq_str(const char *file, int line, const char *what, const char *a, const char *b)
{
    if (a == b || (a && b && strcmp(a, b) == 0))
        return;
    check_fail(file, line, "CHECK_EQ_STR(%s): %s%s%s is not %s%s%s", what, a ? "\"" : "",
        a ? a : "NULL", a ? "\"" : "", b ? "\"" : "", b ? b : "NULL", b ? "\"" : "");
}

/* A number from the environment. False if it is not set; a bad one ends the program, because a
 * replay that quietly uses another seed is worse than none. */
static bool read_number(const char *name, uint64_t *ret_value)
{
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long long value;

    if (!text || !*text)
        return false;
    errno = 0;
    value = strtoull(text, &end, 0);
    if (errno || *end || *text == '-') {
        fprintf(stderr, "%s=%s is not a number\n", name, text);
        _exit(2);
    }
    *ret_value = value;
    return true;
}

uint64_t check_seed(void)
{
    uint64_t seed = SEED_DEFAULT;

    read_number("TROUPE_SEED", &seed);
    return seed;
}

bool check_is_long(void)
{
    uint64_t value = 0;

    return read_number("TROUPE_LONG", &value) && value != 0;
}

unsigned check_rounds(unsigned count, unsigned long_count)
{
    return check_is_long() ? long_count : count / ROUNDS_DIVISOR;
}

bool check_each_seed(uint64_t *ret_seed, unsigned count)
{
    uint64_t value = 0;

    if (!sweep.started) {
        sweep.started = true;
        sweep.next = check_seed();
        sweep.left = read_number("TROUPE_SEED", &value) ? 1 : count;
        if (read_number("TROUPE_SEEDS", &value))
            sweep.left = value > UINT32_MAX ? UINT32_MAX : (unsigned)value;
        atomic_store(&note->seed_count, sweep.left);
        atomic_store(&note->seed_index, 0);
    }
    if (sweep.left == 0) {
        sweep.started = false; /* a second loop in the same case starts over */
        return false;
    }
    sweep.left--;
    *ret_seed = sweep.next++;
    atomic_store(&note->seed, *ret_seed);
    atomic_fetch_add(&note->seed_index, 1);
    return true;
}

/* ---- the parent ---- */

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(2);
}

static _Noreturn void run_child(const struct running *r)
{
    const struct rlimit no_core = { 0, 0 };

    setpgid(0, 0); /* so that what the case starts can be ended with it */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
    if (!freopen("/dev/null", "r", stdin) || dup2(r->output, STDOUT_FILENO) < 0 ||
        dup2(r->output, STDERR_FILENO) < 0)
        _exit(2);
    close_range(STDERR_FILENO + 1, ~0U, 0);
    setvbuf(stdout, NULL, _IONBF, 0); /* keeps the output from before a crash */
    note = r->note;
    r->test->run();
    /* Not a plain store: a child process of the case may have failed a check already. */
    atomic_compare_exchange_strong(&note->verdict, &(int){ RUNNING }, RETURNED);
    exit(0); /* not _exit: LeakSanitizer and ThreadSanitizer report from atexit */
}

static void start_case(struct running *r, const struct check_case *test)
{
    unsigned factor = check_is_long() ? LIMIT_FACTOR_LONG : LIMIT_FACTOR;
    uint64_t limit_s = (uint64_t)test->limit_s * factor;

    read_number("TROUPE_LIMIT_S", &limit_s);
    *r = (struct running){ .test = test, .limit_s = (unsigned)limit_s };
    r->note =
        mmap(NULL, sizeof(*r->note), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->note == MAP_FAILED)
        die("mmap");
    atomic_store(&r->note->seed, check_seed());
    r->output = memfd_create("check-output", MFD_CLOEXEC);
    if (r->output < 0)
        die("memfd_create");
    fflush(NULL);
    r->started_ms = now_ms();
    r->pid = fork();
    if (r->pid < 0)
        die("fork");
    if (r->pid == 0)
        run_child(r);
    setpgid(r->pid, r->pid); /* both sides do it, so neither has to wait for the other */
    r->pidfd = pidfd_open(r->pid, 0);
    if (r->pidfd < 0)
        die("pidfd_open");
}

/* The case's output, at most its last OUTPUT_SHOWN_MAX bytes, as a string the caller frees. */
static char *read_output(int output)
{
    off_t size = lseek(output, 0, SEEK_END);
    off_t from = size > OUTPUT_SHOWN_MAX ? size - OUTPUT_SHOWN_MAX : 0;
    size_t wanted = size > 0 ? (size_t)(size - from) : 0;
    char *text = malloc(wanted + 1);
    ssize_t got;

    if (!text)
        die("malloc");
    got = pread(output, text, wanted, from);
    if (got < 0)
        die("pread");
    text[got] = '\0';
    for (ssize_t i = 0; i < got; i++)
        if (!text[i])
            text[i] = '?'; /* so that a stray zero does not hide the rest */
    return text;
}

static void print_as_comment(const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        printf("# %.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

/* Why the case failed, in words; an empty string if it did not. */
static void judge(
    const struct running *r, int status, const char *output, char *why, size_t why_size)
{
    const char *abort_text = r->test->aborts_with;
    int verdict = atomic_load(&r->note->verdict);

    why[0] = '\0';
    if (r->timed_out)
        snprintf(why, why_size, "timed out after %u s", r->limit_s);
    else if (verdict == CHECK_FAILED)
        snprintf(why, why_size, "a check failed");
    else if (WIFSIGNALED(status) && abort_text && WTERMSIG(status) == SIGABRT) {
        if (!strstr(output, abort_text))
            snprintf(why, why_size, "aborted without saying \"%s\"", abort_text);
    } else if (WIFSIGNALED(status)) {
        const char *name = sigabbrev_np(WTERMSIG(status));
        snprintf(why, why_size, "killed by SIG%s", name ? name : "?");
    } else if (verdict == RUNNING)
        snprintf(why, why_size, "called exit(%d) before its end", WEXITSTATUS(status));
    else if (WEXITSTATUS(status) != 0)
        snprintf(why, why_size, "exit status %d after its end", WEXITSTATUS(status));
    else if (verdict == RETURNED && abort_text)
        snprintf(why, why_size, "returned, but should have aborted");
}

static void report(const struct running *r, int status, bool verbose)
{
    const struct check_case *test = r->test;
    unsigned number = totals.passed + totals.failed + totals.skipped + 1;
    uint64_t seed = atomic_load(&r->note->seed);
    unsigned seed_index = atomic_load(&r->note->seed_index);
    char *output = read_output(r->output);
    char why[256];

    judge(r, status, output, why, sizeof(why));
    if (why[0]) {
        totals.failed++;
        printf("not ok %u - %s: %s (seed %" PRIu64 ", %s)\n", number, test->noun, test->claim, seed,
            why);
        print_as_comment(output);
        if (seed_index > 0)
            printf("# seed %" PRIu64 " was number %u of %u\n", seed, seed_index,
                atomic_load(&r->note->seed_count));
        printf("# replay: TROUPE_SEED=%" PRIu64 " %s '%s: %s'\n", seed, program, test->noun,
            test->claim);
    } else if (atomic_load(&r->note->verdict) == SKIPPED) {
        totals.skipped++;
        printf("ok %u - %s: %s # SKIP %s\n", number, test->noun, test->claim, r->note->reason);
    } else {
        totals.passed++;
        printf("ok %u - %s: %s\n", number, test->noun, test->claim);
        if (seed_index > 0)
            printf("# %u seeds from %" PRIu64 "\n", seed_index, seed - (seed_index - 1));
        if (verbose) {
            print_as_comment(output);
            printf("# %lld ms\n", (long long)(now_ms() - r->started_ms));
        }
    }
    fflush(stdout);
    free(output);
}

static void finish_case(struct running *r, bool verbose)
{
    int status = 0;

    while (waitpid(r->pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid");
    kill(-r->pid, SIGKILL); /* ends processes that the case left behind */
    report(r, status, verbose);
    close(r->pidfd);
    close(r->output);
    munmap(r->note, sizeof(*r->note));
    r->test = NULL;
}

/* Return the time that a case may take by now: on a busy machine its limit is as many times longer as
 * programs share a core. */
static int64_t limit_ms(const struct running *r)
{
    double load = 1, cores = (double)sysconf(_SC_NPROCESSORS_ONLN);

    if (getenv("TROUPE_LIMIT_S") != NULL || getloadavg(&load, 1) != 1 || load < cores)
        load = cores;
    if (load > cores * LIMIT_STRETCH_MAX)
        load = cores * LIMIT_STRETCH_MAX;
    return (int64_t)(r->limit_s * 1000.0 * load / cores);
}

/* Wait until a case ends or is out of time. Returns how many are still running. */
static unsigned wait_for_one(struct running *places, unsigned jobs, bool verbose)
{
    struct pollfd polls[JOBS_MAX];
    int64_t now = now_ms();
    int64_t wait_ms = INT32_MAX;
    unsigned busy = 0;

    for (unsigned i = 0; i < jobs; i++) {
        struct running *r = &places[i];
        polls[i] = (struct pollfd){ .fd = r->test ? r->pidfd : -1, .events = POLLIN };
        if (!r->test || r->timed_out)
            continue;
        int64_t left_ms = r->started_ms + (int64_t)r->limit_s * 1000 - now;
        if (left_ms <= 0)
            left_ms = r->started_ms + limit_ms(r) - now;
        if (left_ms <= 0) {
            r->limit_s = (unsigned)((now - r->started_ms) / 1000);
            r->timed_out = true; /* its death is then seen like any other */
            kill(-r->pid, SIGKILL);
        } else if (left_ms < wait_ms)
            wait_ms = left_ms;
    }
    if (poll(polls, jobs, (int)wait_ms) < 0 && errno != EINTR)
        die("poll");
    for (unsigned i = 0; i < jobs; i++) {
        if (places[i].test && (polls[i].revents & POLLIN))
            finish_case(&places[i], verbose);
        busy += places[i].test != NULL;
    }
    return busy;
}

static bool is_wanted(const struct check_case *test, const char *filter)
{
    char name[512];

    if (!filter)
        return true;
    snprintf(name, sizeof(name), "%s: %s", test->noun, test->claim);
    return strstr(name, filter) != NULL;
}

static const struct check_case *first_wanted(const struct check_case *from, const char *filter)
{
    while (from && !is_wanted(from, filter))
        from = from->next;
    return from;
}

static void run_all(const struct options *options)
{
    struct running places[JOBS_MAX] = { 0 };
    const struct check_case *test = first_wanted(first_case, options->filter);
    unsigned busy = 0;

    while (test || busy > 0) {
        for (unsigned i = 0; test && i < options->jobs; i++) {
            if (places[i].test)
                continue;
            start_case(&places[i], test);
            test = first_wanted(test->next, options->filter);
        }
        busy = wait_for_one(places, options->jobs, options->verbose);
    }
}

static int usage(FILE *out, int status)
{
    fprintf(out,
        "usage: %s [-v] [--list] [--jobs N] [--no-fork] [TEXT]\n"
        "  TEXT       run only the cases whose \"noun: claim\" contains it\n"
        "  --list     print the names of the cases\n"
        "  --jobs N   run N cases at a time (1)\n"
        "  -v         show the output and the time of passing cases too\n"
        "  --no-fork  run the one matching case in this process, for a debugger\n"
        "environment: TROUPE_SEED, TROUPE_SEEDS, TROUPE_LONG, TROUPE_LIMIT_S; see test/README.md\n",
        program);
    return status;
}

/* 0, or the program's exit status plus one. */
static int parse_arguments(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return 1 + usage(stdout, 0);
        if (strcmp(argv[i], "--list") == 0)
            options->list = true;
        else if (strcmp(argv[i], "-v") == 0)
            options->verbose = true;
        else if (strcmp(argv[i], "--no-fork") == 0)
            options->no_fork = true;
        else if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc) {
            long jobs = strtol(argv[++i], NULL, 10);
            if (jobs < 1 || jobs > JOBS_MAX)
                return 1 + usage(stderr, 2);
            options->jobs = (unsigned)jobs;
        } else if (argv[i][0] == '-' || options->filter)
            return 1 + usage(stderr, 2);
        else
            options->filter = argv[i];
    }
    return 0;
}

static int run_in_process(const struct check_case *test)
{
    in_process = true;
    atomic_store(&note->seed, check_seed());
    printf("%s: %s, in this process, seed %" PRIu64 "\n", test->noun, test->claim, check_seed());
    test->run();
    puts("returned");
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = { .jobs = 1 };
    const struct check_case *last_wanted = NULL;
    unsigned wanted = 0;
    int rc;

    program = argv[0];
    rc = parse_arguments(argc, argv, &options);
    if (rc)
        return rc - 1;
    check_seed(); /* a bad TROUPE_SEED is refused here and not in each case */
    for (const struct check_case *test = first_case; test; test = test->next)
        if (is_wanted(test, options.filter)) {
            if (options.list)
                printf("%s: %s\n", test->noun, test->claim);
            last_wanted = test;
            wanted++;
        }
    if (options.list)
        return 0;
    if (wanted == 0)
        fprintf(stderr, "no case matches \"%s\"\n", options.filter ? options.filter : "");
    if (options.no_fork && wanted != 1)
        return usage(stderr, 2);
    if (options.no_fork)
        return run_in_process(last_wanted);
    printf("1..%u\n", wanted);
    run_all(&options);
    printf("%u passed, %u failed, %u skipped\n", totals.passed, totals.failed, totals.skipped);
    if (wanted == 0)
        return 2;
    return totals.failed ? 1 : 0;
}
