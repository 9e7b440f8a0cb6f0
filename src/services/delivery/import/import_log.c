/* SPDX-License-Identifier: Apache-2.0 */
/* import_log.c: the messages and commits of a conversation. A Catbird server numbered both without
 * reading them, and its database allows a number to occur twice.
 *
 * - Sequence numbers are kept. The second row of a number, and the rows after it, move up, never
 *   down: a client that resumes from an old cursor sees some rows again and misses none.
 * - The bytes decide the kind and the epoch of a row. Of several commits of one epoch the first is
 *   the one that members could process; the others are stored as revoked and never delivered.
 * - The conversation's epoch is the highest that a member has reached, not the server's count of
 *   commits, which every losing commit advanced.
 * - A row can claim any epoch. The import ignores an epoch that the server never reached.
 *
 * Rows come in the order of their numbers. Times become places in that order: the import passes
 * `points`, sorted by time, while it reads rows. */
#include "base/assert.h"
#include "crypto/digest.h"
#include "services/delivery/api/api.h"
#include "services/delivery/convo/receipt.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"
#include "services/delivery/mls/mls_message.h"
#include "services/delivery/store/schema.h"

/* A commit's timestamp may be a moment after the removal it made. */
enum { REMOVAL_MS = 2000 };
/* The last number in use when all rows were deleted and the old numbers are lost: above any cursor. */
enum { SEQ_AFTER_LOSS = 1000000 };

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

/* Points up to this row's time lie before it. */
static void pass_points(struct import_convo *convo, const struct row *row)
{
    /* A member from before the oldest row may have been there for deleted ones. */
    uint64_t before = convo->rows == 0 ? 0 : convo->last_seq;

    if (row->created_ms > convo->newest_ms || convo->rows == 0)
        convo->newest_ms = row->created_ms;
    for (; convo->point < convo->end && convo->point->from_ms <= convo->newest_ms; convo->point++) {
        const struct import_point *point = convo->point;
        bool is_removal = point->is_leave && row->kind == MLS_COMMIT &&
                          row->created_ms >= point->from_ms - 1 &&
                          row->created_ms - point->from_ms < REMOVAL_MS;

        *point->seq = is_removal ? row->seq : before;
    }
}

/* Finds the read position behind which the member's unread application messages lie. */
static uint64_t count_back(const struct import_convo *convo, const struct import_person *person)
{
    uint64_t wanted = (uint64_t)person->unread; /* -1 is more than there are */

    tr_assert(wanted > 0);
    if (wanted > convo->recent_count || wanted > IMPORT_RECENT_MAX)
        return person->join_seq;
    return convo->recent[(convo->recent_count - wanted) % IMPORT_RECENT_MAX] - 1;
}

/* Sets join_seq, leave_seq and read_seq of all members after the log was read. */
static void place_all(struct import_convo *convo)
{
    for (; convo->point < convo->end; convo->point++)
        *convo->point->seq = convo->last_seq;
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        struct import_person *person = import_person(convo, i);

        if (convo->rows == 0)
            person->join_seq = person->leave_seq = convo->last_seq;
        if (person->unread == 0 || convo->rows == 0)
            person->read_seq = convo->last_seq;
        else if (person->read_ms < 0)
            person->read_seq = count_back(convo, person);
        if (person->leave_seq < person->join_seq)
            person->leave_seq = person->join_seq;
        if (person->read_seq < person->join_seq)
            person->read_seq = person->join_seq;
        tr_assert(person->leave_seq <= convo->last_seq && person->read_seq <= convo->last_seq);
    }
}

/* ---- the kind of a row ----------------------------------------------------------------------- */

/* Adds a commit's base epoch. TR_EEXIST: there was one. */
static int add_base(struct import_convo *convo, uint64_t base)
{
    size_t count = convo->bases.size / sizeof base, at = count;
    uint64_t *bases = (uint64_t *)(void *)convo->bases.bytes;

    while (at > 0 && bases[at - 1] > base) /* commits come nearly in order */
        at--;
    if (at > 0 && bases[at - 1] == base)
        return TR_EEXIST;
    if (buffer_append(&convo->bases, &base, sizeof base) < 0)
        return convo->bases.failed;
    bases = (uint64_t *)(void *)convo->bases.bytes;
    tr_assert(at <= count);
    memmove(&bases[at + 1], &bases[at], (count - at) * sizeof base);
    bases[at] = base;
    return 0;
}

