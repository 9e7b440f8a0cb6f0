/* SPDX-License-Identifier: Apache-2.0 */
/* import_log.c: the messages and commits of a conversation. A Catbird server numbered both without
 * reading them, and its database allows a number to occur twice.
 *
 * - Sequence numbers are kept. The second row of a number, and the rows after it, move up, never
 * down: a client that resumes from an old cursor sees some rows again and misses none.
 * - The bytes decide the kind and the epoch of a row. Of several commits of one epoch the first is
 * the one that members could process; the others are stored as revoked and never delivered.
 * - The conversation's epoch is the highest that a member has reached, not the server's count of
 * commits, which every losing commit advanced.
 * - A row can claim any epoch. The import ignores an epoch that the server never reached.
 *
 * Rows come in the order of their numbers. Times become places in that order: the import passes
 * `points`, sorted by time, while it reads rows. */
#include "base/alloc.h"
#include "crypto/digest.h"
#include "services/delivery/api/api.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"
#include "services/delivery/mls/mls_message.h"
#include "services/delivery/store/schema.h"

/* A commit's timestamp may be a moment after the removal it made. */
enum { REMOVAL_MS = 2000 };
/* The first number when all rows were deleted and the old numbers are lost: above any cursor. */
enum { SEQ_AFTER_LOSS = 1000000 };
enum { BASES_MAX = 1 << 24 };

struct row {
    struct span bytes;
    int64_t created_ms;
    uint64_t seq;
    int kind;
    uint64_t base_epoch;
    uint64_t epoch;
    unsigned char sha256[32];
};

/* ---- intervals of membership ----------------------------------------------------------------- */

static void place_point(struct import_convo *convo, const struct import_point *point,
    uint64_t before, uint64_t leave_seq)
{
    struct import_person *person = &convo->persons[point->person];

    if (point->kind == POINT_JOIN)
        person->join_seq = before;
    else if (point->kind == POINT_LEAVE)
        person->leave_seq = leave_seq;
    else
        person->read_seq = before;
}

/* Points up to this row's time lie before it. */
static void pass_points(struct import_convo *convo, const struct row *row)
{
    /* A member from before the oldest row may have been there for deleted ones. */
    uint64_t before = convo->rows == 0 ? 0 : convo->last_seq;

    if (row->created_ms > convo->newest_ms || convo->rows == 0)
        convo->newest_ms = row->created_ms;
    while (convo->point_next < convo->point_count &&
           convo->points[convo->point_next].from_ms <= convo->newest_ms) {
        const struct import_point *point = &convo->points[convo->point_next++];
        bool is_removal = row->kind == MLS_COMMIT && row->created_ms >= point->from_ms - 1 &&
                          row->created_ms - point->from_ms < REMOVAL_MS;

        place_point(convo, point, before, is_removal ? row->seq : before);
    }
}

/* Finds the read position behind which `unread` application messages lie. */
static uint64_t count_back(const struct import_convo *convo, int64_t unread, uint64_t join_seq)
{
    uint64_t wanted = (uint64_t)unread;

    if (wanted == 0)
        return convo->last_seq;
    if (wanted > convo->recent_count || wanted > IMPORT_RECENT_MAX)
        return join_seq;
    return convo->recent[(convo->recent_count - wanted) % IMPORT_RECENT_MAX] - 1;
}

void import_log_place_all(struct import_convo *convo)
{
    while (convo->point_next < convo->point_count)
        place_point(convo, &convo->points[convo->point_next++], convo->last_seq, convo->last_seq);
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        struct import_person *person = &convo->persons[i];
        bool is_known = person->read_ms >= 0 || person->cursor_ms >= 0;

        if (convo->rows == 0)
            person->join_seq = person->leave_seq = convo->last_seq;
        if (person->unread == 0 || convo->rows == 0)
            person->read_seq = convo->last_seq;
        else if (!is_known)
            person->read_seq = person->unread > 0
                                   ? count_back(convo, person->unread, person->join_seq)
                                   : person->join_seq;
        if (person->leave_seq < person->join_seq)
            person->leave_seq = person->join_seq;
        if (person->read_seq < person->join_seq)
            person->read_seq = person->join_seq;
    }
}

