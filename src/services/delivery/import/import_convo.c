/* SPDX-License-Identifier: Apache-2.0 */
/* import_convo.c: writes one conversation in this order: its row with the mark that it is begun,
 * its log, its Welcomes, facts of the row that the log revealed, its members, the mark that it is
 * whole. Any part may be in a unit of its own; without members no account has access. */
#include <libpq-fe.h>
#include <stdlib.h>

#include "base/assert.h"
#include "services/common/param.h"
#include "services/delivery/api/api.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"
#include "services/delivery/mls/mls_check.h"

enum { PERSONS_MAX = 100000, RULE_DAYS_MAX = 3650 };

/* ---- its row -------------------------------------------------------------------------------- */

/* Cuts a text to `size_max` bytes without splitting a character. */
static struct span cut_text(struct span text, size_t size_max)
{
    if (text.size <= size_max)
        return text;
    text.size = size_max;
    while (text.size > 0 && ((unsigned char)text.at[text.size] & 0xc0) == 0x80)
        text.size--;
    return text;
}

static int read_row(struct import_convo *convo)
{
    int rc = source_each(
        convo->run, CATBIRD_CONVERSATIONS, convo->id.at, NULL, source_keep, &convo->row);
    int64_t epoch = source_int_or(convo->row, "current_epoch", 0);

    if (rc < 0 || PQntuples(convo->row) == 0) /* it was listed in the same transaction */
        return rc < 0 ? rc : TR_EIO;
    if (source_int_or(convo->row, "is_remote", 0) != 0) {
        import_fate(convo->run, CATBIRD_CONVERSATIONS, "is sequenced by another server", 1);
        return TR_ENOENT;
    }
    convo->source_epoch = epoch < 0 ? 0 : epoch;
    convo->epoch_max = (uint64_t)convo->source_epoch;
    convo->created_ms = source_int_or(convo->row, "created_at", convo->run->import->now_ms);
    convo->suite = cut_text(source_bytes(convo->row, "cipher_suite"), 63);
    return 0;
}

/* The group info has the group's id, its suite, and an epoch that a member has reached. */
static int read_group_info(struct import_convo *convo)
{
    struct span bytes = source_bytes(convo->row, "group_info");
    struct mls_group_info info;
    const struct mls_suite *suite;
    const char *wrong;

    if (bytes.size == 0 || bytes.size > GROUP_INFO_SIZE_MAX)
        return 0;
    wrong = mls_group_info_read(bytes, &info);
    if (wrong == NULL)
        wrong = mls_group_info_check(&info);
    if (wrong != NULL) {
        import_finding(convo->run, convo->id, "its group info is left out: %s", wrong);
        return 0;
    }
    convo->group_info = bytes;
    convo->group_info_epoch = info.context.epoch;
    suite = mls_suite_of(info.context.suite);
    tr_assert(suite != NULL); /* the check has found it */
    if (!span_is(convo->suite, suite->name)) {
        /* Later messages are checked against the suite, so take the members' own. */
        if (convo->suite.size > 0)
            import_finding(convo->run, convo->id,
                "its cipher suite is said to be another than its group info has: %s", suite->name);
        convo->suite = span_of(suite->name);
    }
    if (info.context.epoch <= (uint64_t)convo->source_epoch) {
        convo->epoch = info.context.epoch;
        convo->has_epoch = true;
    }
    return buffer_span(&convo->group_id, info.context.group_id);
}

/* ---- its members: a row per device there, one per person here ------------------------------- */

struct import_person *import_person_find(const struct import_convo *convo, struct span did)
{
    const struct member *member = did.size == 0 ? NULL : roster_find(&convo->roster, did);

    return member == NULL ? NULL : import_person(convo, (size_t)(member - convo->roster.members));
}

static struct import_person *person_add(struct import_convo *convo, struct span did)
{
    const struct import_person person = {
        .joined_ms = INT64_MAX, .read_ms = -1, .cursor_ms = -1, .unread = -1
    };

    if (roster_get(&convo->roster, did) == NULL ||
        buffer_append(&convo->persons, &person, sizeof person) < 0)
        return NULL;
    tr_assert(convo->persons.size == convo->roster.count * sizeof person);
    return import_person(convo, convo->roster.count - 1);
}

static void most_time(int64_t *value, int64_t other)
{
    if (other > *value)
        *value = other;
}

