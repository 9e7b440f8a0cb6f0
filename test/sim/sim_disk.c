/* SPDX-License-Identifier: Apache-2.0 */
/* sim_disk.c: an append-only log on a disk that fails and loses power.
 *
 * A supervised writer appends records through the disk table, on the blocking pool, and answers
 * when they are synced. Writes fail, are cut short, find the disk full; the power goes at any
 * moment, and unsynced bytes are there, torn or gone. The writer then fails, is restarted, and
 * reads its log again; now and then it writes a new log beside the old one and renames it. Checked:
 *
 *   durable   a record that was answered is there after every crash
 *   whole     the log is always a run of whole records, 1, 2, 3 …, each with the bytes that were
 *             written
 *   honest    no record is answered as stored before its sync returned 0
 *   work      every piece of blocking work comes back or is dropped, once
 *   liveness  once the disk is well every client is answered and every actor ends */
#include "scenario.h"

enum {
    RECORD = 700,
    CLIENTS_MAX = 3,
    TAG_WORK = 1,
    TAG_REPLY = 2,
    TAG_AGAIN = 3,
    RECORDS_MAX = 4000
};

struct record {
    uint64_t sequence;
    uint64_t checksum;
    uint32_t size;
    unsigned char bytes[RECORD];
};

struct message {
    uint32_t id;
    uint32_t client;
};

static struct {
    struct scenario s;
    uint32_t clients, quota;
    uint64_t answered; /* the last record a client was told is stored */
    uint64_t written;  /* the last one a write was begun for */
    bool synced[RECORDS_MAX];
    uint32_t works, works_back;
    uint32_t done;
    tr_sender writer, client_senders[CLIENTS_MAX], root;
} now;

static struct {
    uint64_t crashes, recoveries, torn_tails, failures, rewrites;
} seen;

static const char path[] = "data/log", path_new[] = "data/log.new";

static void drop_message(void *message)
{
    ledger_dead(((struct message *)message)->id);
}

/* ---- the log itself, blocking --------------------------------------------------------------- */

static struct record record_of(uint64_t sequence)
{
    struct record r = { .sequence = sequence, .size = (uint32_t)(sequence * 37 % RECORD) };

    for (uint32_t i = 0; i < r.size; i++)
        r.bytes[i] = (unsigned char)(sequence * 31 + i * 7);
    r.checksum = sequence * UINT64_C(0x9e3779b97f4a7c15) + r.size;
    for (uint32_t i = 0; i < r.size; i++)
        r.checksum = r.checksum * 131 + r.bytes[i];
    return r;
}

static size_t record_bytes(const struct record *r)
{
    return offsetof(struct record, bytes) + r->size;
}

static const struct tr_env *env(void)
{
    return tr_system_env(now.s.system);
}

/* Read records from the start until one is not whole. Returns where that is. */
static int scan(struct tr_file *file, uint64_t *ret_sequence, uint64_t *ret_offset)
{
    uint64_t offset = 0, sequence = 0;

    for (;;) {
        struct record r, expected = record_of(sequence + 1);
        size_t got;
        int rc = env()->disk->read(file, offset, &r, sizeof r, &got);

        if (rc < 0)
            return rc;
        if (got < record_bytes(&expected) || memcmp(&r, &expected, record_bytes(&expected)) != 0)
            break;
        offset += record_bytes(&expected);
        sequence++;
    }
    *ret_sequence = sequence;
    *ret_offset = offset;
    return 0;
}

static int write_all(struct tr_file *file, uint64_t upto, uint64_t *ret_offset)
{
    uint64_t offset = 0;

    for (uint64_t i = 1; i <= upto; i++) {
        struct record r = record_of(i);
        int rc = env()->disk->write(file, offset, &r, record_bytes(&r));

        if (rc < 0)
            return rc;
        offset += record_bytes(&r);
    }
    *ret_offset = offset;
    return env()->disk->sync(file);
}

/* ---- the writer ----------------------------------------------------------------------------- */

/* Work that is queued has its file open, whatever becomes of the writer. */
struct open_file {
    struct tr_file *file;
    uint32_t refs;
};