static void note_epoch(struct import_convo *convo, uint64_t epoch)
{
    if (epoch > convo->epoch)
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
    } else {
        rc = add_base(convo, row->base_epoch);
        convo->lost += rc == TR_EEXIST;
        if (rc == 0) {
            row->kind = MLS_COMMIT;
            note_epoch(convo, row->epoch);
        }
    }
    return rc == TR_EEXIST ? 0 : rc;
}

static bool read_row(struct span bytes, struct mls_message *ret_message)
{
    return mls_envelope_read(bytes, ret_message) == NULL &&
           (ret_message->wire == MLS_PUBLIC || ret_message->wire == MLS_PRIVATE) &&
           ret_message->epoch < INT64_MAX - 1;
}

static int decide_row(struct import_convo *convo, const PGresult *from, struct row *row)
{
    bool is_commit = span_is(source_bytes(from, "message_type"), "commit");
    int64_t said = source_int_or(from, "epoch", 0);
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
static int put_row(struct import_convo *convo, const PGresult *from, const struct row *row)
{
    struct span sender = mls_identity_did(source_bytes(from, "sender_did"), NULL);
    bool has_name = source_bytes(from, "msg_id").at != NULL;
    struct span id = source_bytes(from, has_name ? "msg_id" : "id");
    struct buffer op = { 0 };
    int rc;

    buffer_text(&op, has_name ? "msg:" : "id:");
    buffer_span(&op, sender);
    buffer_text(&op, ":");
    rc = buffer_span(&op, id);
    if (rc == 0)
        rc = import_step(convo->run, CATBIRD_MESSAGES, &import_put_log, 1,
            VALUES(VALUE_TEXT(convo->id), VALUE_INT(row->seq), VALUE_INT(row->kind),
                VALUE_INT(row->base_epoch), VALUE_INT(row->epoch), VALUE_TEXT(sender),
                VALUE_TEXT(((struct span){ row->kind <= MLS_COMMIT ? op.bytes : NULL, op.size })),
                VALUE_ARRAY(row->sha256), VALUE_BYTES(row->bytes), VALUE_INT(row->created_ms),
                VALUE_BLOB(row->kind == MLS_COMMIT ? convo->chain : NULL, sizeof convo->chain),
                VALUE_TEXT(id)));
    buffer_free(&op);
    return rc;
}

static int64_t time_of(const struct import_convo *convo, const PGresult *from)
{
    int64_t before_ms = convo->rows == 0 ? convo->created_ms : convo->newest_ms;

    if (source_bytes(from, "created_at").at == NULL &&
        source_bytes(from, "received_bucket_ts").at != NULL)
        return source_int_or(from, "received_bucket_ts", 0) * 1000;
    return source_int_or(from, "created_at", before_ms);
}

/* Returns the row's own number, or the next free one. */
static uint64_t number_of(struct import_convo *convo, const PGresult *from)
{
    int64_t said = source_int_or(from, "seq", 0);
    uint64_t next = convo->rows == 0 ? 1 : convo->last_seq + 1;
    uint64_t seq = said > 0 && (uint64_t)said > next ? (uint64_t)said : next;

    if (said != (int64_t)seq)
        convo->moved++;
    if (convo->rows > 0)
        convo->missing += seq - next;
    return seq;
}

static int on_message(void *data, PGresult *from)
{
    struct import_convo *convo = data;
    struct row row = { .bytes = source_bytes(from, "ciphertext") };
    int rc;

    if (row.bytes.size == 0)
        return import_fate(convo->run, CATBIRD_MESSAGES, "has no bytes", 1);
    if (row.bytes.size > MESSAGE_SIZE_MAX)
        return import_fate(convo->run, CATBIRD_MESSAGES, "is larger than 10 MiB", 1);
    row.created_ms = time_of(convo, from);
    row.seq = number_of(convo, from);
    crypto_sha256(row.bytes.at, row.bytes.size, row.sha256);
    rc = decide_row(convo, from, &row);
    if (rc < 0)
        return rc;
    pass_points(convo, &row);
    tr_assert(convo->rows == 0 || row.seq > convo->last_seq);
    if (convo->rows++ == 0)
        convo->first_seq = row.seq;
    convo->last_seq = row.seq;
    if (row.kind == MLS_COMMIT)
        receipt_extend(
            convo->chain, &(struct receipt_row){
                              .seq = row.seq, .base_epoch = row.base_epoch, .sha256 = row.sha256 });
    if (row.kind == MLS_APPLICATION)
        convo->recent[convo->recent_count++ % IMPORT_RECENT_MAX] = row.seq;
    return put_row(convo, from, &row);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int on_newest(void *data, PGresult *from)
{
    struct import_convo *convo = data;
    struct mls_message message;

    if (convo->group_id.size == 0 && read_row(source_bytes(from, "ciphertext"), &message))
        return buffer_span(&convo->group_id, message.group_id);
    return 0;
}

static void report_log(struct import_convo *convo)
{
    const struct {
        uint64_t count;
        const char *text;
    } counts[] = {
        { convo->lost, "commits of an epoch that another had won: kept as revoked" },
        { convo->unreached, "commits of an epoch that was never reached: kept as revoked" },
        { convo->former, "commits of another group: kept as those of a former one" },
        { convo->unreadable, "rows hold no MLS message: kept as they are" },
        { convo->moved, "rows have a new number, because theirs was used before or missing" },
        { convo->missing, "sequence numbers are missing: `troupe check` will say so" },
    };
    const uint64_t *bases = (const uint64_t *)(const void *)convo->bases.bytes;
    size_t count = convo->bases.size / sizeof *bases;
    uint64_t newest = count == 0 ? 0 : bases[count - 1];
    uint64_t spread = count == 0 ? 0 : newest - bases[0] + 1;

    if (convo->epoch != (uint64_t)convo->source_epoch)
        import_finding(convo->run, convo->id,
            "the server counted to epoch %lld, its members reached %llu: that is taken",
            (long long)convo->source_epoch, (unsigned long long)convo->epoch);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].count > 0)
            import_finding(convo->run, convo->id, "%llu %s", (unsigned long long)counts[i].count,
                counts[i].text);
    if (spread > count)
        import_finding(convo->run, convo->id,
            "commits of %llu epochs are missing: `troupe check` will say so",
            (unsigned long long)(spread - count));
    if (count > 0 && newest + 1 != convo->epoch)
        import_finding(convo->run, convo->id,
            "its newest commit leads to epoch %llu, not %llu: `troupe check` will say so",
            (unsigned long long)newest + 1, (unsigned long long)convo->epoch);
}

