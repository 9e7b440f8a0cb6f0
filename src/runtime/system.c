/* SPDX-License-Identifier: Apache-2.0 */
/* system.c: start and end of a system; waiting for ends; the report of holders; the log. */
#include "runtime/system.h"

#include <linux/membarrier.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "runtime/actor.h"
#include "runtime/ask.h"
#include "runtime/fd.h"
#include "runtime/memory.h"
#include "runtime/options.h"
#include "runtime/process.h"

enum {
    WORKERS_MAX = 256,
    BLOCKING_DEFAULT = 4,
    ACTORS_MAX_DEFAULT = 16 << 20,
    DRAIN_LOOK_NS = 100000000,
};

/* A join without a limit logs the report of holders after this long. */
static const uint64_t join_report_ns = UINT64_C(10000000000);

static void log_nothing(void *data, const char *line)
{
    (void)data;
    (void)line;
}

void tr__log(struct tr_system *system, const char *format, ...)
{
    char line[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (system->log != NULL)
        system->log(system->log_data, line);
    else
        fprintf(stderr, "troupe: %s\n", line);
}

/* ---- creating ------------------------------------------------------------------------------- */

/* The mutexes beside those of boxes. */
static const size_t locks_at[] = { offsetof(struct tr_system, memory_lock),
    offsetof(struct tr_system, foreign_lock), offsetof(struct tr_system, reply_lock),
    offsetof(struct tr_system, fd_lock), offsetof(struct tr_system, work.lock),
    offsetof(struct tr_system, dead_lock), offsetof(struct tr_system, end_lock),
    offsetof(struct tr_system, snapshot_lock), offsetof(struct tr_system, inspect_lock) };
enum { LOCKS_AT = sizeof locks_at / sizeof locks_at[0] };

static pthread_mutex_t *lock_of(struct tr_system *system, uint32_t i)
{
    return i < LOCKS ? &system->locks[i]
                     : (pthread_mutex_t *)(void *)((char *)system + locks_at[i - LOCKS]);
}

static void locks_init(struct tr_system *system)
{
    pthread_condattr_t attribute;

    for (uint32_t i = 0; i < LOCKS + LOCKS_AT; i++)
        pthread_mutex_init(lock_of(system, i), NULL);
    pthread_cond_init(&system->work.ready, NULL);
    pthread_condattr_init(&attribute);
    pthread_condattr_setclock(&attribute, CLOCK_MONOTONIC);
    pthread_cond_init(&system->end_changed, &attribute);
    pthread_condattr_destroy(&attribute);
}

static void locks_fini(struct tr_system *system)
{
    for (uint32_t i = 0; i < LOCKS + LOCKS_AT; i++)
        pthread_mutex_destroy(lock_of(system, i));
    pthread_cond_destroy(&system->end_changed);
    pthread_cond_destroy(&system->work.ready);
}

static struct tr__worker *worker_create(struct tr_system *system, uint32_t index)
{
    /* On cache lines of its own: workers must not share one. */
    struct tr__worker *worker = tr__alloc_line(sizeof *worker);

    if (worker == NULL)
        return NULL;
    tr__worker_init(worker, system, index);
    worker->wheel = tr__wheel_create(system, tr__now(system) / 1000000);
    if (worker->wheel == NULL) {
        tr__free_line(worker);
        return NULL;
    }
    return worker;
}

static void worker_destroy(struct tr__worker *worker)
{
    if (worker == NULL)
        return;
    tr__worker_close(worker);
    tr__wheel_destroy(worker->wheel);
    tr__free_line(worker);
}

static void system_free(struct tr_system *system)
{
    tr__processes_stop(system);
    tr__snapshot_fini(system);
    tr__memory_fini(system);
    for (uint32_t i = 0; system->workers != NULL && i < system->worker_count; i++)
        worker_destroy(system->workers[i]);
    worker_destroy(system->foreign);
    while (system->reply_blocks != NULL) {
        struct tr__reply_block *block = system->reply_blocks;

        system->reply_blocks = block->next;
        base_free(block);
    }
    base_free(system->workers);
    base_free(system->work.ids);
    tr__fd_chunks_free(system);
    base_free(system->signals);
    locks_fini(system);
    tr__free_line(system);
}

static int copy_signals(struct tr_system *system, const int *signals)
{
    uint32_t count = 0;
    sigset_t set;

    while (signals[count] != 0)
        count++;
    system->signals = base_alloc((count + 1) * sizeof *signals);
    if (system->signals == NULL)
        return TR_ENOMEM;
    memcpy(system->signals, signals, (count + 1) * sizeof *signals);
    sigemptyset(&set);
    for (uint32_t i = 0; i < count; i++)
        if (sigaddset(&set, signals[i]) < 0)
            return TR_EINVAL;
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return 0;
}

static void join_workers(struct tr_system *system)
{
    atomic_store_explicit(&system->ending, true, memory_order_seq_cst);
    for (uint32_t i = 0; i < system->worker_count; i++)
        if (system->workers[i] != NULL && system->workers[i]->is_thread) {
            uint64_t one = 1;

            if (write(system->workers[i]->event_fd, &one, sizeof one) < 0) {
                /* A full counter is readable too. */
            }
            pthread_join(system->workers[i]->thread, NULL);
            system->workers[i]->is_thread = false;
        }
}

static int start_threads(struct tr_system *system)
{
    for (uint32_t i = 0; i < system->worker_count; i++) {
        struct tr__worker *worker = system->workers[i];
        int rc = tr__worker_open(worker);

        if (rc < 0)
            return rc;
        worker->is_thread = true;
        if (base_fault_hit() ||
            pthread_create(&worker->thread, NULL, tr__worker_main, worker) != 0) {
            worker->is_thread = false;
            return TR_ELIMIT;
        }
    }
    return 0;
}

int tr__system_create(
    const struct tr_system_options *options, struct tr_sim *sim, struct tr_system **ret_system)
{
    static const struct tr_system_options none = { 0 };
    const struct tr_system_options *o = options != NULL ? options : &none;
    struct tr_system *system;
    long cores;
    int rc = TR_ENOMEM;

    if (o->workers > WORKERS_MAX)
        return TR_EINVAL;
    system = tr__alloc_line(sizeof *system);
    if (system == NULL)
        return TR_ENOMEM;
    memset(system, 0, sizeof *system);
    locks_init(system);
    system->env = o->env != NULL ? o->env : tr_env_real();
    system->sim = sim;
    system->pid = getpid();
    system->kind = sim != NULL ? SYSTEM_SIMULATED : o->driven ? SYSTEM_DRIVEN : SYSTEM_THREADS;
    system->sample = !o->no_sample && sim == NULL;
    system->log = o->quiet ? log_nothing : o->log;
    system->log_data = o->log_data;
    system->actors_max = o->actors_max != 0 ? o->actors_max : ACTORS_MAX_DEFAULT;
    system->work.threads_max = o->blocking_threads != 0 ? o->blocking_threads : BLOCKING_DEFAULT;
    tr__set(system->refs, 1);
    cores = sysconf(_SC_NPROCESSORS_ONLN);
    system->worker_count = sim != NULL       ? SIM_WORKERS
                           : o->driven       ? 1
                           : o->workers != 0 ? o->workers
                                             : (uint32_t)cores;
    system->workers = base_calloc(system->worker_count * sizeof(*system->workers));
    system->work.ids = base_calloc(system->work.threads_max * sizeof(*system->work.ids));
    if (system->workers == NULL || system->work.ids == NULL)
        goto fail;
    system->foreign = worker_create(system, UINT32_MAX);
    if (system->foreign == NULL)
        goto fail;
    for (uint32_t i = 0; i < system->worker_count; i++) {
        system->workers[i] = worker_create(system, i);
        if (system->workers[i] == NULL)
            goto fail;
    }
    rc = tr__reserve_fill(system);
    if (rc < 0)
        goto fail;
    if (o->signals != NULL) {
        rc = copy_signals(system, o->signals);
        if (rc < 0)
            goto fail;
    }
    if (!o->driven) {
        if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
            system->steal_off = true;
        rc = start_threads(system);
        if (rc < 0)
            goto fail;
    }
    *ret_system = system;
    return 0;

fail:
    if (system->workers != NULL)
        join_workers(system);
    system_free(system);
    return rc;
}

int tr_system_create(const struct tr_system_options *options, struct tr_system **ret_system)
{
    struct tr_system_options copy;

    options = tr__options_view(options, &copy, sizeof copy, SYSTEM_OPTIONS_FIRST);
    return options == NULL ? TR_EUNSUPPORTED : tr__system_create(options, NULL, ret_system);
}

/* ---- ending --------------------------------------------------------------------------------- */

struct killing {
    struct tr__worker *worker;
    uint32_t killed;
};

static bool kill_box(void *data, struct tr_box *box)
{
    struct killing *killing = data;
    uint32_t status = tr__get(box->status);

    /* A zombie has ended already; a sender of it is still held. */
    if (!(status & STATUS_LIVE) ||
        atomic_load_explicit(&box->word, memory_order_relaxed) & WORD_GONE)
        return true;
    killing->worker->ctx.box = box;
    killing->worker->ctx.self = tr__self_of(box);
    tr__box_end(killing->worker, box, TR_WHY_KILLED);
    killing->worker->ctx.box = NULL;
    killing->killed++;
    return true;
}

void tr__system_end(struct tr_system *system)
{
    struct killing killing = { .worker = system->workers[0] };

    join_workers(system);
    tr__work_pool_stop(system);
    /* This thread owns everything now. */
    tr__self = system->workers[0];
    do {
        killing.killed = 0;
        tr__slots_each(system, kill_box, &killing);
    } while (killing.killed > 0); /* an end may have started a successor */
    tr__self = NULL;
}

void tr_system_destroy(struct tr_system **system)
{
    struct tr_system *s = *system;

    if (s == NULL)
        return;
    tr_assert_use(tr__self == NULL, "a system is not destroyed from inside a handler");
    tr_assert_use(s->pid == getpid(), "a system is destroyed by the process that made it");
    tr__system_end(s);
    *system = NULL; /* not before: handlers may have looked at it */
    /* The thread that dropped the last sender may still be inside: see tr__box_senderless. */
    tr__foreign_enter(s);
    tr__foreign_leave(s);
    system_free(s);
}

/* A private system belongs to one box: it goes when the box and all senders have gone. */
void tr__private_ref(struct tr_system *system)
{
    atomic_fetch_add_explicit(&system->refs, 1, memory_order_relaxed);
}

void tr__private_unref(struct tr_system *system)
{
    if (atomic_fetch_sub_explicit(&system->refs, 1, memory_order_acq_rel) == 1) {
        struct tr__worker *outer = tr__self;

        tr__self = NULL;
        tr__system_end(system);
        system_free(system);
        tr__self = outer;
    }
}

uint64_t tr__live(struct tr_system *system)
{
    uint64_t ended = 0, spawned = 0;

    /* Ends first: if the two are equal, nothing was alive when the first was read. The foreign
     * worker comes after the others. */
    for (uint32_t i = 0; i <= system->worker_count; i++)
        ended +=
            atomic_load_explicit(&tr__worker_at(system, i)->counters.ended, memory_order_acquire);
    for (uint32_t i = 0; i <= system->worker_count; i++)
        spawned +=
            atomic_load_explicit(&tr__worker_at(system, i)->counters.spawned, memory_order_acquire);
    return spawned - ended;
}

/* An actor ended. Costs a load unless a thread waits. */
void tr__end_signal(struct tr_system *system)
{
    /* Sequentially consistent with the store of GONE before, and with tr__end_wait. */
    if (atomic_load_explicit(&system->end_waiters, memory_order_seq_cst) == 0 ||
        tr__live(system) > 0)
        return;
    tr__end_broadcast(system);
}

void tr__end_broadcast(struct tr_system *system)
{
    pthread_mutex_lock(&system->end_lock);
    pthread_cond_broadcast(&system->end_changed);
    pthread_mutex_unlock(&system->end_lock);
}

int tr__end_wait(struct tr_system *system, uint64_t until_ns)
{
    struct timespec limit;
    uint64_t now = tr__now(system), slice = now + UINT64_C(100000000);

    if (now >= until_ns)
        return TR_ETIMEOUT;
    if (slice > until_ns)
        slice = until_ns;
    limit.tv_sec = (time_t)(slice / 1000000000);
    limit.tv_nsec = (long)(slice % 1000000000);
    atomic_fetch_add_explicit(&system->end_waiters, 1, memory_order_seq_cst);
    pthread_cond_timedwait(&system->end_changed, &system->end_lock, &limit);
    atomic_fetch_sub_explicit(&system->end_waiters, 1, memory_order_seq_cst);
    return 0;
}

static bool system_is_empty(void *data)
{
    return tr__live(data) == 0;
}

static int system_join(struct tr_system *system, uint64_t timeout_ns)
{
    uint64_t until = timeout_ns == 0 ? UINT64_MAX : tr__later(tr__now(system), timeout_ns);
    int rc = 0;

    tr_assert_use(tr__self == NULL, "a system is not joined from inside a handler");
    if (tr__is_driven(system))
        return tr__drive_until(system, system_is_empty, system, until);
    pthread_mutex_lock(&system->end_lock);
    while (rc == 0 && tr__live(system) > 0)
        rc = tr__end_wait(system, until);
    pthread_mutex_unlock(&system->end_lock);
    return rc;
}

/* The system did not end in time: log the report of holders. */
static void report_holders(struct tr_system *system)
{
    char *text = NULL, *line, *rest = NULL;
    size_t size = 0;
    FILE *out;

    out = open_memstream(&text, &size);
    if (out == NULL)
        return;
    tr_system_holders(system, out);
    fclose(out);
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        tr__log(system, "%s", line);
    free(text); /* open_memstream's own */
}

int tr_system_join(struct tr_system *system, uint64_t timeout_ns)
{
    int rc = system_join(system, timeout_ns != 0 ? timeout_ns : join_report_ns);

    if (rc != TR_ETIMEOUT)
        return rc;
    report_holders(system);
    /* Logged once. In a simulation with nothing left to do this returns at once. */
    return timeout_ns != 0 ? rc : system_join(system, 0);
}

/* ---- drain: every actor, the last started first --------------------------------------------- */

struct drained {
    tr_weak weak;
    uint64_t order;
};

struct draining {
    struct drained *list;
    size_t count, capacity;
};

static bool system_collect(void *data, struct tr_box *box)
{
    struct draining *draining = data;
    pthread_mutex_t *lock;
    struct tr__ext *ext;
    bool supervised;

    if (draining->count == draining->capacity)
        return false;
    if (tr__get(box->status) & STATUS_STOPPING ||
        atomic_load_explicit(&box->word, memory_order_relaxed) & WORD_GONE)
        return true;
    lock = tr__box_lock(box);
    ext = atomic_load_explicit(&box->ext, memory_order_acquire);
    supervised = ext != NULL && ext->supervisor != NULL;
    pthread_mutex_unlock(lock);
    if (!supervised) /* those are stopped by their supervisor, in its order */
        draining->list[draining->count++] =
            (struct drained){ { box, atomic_load_explicit(&box->generation, memory_order_acquire) },
                tr__box_order(box) };
    return true;
}

static int later_first(const void *a, const void *b)
{
    const struct drained *x = a, *y = b;

    return x->order < y->order ? 1 : x->order > y->order ? -1 : 0;
}

/* Stop every actor that is not stopping yet. Returns how many. */
static int tell_all(struct tr_system *system)
{
    struct draining draining = { .capacity = (size_t)tr__live(system) + 64 };
    int rc;

    draining.list = base_alloc(draining.capacity * sizeof *draining.list);
    if (draining.list == NULL)
        return TR_ENOMEM;
    tr__slots_each(system, system_collect, &draining);
    qsort(draining.list, draining.count, sizeof *draining.list, later_first);
    for (size_t i = 0; i < draining.count; i++) {
        rc = tr_stop(draining.list[i].weak);
        if (rc == TR_ENOMEM) {
            base_free(draining.list);
            return rc;
        }
    }
    base_free(draining.list);
    return (int)draining.count;
}

int tr_system_drain(struct tr_system *system, uint64_t timeout_ns)
{
    uint64_t until = timeout_ns == 0 ? UINT64_MAX : tr__later(tr__now(system), timeout_ns), now;
    int told, rc;

    for (;;) {
        told = tell_all(system);
        if (told < 0)
            return told;
        now = tr__now(system);
        if (now >= until)
            break;
        /* Not too long: the stopping actors may have started others. */
        rc = system_join(system, until - now < DRAIN_LOOK_NS ? until - now : DRAIN_LOOK_NS);
        if (rc != TR_ETIMEOUT)
            return rc;
        if (system->sim != NULL && told == 0)
            break; /* there is nothing left to run */
    }
    report_holders(system);
    return TR_ETIMEOUT;
}

/* ---- the report of holders ------------------------------------------------------------------ */

static bool report_box(void *data, struct tr_box *box)
{
    FILE *out = data;
    char name[64], other[64];
    uint64_t word = atomic_load_explicit(&box->word, memory_order_relaxed);
    uint64_t edge = tr__get(box->waiting_on);
    const char *first = tr__get(box->owner_first);
    pthread_mutex_t *lock;

    if (word & WORD_GONE || !(tr__get(box->status) & STATUS_LIVE))
        return true;
    fprintf(out, "  %s: %u sender%s", tr__box_name(box, name, sizeof name),
        (unsigned)tr__get(box->strong), tr__get(box->strong) == 1 ? "" : "s");
    lock = tr__box_lock(box);
    if (first != NULL || box->holds != NULL) {
        const char *separator = ", held by ";

        if (first != NULL) {
            fprintf(out, "%s%s", separator, first);
            separator = ", ";
        }
        for (const struct tr__hold *hold = box->holds; hold != NULL; hold = hold->next) {
            fprintf(out, "%s%s", separator, hold->owner != NULL ? hold->owner : "?");
            separator = ", ";
        }
    }
    pthread_mutex_unlock(lock);
    if (tr__word_count(word) > 0)
        fprintf(out, "; %u queued", (unsigned)tr__word_count(word));
    if (tr__get(box->asks) > 0)
        fprintf(out, "; %u answers outstanding", (unsigned)tr__get(box->asks));
    if (tr__wait_target(edge) != NULL)
        fprintf(out, "; waits for %s", tr__box_name(tr__wait_target(edge), other, sizeof other));
    fputc('\n', out);
    return true;
}

void tr_system_holders(struct tr_system *system, FILE *out)
{
    uint64_t live = tr__live(system);

    fprintf(out, "%llu actor%s alive:\n", (unsigned long long)live, live == 1 ? "" : "s");
    tr__slots_each(system, report_box, out);
}

const struct tr_env *tr_system_env(const struct tr_system *system)
{
    return system->env;
}

uint32_t tr_system_workers(const struct tr_system *system)
{
    return tr__is_driven(system) ? 0 : system->worker_count;
}