static void file_unref(struct open_file *open)
{
    if (open == NULL || --open->refs > 0)
        return;
    env()->disk->close(open->file);
    free(open);
}

static struct open_file *file_open(struct tr_file *file)
{
    struct open_file *open = malloc(sizeof *open);

    *open = (struct open_file){ file, 1 };
    return open;
}

struct writer {
    struct open_file *file;
    uint64_t sequence, offset;
    bool busy;
    tr_reply_handle duty;
};

struct job {
    struct open_file *file;
    uint64_t sequence, offset;
};

static int append_work(void *argument)
{
    struct job *job = argument;
    struct record r = record_of(job->sequence);
    int rc = env()->disk->write(job->file->file, job->offset, &r, record_bytes(&r));

    if (rc == 0)
        rc = env()->disk->sync(job->file->file);
    if (rc == 0)
        now.synced[job->sequence] = true;
    job->offset += record_bytes(&r);
    return rc;
}

static void job_end(void *argument)
{
    struct job *job = argument;

    now.works_back++;
    file_unref(job->file);
    free(job);
}

/* Open or make the log, and cut off what is not whole. */
static int recover(struct writer *self)
{
    const struct tr_disk *disk = env()->disk;
    void *data = env()->disk_data;
    struct tr_file *file;
    uint64_t size;
    int rc = disk->open(data, path, TR_OPEN_READ | TR_OPEN_WRITE | TR_OPEN_CREATE, &file);

    if (rc < 0)
        return rc;
    rc = scan(file, &self->sequence, &self->offset);
    if (rc == 0) {
        CHECK_MSG(self->sequence >= now.answered,
            "durable: %llu records were answered, %llu are there", (unsigned long long)now.answered,
            (unsigned long long)self->sequence);
        CHECK_MSG(self->sequence <= now.written, "whole: %llu records, only %llu were ever written",
            (unsigned long long)self->sequence, (unsigned long long)now.written);
        rc = disk->size(file, &size);
    }
    if (rc == 0 && size > self->offset) {
        seen.torn_tails++;
        rc = disk->truncate(file, self->offset);
    }
    if (rc == 0)
        rc = disk->sync(file);
    if (rc == 0)
        rc = disk->sync_dir(data, path);
    if (rc < 0) {
        disk->close(file);
        return rc;
    }
    self->file = file_open(file);
    seen.recoveries++;
    return 0;
}

/* The same log, written anew and put in the place of the old one. */
static int rewrite(struct writer *self)
{
    const struct tr_disk *disk = env()->disk;
    void *data = env()->disk_data;
    struct tr_file *file;
    uint64_t offset;
    int rc = disk->open(
        data, path_new, TR_OPEN_READ | TR_OPEN_WRITE | TR_OPEN_CREATE | TR_OPEN_TRUNCATE, &file);

    if (rc < 0)
        return rc;
    rc = write_all(file, self->sequence, &offset);
    if (rc == 0)
        rc = disk->rename(data, path_new, path);
    if (rc == 0)
        rc = disk->sync_dir(data, path);
    if (rc < 0) {
        disk->close(file);
        return rc;
    }
    CHECK_EQ_U64(offset, self->offset);
    file_unref(self->file);
    self->file = file_open(file);
    seen.rewrites++;
    return 0;
}

static int writer_start(void *state, struct tr_context *ctx)
{
    (void)ctx;
    return recover(state);
}

static int writer_reset(void *state, enum tr_why why)
{
    struct writer *self = state;

    (void)why;
    file_unref(self->file);
    *self = (struct writer){ 0 };
    return 0;
}

static enum tr_next writer_handle(void *state, struct tr_context *ctx, void *message)
{
    struct writer *self = state;
    struct message *m = message;
    struct job *job;