int import_log(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    int64_t highest;
    int rc = source_number(run, "SELECT max(epoch)::bigint FROM messages WHERE convo_id::text = $1",
        convo->id.at, &highest);

    if (highest > (int64_t)convo->epoch_max)
        convo->epoch_max = (uint64_t)highest;
    if (rc == 0 && convo->group_id.size == 0)
        rc =
            source_each(run, CATBIRD_MESSAGES, convo->id.at, "seq DESC LIMIT 20", on_newest, convo);
    if (rc == 0) /* by number; within one, the lower epoch first, and commits before other rows */
        rc = source_each(run, CATBIRD_MESSAGES, convo->id.at,
            "seq, epoch, message_type DESC NULLS LAST, created_at, id", on_message, convo);
    if (rc < 0)
        return rc;
    if (!convo->has_epoch)
        convo->epoch = (uint64_t)convo->source_epoch;
    if (convo->rows == 0) {
        convo->last_seq = convo->epoch == 0 ? 1 : SEQ_AFTER_LOSS;
        convo->first_seq = convo->last_seq + 1;
        if (convo->epoch > 0)
            import_finding(run, convo->id,
                "its messages are all deleted, and their numbers lost: the next is %d",
                SEQ_AFTER_LOSS + 1);
    }
    report_log(convo);
    place_all(convo);
    return 0;
}