/* ---- the kind of a row ----------------------------------------------------------------------- */

/* Adds a commit's base epoch. Returns false if there was one. *ret_rc: out of memory. */
static bool add_base(struct import_convo *convo, uint64_t base, int *ret_rc)
{
    uint32_t low = 0, high = convo->base_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (convo->bases[middle] < base)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < convo->base_count && convo->bases[low] == base)
        return false;
    if (convo->base_count == convo->base_capacity) {
        uint32_t capacity = convo->base_capacity == 0 ? 64 : convo->base_capacity * 2;
        uint64_t *bases = capacity > BASES_MAX
                              ? NULL
                              : base_realloc(convo->bases, capacity * sizeof *convo->bases);

        if (bases == NULL) {
            *ret_rc = TR_ENOMEM;
            return false;
        }
        convo->bases = bases;
        convo->base_capacity = capacity;
    }
    memmove(&convo->bases[low + 1], &convo->bases[low],
        (convo->base_count - low) * sizeof *convo->bases);
    convo->bases[low] = base;
    convo->base_count++;
    return true;
}

static void note_epoch(struct import_convo *convo, uint64_t epoch)
{
    if (!convo->has_epoch || epoch > convo->epoch)
        convo->epoch = epoch;
    convo->has_epoch = true;
}

static bool is_of_group(const struct import_convo *convo, struct span group_id)
{
    return convo->group_id.size == 0 ||
           span_equal(group_id, (struct span){ convo->group_id.bytes, convo->group_id.size });
}

static int decide_commit(
    struct import_convo *convo, const struct mls_message *message, struct row *row)
{
    int rc = 0;

    row->base_epoch = message->epoch;
    row->epoch = message->epoch + 1;
    row->kind = LOG_REVOKED;
    if (!is_of_group(convo, message->group_id)) {
        row->kind = LOG_FORMER;
        convo->former++;
    } else if (row->epoch > convo->epoch_max) {
        convo->unreached++;
    } else if (add_base(convo, row->base_epoch, &rc)) {
        row->kind = MLS_COMMIT;
        note_epoch(convo, row->epoch);
    } else if (rc == 0) {
        convo->lost++;
    }
    return rc;
}

static bool read_row(struct span bytes, struct mls_message *ret_message)
{
    struct span inside;

    return mls_envelope_open(bytes, &inside) == NULL &&
           mls_message_read(inside, ret_message) == NULL &&
           (ret_message->wire == MLS_PUBLIC || ret_message->wire == MLS_PRIVATE) &&
           ret_message->epoch < INT64_MAX - 1;
}

static int decide_row(struct import_convo *convo, const struct source_row *from, struct row *row)
{
    bool is_commit = span_is(source_bytes(from, MESSAGE_TYPE), "commit");
    int64_t said = source_int(from, MESSAGE_EPOCH);
    struct mls_message message;

    if (!read_row(row->bytes, &message)) {
        convo->unreadable++;
        row->kind = is_commit ? LOG_REVOKED : MLS_APPLICATION;
        row->epoch = said < 0 ? 0 : (uint64_t)said;
        row->base_epoch = is_commit && row->epoch > 0 ? row->epoch - 1 : row->epoch;
        return 0;
    }
    if (message.content == MLS_COMMIT)
        return decide_commit(convo, &message, row);
    row->kind = (int)message.content;
    row->base_epoch = row->epoch = message.epoch;
    if (is_of_group(convo, message.group_id) && message.epoch <= convo->epoch_max)
        note_epoch(convo, message.epoch);
    return 0;
}

/* ---- storing -------------------------------------------------------------------------------- */

/* Names the row as sendMessage does: `msg`, sender, id. So a repeated request gets the first
 * answer. */