    if (self->busy) {
        CHECK_EQ_INT(tr_stash(ctx), 0);
        return TR_GO;
    }
    if (tr_random(ctx) % 16 == 0 && rewrite(self) < 0) {
        seen.failures++;
        ledger_dead(m->id);
        return TR_FAIL;
    }
    ledger_handled(m->id);
    job = malloc(sizeof *job);
    self->file->refs++;
    *job =
        (struct job){ .file = self->file, .sequence = self->sequence + 1, .offset = self->offset };
    CHECK(job->sequence < RECORDS_MAX);
    if (job->sequence > now.written)
        now.written = job->sequence;
    self->duty = tr_reply_take(ctx);
    self->busy = true;
    now.works++;
    CHECK_EQ_INT(tr_offload(ctx, append_work, job, job_end, TAG_WORK), 0);
    return TR_GO;
}

static enum tr_next writer_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct writer *self = state;
    struct job job;

    if (event->kind != TR_EVENT_WORK)
        return TR_GO;
    memcpy(&job, event->value, sizeof job);
    job_end((void *)(uintptr_t)event->value);
    if (job.file != self->file || !self->busy)
        return TR_GO; /* of a life before: its asker was told */
    self->busy = false;
    if (event->status < 0) {
        seen.failures++;
        return TR_FAIL; /* the content of the disk is unknown now: read it again */
    }
    self->sequence = job.sequence;
    self->offset = job.offset;
    CHECK_EQ_INT(tr_reply_send(&self->duty, 0, &job.sequence, sizeof job.sequence), 0);
    tr_unstash(ctx);
    return TR_GO;
}

static void writer_finish(void *state)
{
    struct writer *self = state;

    file_unref(self->file);
}

static const struct tr_type writer_type = {
    .name = "writer",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct writer),
    .start = writer_start,
    .reset = writer_reset,
    .handle = writer_handle,
    .event = writer_event,
    .finish = writer_finish,
    .message_drop = drop_message,
};

/* ---- clients -------------------------------------------------------------------------------- */

struct client {
    uint32_t index, left;
    tr_sender writer;
};

static void append(struct client *self, struct tr_context *ctx)
{
    struct message m = { .id = ledger_new(), .client = self->index };
    int rc = ledger_sent(m.id,
        tr_ask(ctx, self->writer, &m, sizeof m, &(struct tr_ask_options){ .tag = TAG_REPLY }));

    if (rc < 0)
        CHECK_EQ_INT(tr_after(ctx, 5 * MS, TAG_AGAIN, NULL), 0);
}

static int client_start(void *state, struct tr_context *ctx)
{
    append(state, ctx);
    return 0;
}

static enum tr_next client_event(void *state, struct tr_context *ctx, const struct tr_event *event)
{
    struct client *self = state;
    uint64_t sequence;

    if (event->kind == TR_EVENT_REPLY && event->status == 0) {
        memcpy(&sequence, event->value, sizeof sequence);
        CHECK_MSG(now.synced[sequence], "honest: record %llu is answered and not synced",
            (unsigned long long)sequence);
        if (sequence > now.answered)
            now.answered = sequence;
        if (--self->left == 0) {
            now.done++;
            tr_sender_drop(&self->writer);
            return TR_GO;
        }
    }
    if (event->kind == TR_EVENT_REPLY && event->status < 0) {
        CHECK_MSG(event->status == TR_ECRASHED || event->status == TR_EDROPPED,
            "an append ends with %s", tr_error_name(event->status));
        CHECK_EQ_INT(tr_after(ctx, 2 * MS, TAG_AGAIN, NULL), 0);
        return TR_GO;
    }
    append(self, ctx);
    return TR_GO;
}

static enum tr_next handle_nothing(void *state, struct tr_context *ctx, void *message)
{
    (void)state;
    (void)ctx;
    (void)message;
    return TR_GO;
}

static void client_finish(void *state)
{
    tr_sender_drop(&((struct client *)state)->writer);
}

static const struct tr_type client_type = {
    .name = "client",
    .message_size = sizeof(struct message),
    .state_size = sizeof(struct client),
    .start = client_start,
    .handle = handle_nothing,
    .event = client_event,
    .finish = client_finish,
};

/* ---- the run -------------------------------------------------------------------------------- */