static int on_member(void *data, PGresult *row)
{
    struct import_convo *convo = data;
    struct span user = source_bytes(row, "user_did");
    struct span did =
        mls_identity_did(user.size > 0 ? user : source_bytes(row, "member_did"), NULL);
    struct import_person *person = import_person_find(convo, did);
    int64_t joined_ms = source_int_or(row, "joined_at", 0),
            unread = source_int_or(row, "unread_count", -1);

    if (did.size < DID_SIZE_MIN || did.size > DID_SIZE_MAX)
        return import_fate(convo->run, CATBIRD_MEMBERS, "has no DID", 1);
    import_fate(convo->run, CATBIRD_MEMBERS, NULL, 1);
    if (convo->roster.count >= PERSONS_MAX)
        return import_fail(convo->run, TR_ELIMIT, "conversation %s has more than %d members",
            convo->id.at, PERSONS_MAX);
    if (person == NULL)
        person = person_add(convo, did);
    if (person == NULL)
        return TR_ENOMEM;
    if (joined_ms < person->joined_ms)
        person->joined_ms = joined_ms;
    if (source_bytes(row, "left_at").at != NULL) { /* a device that left has no role */
        most_time(&person->left_ms, source_int_or(row, "left_at", 0));
        return 0;
    }
    person->is_in = true;
    person->is_admin |= source_int_or(row, "is_admin", 0) != 0;
    person->is_moderator |= source_int_or(row, "is_moderator", 0) != 0;
    most_time(&person->read_ms, source_int_or(row, "last_read_at", -1));
    if (unread >= 0 && (person->unread < 0 || unread < person->unread))
        person->unread = unread;
    return 0;
}