static int put_row(struct import_convo *convo, const struct source_row *from, const struct row *row)
{
    struct import_run *run = convo->run;
    struct span sender = import_bare_did(source_bytes(from, MESSAGE_SENDER));
    struct span id = source_bytes(from, MESSAGE_GIVEN_ID);
    const char *kind = id.at != NULL ? "msg" : "id";
    struct buffer op = { 0 };

    if (sender.at == NULL)
        sender = SPAN("");
    if (id.at == NULL)
        id = source_bytes(from, MESSAGE_ID);
    buffer_format(&op, "%s:%.*s:", kind, (int)sender.size, sender.at);
    buffer_span(&op, id);
    if (op.failed != 0) {
        buffer_free(&op);
        return TR_ENOMEM;
    }
    import_step(run, &import_put_log, 1);
    import_text(run, import_id(convo));
    import_int(run, (int64_t)row->seq);
    import_int(run, row->kind);
    import_int(run, (int64_t)row->base_epoch);
    import_int(run, (int64_t)row->epoch);
    import_text(run, sender);
    import_text(run,
        row->kind <= MLS_COMMIT ? (struct span){ op.bytes, op.size } : (struct span){ NULL, 0 });
    import_blob(run, (struct span){ (const char *)row->sha256, sizeof row->sha256 });
    import_blob(run, row->bytes);
    import_int(run, row->created_ms);
    import_blob(run, row->kind == MLS_COMMIT
                         ? (struct span){ (const char *)convo->chain, sizeof convo->chain }
                         : (struct span){ NULL, 0 });
    import_text(run, id);
    buffer_free(&op);
    return import_store(run, false);
}

static int64_t time_of(const struct import_convo *convo, const struct source_row *from)
{
    if (!source_is_null(from, MESSAGE_CREATED))
        return source_int(from, MESSAGE_CREATED);
    if (!source_is_null(from, MESSAGE_BUCKET))
        return source_int(from, MESSAGE_BUCKET) * 1000;
    return convo->rows == 0 ? convo->created_ms : convo->newest_ms;
}

/* Returns the row's own number, or the next free one. */
static uint64_t number_of(struct import_convo *convo, const struct source_row *from)
{
    int64_t said = source_int(from, MESSAGE_SEQ);
    uint64_t next = convo->rows == 0 ? 1 : convo->last_seq + 1;
    uint64_t seq = said > 0 && (uint64_t)said > next ? (uint64_t)said : next;

    if (said != (int64_t)seq)
        convo->moved++;
    if (convo->rows > 0)
        convo->missing += seq - next;
    return seq;
}