static uint64_t run(uint64_t seed)
{
    struct scenario *s = &now.s;
    static const struct writer fresh;
    static struct tr_child child;
    static struct tr_supervisor table;
    struct tr_disk_faults faults;
    uint32_t rounds;
    struct tr_file *file;
    uint64_t sequence, offset;

    memset(&now, 0, sizeof now);
    scenario_begin(s, seed, NULL);
    now.clients = between(s, 1, CLIENTS_MAX);
    now.quota = between(s, 5, 40);
    faults = (struct tr_disk_faults){ .eio_per_million = below(s, 3) * 20000,
        .short_per_million = below(s, 3) * 20000,
        .bytes_max = percent(s, 20) ? 20000 : 0 };
    child = (struct tr_child){ .name = "writer",
        .type = &writer_type,
        .state = &fresh,
        .backoff_ns_min = 1 * MS,
        .backoff_ns_max = 8 * MS,
        .jitter_percent = 50,
        .ret_sender = &now.writer };
    table = (struct tr_supervisor){ .name = "disk",
        .children = &child,
        .child_count = 1,
        .restarts_max = 100000,
        .window_ns = MS };
    CHECK_EQ_INT(tr_supervise(s->system, &table, "scenario", &now.root), 0);
    for (uint32_t i = 0; i < now.clients; i++) {
        struct client client = {
            .index = i, .left = now.quota, .writer = tr_sender_clone(now.writer, "client")
        };

        CHECK_EQ_INT(tr_spawn(s->system, &client_type, &client, NULL, &now.client_senders[i]), 0);
    }
    rounds = between(s, 5, 40);
    for (uint32_t i = 0; i < rounds; i++) {
        if (percent(s, 20))
            tr_sim_disk_faults(s->sim, percent(s, 50) ? &faults : &(struct tr_disk_faults){ 0 });
        scenario_run(s, below(s, 40));
        if (percent(s, 25)) {
            tr_sim_disk_crash(s->sim);
            seen.crashes++;
        }
        if (percent(s, 10) && now.done < now.clients)
            tr_kill(tr_sender_weaken(now.writer));
    }
    /* The disk is well again. */
    tr_sim_disk_faults(s->sim, &(struct tr_disk_faults){ 0 });
    CHECK_MSG(scenario_run(s, STEPS_MAX), "liveness: still busy after %d steps", STEPS_MAX);
    check_nothing_queued(s);
    CHECK_MSG(
        now.done == now.clients, "liveness: %u of %u clients are through", now.done, now.clients);
    tr_sender_drop(&now.writer);
    tr_sender_drop(&now.root);
    for (uint32_t i = 0; i < now.clients; i++)
        tr_sender_drop(&now.client_senders[i]);
    scenario_rest(s);
    CHECK_MSG(now.works == now.works_back, "work: %u of %u pieces", now.works_back, now.works);
    /* One more power cut, and what was answered is still there. */
    tr_sim_disk_crash(s->sim);
    CHECK_EQ_INT(env()->disk->open(env()->disk_data, path, TR_OPEN_READ, &file), 0);
    CHECK_EQ_INT(scan(file, &sequence, &offset), 0);
    env()->disk->close(file);
    CHECK_MSG(sequence >= now.answered && now.answered >= now.quota,
        "durable: %llu were answered, %llu are there", (unsigned long long)now.answered,
        (unsigned long long)sequence);
    return scenario_end(s);
}

TEST_LONG(disk, keeps_what_was_synced_and_only_whole_records, 120)
{
    for (uint64_t seed; check_each_seed(&seed, 2000);)
        run(seed);
    scenario_report();
    printf("%llu power cuts, %llu recoveries, %llu torn tails, %llu failed writes, %llu rewrites\n",
        (unsigned long long)seen.crashes, (unsigned long long)seen.recoveries,
        (unsigned long long)seen.torn_tails, (unsigned long long)seen.failures,
        (unsigned long long)seen.rewrites);
    CHECK_COVERED(seen.crashes, 1000);
    CHECK_COVERED(seen.torn_tails, 50);
    CHECK_COVERED(seen.failures, 500);
    CHECK_COVERED(seen.rewrites, 500);
}

TEST_LONG(disk, equal_seeds_give_equal_traces, 60)
{
    check_traces(run, 25);
}