/* A ULID's first ten characters are its time in milliseconds. */
static int64_t time_of_ulid(struct span text)
{
    static const char digits[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    int64_t ms = 0;

    if (text.size != 26 || text.at[0] > '7')
        return -1;
    for (size_t i = 0; i < text.size; i++) {
        int c = text.at[i] >= 'a' && text.at[i] <= 'z' ? text.at[i] - 32 : text.at[i];
        const char *digit = c == '\0' ? NULL : strchr(digits, c);

        if (digit == NULL)
            return -1;
        if (i < 10)
            ms = ms * 32 + (digit - digits);
    }
    return ms;
}

static int on_cursor(void *data, PGresult *row)
{
    struct import_convo *convo = data;
    struct span did = mls_identity_did(source_bytes(row, "user_did"), NULL);
    struct import_person *person = import_person_find(convo, did);
    int64_t seen_ms = time_of_ulid(source_bytes(row, "last_seen_cursor"));

    if (person == NULL)
        return import_fate(convo->run, CATBIRD_CURSORS, "is of somebody who is no member", 1);
    if (seen_ms < 0)
        return import_fate(convo->run, CATBIRD_CURSORS, "is no ULID", 1);
    most_time(&person->cursor_ms, seen_ms);
    return import_fate(convo->run, CATBIRD_CURSORS, NULL, 1);
}

static int compare_points(const void *a, const void *b)
{
    const struct import_point *one = a, *other = b;

    return (one->from_ms > other->from_ms) - (one->from_ms < other->from_ms);
}

static void add_point(struct import_convo *convo, int64_t from_ms, uint64_t *seq, bool is_leave)
{
    const struct import_point point = { from_ms, seq, is_leave };

    tr_assert(seq != NULL);
    buffer_append(&convo->points, &point, sizeof point);
}

static int read_people(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    int rc =
        source_each(run, CATBIRD_MEMBERS, convo->id.at, "joined_at, member_did", on_member, convo);

    if (rc == 0)
        rc = source_each(run, CATBIRD_CURSORS, convo->id.at, NULL, on_cursor, convo);
    for (uint32_t i = 0; rc == 0 && i < convo->roster.count; i++) {
        struct import_person *person = import_person(convo, i);

        if (person->read_ms < 0)
            person->read_ms = person->cursor_ms;
        add_point(convo, person->joined_ms, &person->join_seq, false);
        if (!person->is_in)
            add_point(convo, person->left_ms + 1, &person->leave_seq, true);
        if (person->read_ms >= 0)
            add_point(convo, person->read_ms + 1, &person->read_seq, false);
    }
    if (rc < 0 || convo->points.failed < 0)
        return rc < 0 ? rc : convo->points.failed;
    convo->point = (struct import_point *)(void *)convo->points.bytes;
    convo->end = convo->point + convo->points.size / sizeof *convo->point;
    if (convo->point < convo->end)
        qsort(convo->point, (size_t)(convo->end - convo->point), sizeof *convo->point,
            compare_points);
    return 0;
}

/* ---- storing -------------------------------------------------------------------------------- */

static int put_row(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    PGresult *row = convo->row, *policy = NULL;
    int64_t days, members_max;
    int rc = source_each(run, CATBIRD_POLICIES, convo->id.at, NULL, source_keep, &policy);

    if (convo->suite.size == 0) {
        import_finding(run, convo->id, "its cipher suite is not known: that of all others");
        convo->suite = SPAN("MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519");
    }
    import_fate(run, CATBIRD_POLICIES, NULL, (uint64_t)PQntuples(policy));
    if (rc == 0)
        rc = import_step(run, IMPORT_NO_TABLE, &import_put_mark, 1,
            VALUES(VALUE_TEXT(convo->id), VALUE_INT(run->import->now_ms)));
    days = source_int_or(policy, "rejoin_window_days", -1);
    if (days < 0)
        days = 30;
    members_max = source_int_or(policy, "max_members", 0);
    if (rc == 0)
        rc = import_step(run, IMPORT_NO_TABLE, &import_put_convo, 1,
            VALUES(VALUE_TEXT(convo->id), VALUE_TEXT(convo->suite),
                VALUE_TEXT(cut_text(
                    mls_identity_did(source_bytes(row, "creator_did"), NULL), DID_SIZE_MAX)),
                VALUE_TEXT(cut_text(source_bytes(row, "name"), 128)),
                VALUE_TEXT(cut_text(source_bytes(row, "description"), 512)),
                VALUE_INT(convo->created_ms),
                VALUE_INT(source_int_or(policy, "require_invite_for_join", 0) > 0),
                VALUE_INT(source_int_or(policy, "allow_external_commits", 1) != 0),
                VALUE_INT(days > RULE_DAYS_MAX ? RULE_DAYS_MAX : days),
                VALUE_INT(members_max > 0 ? members_max : 0)));
    PQclear(policy);
    return rc;
}

static int finish_row(struct import_convo *convo)
{
    int64_t active_ms =
        convo->rows > 0 ? convo->newest_ms : source_int_or(convo->row, "updated_at", 0);

    if (convo->group_info.size > 0 && convo->group_info_epoch > convo->epoch) {
        import_finding(convo->run, convo->id, "its group info is of epoch %llu: left out",
            (unsigned long long)convo->group_info_epoch);
        convo->group_info = (struct span){ NULL, 0 };
    }
    return import_step(convo->run, IMPORT_NO_TABLE, &import_set_convo, 1,
        VALUES(VALUE_TEXT(convo->id), VALUE_INT(convo->epoch), VALUE_INT(convo->last_seq),
            VALUE_INT(convo->first_seq),
            VALUE_INT(active_ms > convo->created_ms ? active_ms : convo->created_ms),
            VALUE_BLOB(
                convo->group_id.size > 0 ? convo->group_id.bytes : NULL, convo->group_id.size),
            VALUE_BYTES(convo->group_info),
            VALUE_INT_IF(convo->group_info.size > 0, convo->group_info_epoch),
            VALUE_BLOB(convo->bases.size > 0 ? convo->chain : NULL, sizeof convo->chain)));
}

/* Adds the members and, at last, the mark that the conversation is whole. */
static int put_members(struct import_convo *convo)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < convo->roster.count; i++) {
        const struct import_person *person = import_person(convo, i);

        rc = import_step(convo->run, IMPORT_NO_TABLE, &import_put_member, 1,
            VALUES(VALUE_TEXT(convo->id), VALUE_TEXT(member_did(&convo->roster.members[i])),
                VALUE_INT(person->join_seq), VALUE_INT_IF(!person->is_in, person->leave_seq),
                VALUE_INT(person->joined_ms), VALUE_INT(person->is_admin),
                VALUE_INT(person->is_moderator), VALUE_INT(person->read_seq),
                VALUE_INT_IF(!person->is_in, person->left_ms), VALUE_INT(!person->is_in)));
    }
    if (rc < 0)
        return rc;
    return import_step(
        convo->run, CATBIRD_CONVERSATIONS, &import_end_mark, 1, VALUES(VALUE_TEXT(convo->id)));
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Deletes what an earlier run left. */
static int forget(struct import_convo *convo)
{
    static const struct sql_statement *const statements[] = { &import_forget_targets,
        &import_forget_welcomes, &import_forget_members, &import_forget_convo,
        &import_forget_mark };
    struct import_run *run = convo->run;
    int rc;

    tr_assert(!run->import->is_dry);
    do {
        rc = import_step(
            run, IMPORT_NO_TABLE, &import_forget_log, SQL_ROWS_ANY, VALUES(VALUE_TEXT(convo->id)));
        if (rc == 0)
            rc = import_flush(run);
    } while (rc == 0 && run->last_changed > 0);
    for (size_t i = 0; rc == 0 && i < sizeof statements / sizeof statements[0]; i++)
        rc = import_step(run, IMPORT_NO_TABLE, statements[i],
            statements[i] == &import_forget_mark ? 1 : SQL_ROWS_ANY, VALUES(VALUE_TEXT(convo->id)));
    return rc < 0 ? rc : import_flush(run);
}

int import_convo(struct import_run *run, struct span id, bool is_begun)
{
    static int (*const parts[])(struct import_convo * convo) = { read_row, read_group_info,
        read_people, put_row, import_log, import_welcomes, finish_row, put_members };
    struct import_convo convo = {
        .run = run, .id = id, .bases.size_max = IMPORT_BASES_MAX * sizeof(uint64_t)
    };
    int rc;

    tr_assert(id.size <= ACT_CONVO_SIZE_MAX && id.at[id.size] == '\0');
    rc = is_begun ? forget(&convo) : 0;
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof parts[0]; i++)
        rc = parts[i](&convo);
    PQclear(convo.row);
    buffer_free(&convo.group_id);
    roster_free(&convo.roster);
    buffer_free(&convo.persons);
    buffer_free(&convo.points);
    buffer_free(&convo.bases);
    return rc;
}