static int on_message(void *data, const struct source_row *from)
{
    struct import_convo *convo = data;
    struct row row = { .bytes = source_bytes(from, MESSAGE_BYTES) };
    int rc;

    if (row.bytes.at == NULL || row.bytes.size == 0) {
        import_fate(convo->run, CATBIRD_MESSAGES, "has no bytes", 1);
        return 0;
    }
    if (row.bytes.size > MESSAGE_SIZE_MAX) {
        import_fate(convo->run, CATBIRD_MESSAGES, "is larger than 10 MiB", 1);
        return 0;
    }
    row.created_ms = time_of(convo, from);
    row.seq = number_of(convo, from);
    crypto_sha256(row.bytes.at, row.bytes.size, row.sha256);
    rc = decide_row(convo, from, &row);
    if (rc < 0)
        return rc;
    pass_points(convo, &row);
    if (convo->rows++ == 0)
        convo->first_seq = row.seq;
    convo->last_seq = row.seq;
    if (row.kind == MLS_COMMIT)
        receipt_extend(
            convo->chain, &(struct receipt_row){
                              .seq = row.seq, .base_epoch = row.base_epoch, .sha256 = row.sha256 });
    if (row.kind == MLS_APPLICATION)
        convo->recent[convo->recent_count++ % IMPORT_RECENT_MAX] = row.seq;
    import_fate(convo->run, CATBIRD_MESSAGES, NULL, 1);
    return put_row(convo, from, &row);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int on_highest(void *data, const struct source_row *from)
{
    struct import_convo *convo = data;

    if (source_int(from, 0) > (int64_t)convo->epoch_max)
        convo->epoch_max = (uint64_t)source_int(from, 0);
    return 0;
}

static int on_newest(void *data, const struct source_row *from)
{
    struct import_convo *convo = data;
    struct mls_message message;

    if (convo->group_id.size == 0 && read_row(source_bytes(from, MESSAGE_BYTES), &message))
        return buffer_span(&convo->group_id, message.group_id);
    return 0;
}

static void report_row(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    struct span id = import_id(convo);
    uint64_t spread =
        convo->base_count == 0 ? 0 : convo->bases[convo->base_count - 1] - convo->bases[0] + 1;

    if (convo->epoch != (uint64_t)convo->source_epoch)
        import_finding(run, id,
            "the server counted to epoch %lld, its members reached %llu: that is taken",
            (long long)convo->source_epoch, (unsigned long long)convo->epoch);
    if (convo->lost > 0)
        import_finding(run, id, "%llu commits of an epoch that another had won: kept as revoked",
            (unsigned long long)convo->lost);
    if (convo->unreached > 0)
        import_finding(run, id, "%llu commits of an epoch that was never reached: kept as revoked",
            (unsigned long long)convo->unreached);
    if (convo->former > 0)
        import_finding(run, id, "%llu commits of another group: kept as those of a former one",
            (unsigned long long)convo->former);
    if (convo->unreadable > 0)
        import_finding(run, id, "%llu rows hold no MLS message: kept as they are",
            (unsigned long long)convo->unreadable);
    if (convo->moved > 0)
        import_finding(run, id,
            "%llu rows have a new number, because theirs was used before or missing",
            (unsigned long long)convo->moved);
    if (convo->missing > 0)
        import_finding(run, id, "%llu sequence numbers are missing: `troupe check` will say so",
            (unsigned long long)convo->missing);
    if (spread > convo->base_count)
        import_finding(run, id, "commits of %llu epochs are missing: `troupe check` will say so",
            (unsigned long long)(spread - convo->base_count));
    if (convo->base_count > 0 && convo->bases[convo->base_count - 1] + 1 != convo->epoch)
        import_finding(run, id,
            "its newest commit leads to epoch %llu, not %llu: `troupe check` will say so",
            (unsigned long long)convo->bases[convo->base_count - 1] + 1,
            (unsigned long long)convo->epoch);
}

int import_log(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    bool is_new;
    int rc;

    rc =
        source_ask(run->source, "SELECT max(epoch)::bigint FROM messages WHERE convo_id::text = $1",
            convo->id, on_highest, convo);
    if (rc == 0 && convo->group_id.size == 0)
        rc = import_select(run, CATBIRD_MESSAGES,
            "WHERE convo_id::text = $1 ORDER BY seq DESC LIMIT 20", convo->id, on_newest, convo);
    if (rc == 0) /* by number; within one, the epoch before the commit first */
        rc = import_select(run, CATBIRD_MESSAGES,
            "WHERE convo_id::text = $1 ORDER BY 6, 5, 4 DESC NULLS LAST, 9, 2", convo->id,
            on_message, convo);
    if (rc < 0)
        return rc;
    if (!convo->has_epoch)
        convo->epoch = (uint64_t)convo->source_epoch;
    is_new = convo->rows == 0 && convo->epoch == 0;
    if (convo->rows == 0) {
        convo->last_seq = is_new ? 1 : SEQ_AFTER_LOSS;
        convo->first_seq = convo->last_seq + 1;
        if (!is_new)
            import_finding(run, import_id(convo),
                "its messages are all deleted, and their numbers lost: goes on at %d",
                SEQ_AFTER_LOSS);
    }
    report_row(convo);
    import_log_place_all(convo);
    return 0;
}
