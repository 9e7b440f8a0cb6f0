/* SPDX-License-Identifier: Apache-2.0 */
/* import_convo.c: writes one conversation in this order: its row with the mark that it is begun,
 * its log, its Welcomes, facts of the row that the log revealed, its members, the mark that it is
 * whole. Any part may be in a unit of its own; without members no account has access. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "services/common/param.h"
#include "services/delivery/api/api.h"
#include "services/delivery/convo/act.h"
#include "services/delivery/import/import_run.h"
#include "services/delivery/import/import_store.h"
#include "services/delivery/mls/mls_check.h"
#include "services/delivery/store/schema.h"

enum { PERSONS_MAX = 100000, RULE_DAYS_MAX = 3650 };

SQL_STATEMENT(
    end_mark, "UPDATE audit SET action = 'import' WHERE id = $1 AND action = 'importBegun'");

/* ---- its row -------------------------------------------------------------------------------- */

static int copy_text(struct buffer *to, struct span from, size_t size_max)
{
    if (from.size > size_max)
        from.size = size_max;
    return from.at == NULL ? 0 : buffer_span(to, from);
}

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

static int on_convo(void *data, const struct source_row *row)
{
    struct import_convo *convo = data;
    int64_t created_ms = source_int(row, CONVO_CREATED);

    convo->is_there = true;
    convo->is_remote = source_int(row, CONVO_IS_REMOTE) != 0;
    convo->source_epoch = source_int(row, CONVO_EPOCH) < 0 ? 0 : source_int(row, CONVO_EPOCH);
    convo->epoch_max = (uint64_t)convo->source_epoch;
    convo->created_ms =
        source_is_null(row, CONVO_CREATED) ? convo->run->import->now_ms : created_ms;
    convo->active_ms = source_is_null(row, CONVO_UPDATED) ? 0 : source_int(row, CONVO_UPDATED);
    copy_text(&convo->creator, import_bare_did(source_bytes(row, CONVO_CREATOR)), DID_SIZE_MAX);
    copy_text(&convo->name, cut_text(source_bytes(row, CONVO_NAME), 128), 128);
    copy_text(&convo->description, cut_text(source_bytes(row, CONVO_TEXT), 512), 512);
    copy_text(&convo->suite, source_bytes(row, CONVO_SUITE), 63);
    if (source_bytes(row, CONVO_INFO).size <= GROUP_INFO_SIZE_MAX)
        copy_text(&convo->group_info, source_bytes(row, CONVO_INFO), GROUP_INFO_SIZE_MAX);
    return convo->creator.failed != 0 || convo->name.failed != 0 ||
                   convo->description.failed != 0 || convo->suite.failed != 0 ||
                   convo->group_info.failed != 0
               ? TR_ENOMEM
               : 0;
}

/* The group info has the group's id, its suite, and an epoch that a member has reached. */
static int read_group_info(struct import_convo *convo)
{
    struct mls_group_info info;
    const struct mls_suite *suite;
    bool is_checked;
    const char *wrong;

    if (convo->group_info.size == 0)
        return 0;
    wrong = mls_group_info_read(
        (struct span){ convo->group_info.bytes, convo->group_info.size }, &info);
    if (wrong == NULL)
        wrong = mls_group_info_check(&info, &is_checked);
    if (wrong != NULL) {
        import_finding(convo->run, import_id(convo), "its group info is left out: %s", wrong);
        buffer_free(&convo->group_info);
        return 0;
    }
    convo->group_info_epoch = info.context.epoch;
    suite = mls_suite_of(info.context.suite);
    if (suite != NULL &&
        !span_is((struct span){ convo->suite.bytes, convo->suite.size }, suite->name)) {
        /* Later messages are checked against the suite, so take the members' own. */
        if (convo->suite.size > 0)
            import_finding(convo->run, import_id(convo),
                "its cipher suite is said to be another than its group info has: %s", suite->name);
        buffer_clear(&convo->suite);
        buffer_text(&convo->suite, suite->name);
    }
    if (info.context.epoch <= (uint64_t)convo->source_epoch) {
        convo->epoch = info.context.epoch;
        convo->has_epoch = true;
    }
    buffer_span(&convo->group_id, info.context.group_id);
    return convo->group_id.failed != 0 ? TR_ENOMEM : convo->suite.failed;
}

static int on_policy(void *data, const struct source_row *row)
{
    struct import_convo *convo = data;

    for (uint32_t i = RULE_MEMBERS_MAX; i <= RULE_REJOIN_DAYS; i++)
        convo->rules[i] = source_is_null(row, i) ? -1 : source_int(row, i);
    import_fate(convo->run, CATBIRD_POLICIES, NULL, 1);
    return 0;
}

/* ---- its members: a row per device there, one per person here ------------------------------- */

struct span import_bare_did(struct span did)
{
    const char *end = did.at == NULL ? NULL : memchr(did.at, '#', did.size);

    return end == NULL ? did : (struct span){ did.at, (size_t)(end - did.at) };
}

static struct import_person *person_of(struct import_convo *convo, struct span did)
{
    uint32_t known = convo->roster.count;
    struct member *member = roster_get(&convo->roster, did);
    uint32_t index;

    if (member == NULL)
        return NULL;
    index = (uint32_t)(member - convo->roster.members);
    if (convo->roster.count > convo->person_capacity) {
        uint32_t capacity = convo->person_capacity == 0 ? 16 : convo->person_capacity * 2;
        struct import_person *persons =
            base_realloc(convo->persons, capacity * sizeof *convo->persons);

        if (persons == NULL)
            return NULL;
        convo->persons = persons;
        convo->person_capacity = capacity;
    }
    if (convo->roster.count > known)
        convo->persons[index] = (struct import_person){
            .joined_ms = INT64_MAX, .read_ms = -1, .cursor_ms = -1, .unread = -1
        };
    return &convo->persons[index];
}

static void least_time(int64_t *value, int64_t other)
{
    if (*value < 0 || other < *value)
        *value = other;
}

static void most_time(int64_t *value, int64_t other)
{
    if (other > *value)
        *value = other;
}

static int on_member(void *data, const struct source_row *row)
{
    struct import_convo *convo = data;
    struct span user = source_bytes(row, MEMBER_USER);
    struct span did = import_bare_did(user.size > 0 ? user : source_bytes(row, MEMBER_DID));
    bool is_in = source_is_null(row, MEMBER_LEFT);
    struct import_person *person;
    int64_t joined_ms;

    if (did.size < DID_SIZE_MIN || did.size > DID_SIZE_MAX) {
        import_fate(convo->run, CATBIRD_MEMBERS, "has no DID", 1);
        return 0;
    }
    if (convo->roster.count >= PERSONS_MAX)
        return TR_ELIMIT;
    person = person_of(convo, did);
    if (person == NULL)
        return TR_ENOMEM;
    joined_ms = source_is_null(row, MEMBER_JOINED) ? 0 : source_int(row, MEMBER_JOINED);
    if (joined_ms < person->joined_ms)
        person->joined_ms = joined_ms;
    if (!is_in)
        most_time(&person->left_ms, source_int(row, MEMBER_LEFT));
    person->is_in = person->is_in || is_in;
    if (is_in) { /* a device that left has no role */
        person->is_admin = person->is_admin || source_int(row, MEMBER_IS_ADMIN) != 0;
        person->is_moderator = person->is_moderator || source_int(row, MEMBER_IS_MODERATOR) != 0;
        if (!source_is_null(row, MEMBER_READ))
            most_time(&person->read_ms, source_int(row, MEMBER_READ));
        if (!source_is_null(row, MEMBER_UNREAD) && source_int(row, MEMBER_UNREAD) >= 0)
            least_time(&person->unread, source_int(row, MEMBER_UNREAD));
    }
    import_fate(convo->run, CATBIRD_MEMBERS, NULL, 1);
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

static int on_cursor(void *data, const struct source_row *row)
{
    struct import_convo *convo = data;
    struct span did = import_bare_did(source_bytes(row, CURSOR_USER));
    int64_t seen_ms = time_of_ulid(source_bytes(row, CURSOR_SEEN));
    const char *reason = NULL;

    if (did.size == 0 || roster_find(&convo->roster, did) == NULL)
        reason = "is of somebody who is no member";
    else if (seen_ms < 0)
        reason = "is no ULID";
    else
        most_time(&person_of(convo, did)->cursor_ms, seen_ms);
    import_fate(convo->run, CATBIRD_CURSORS, reason, 1);
    return 0;
}

static int compare_points(const void *a, const void *b)
{
    const struct import_point *one = a, *other = b;

    return (one->from_ms > other->from_ms) - (one->from_ms < other->from_ms);
}

static int make_points(struct import_convo *convo)
{
    uint32_t count = 0;

    if (convo->roster.count == 0)
        return 0;
    convo->points = base_alloc(sizeof *convo->points * 3 * convo->roster.count);
    if (convo->points == NULL)
        return TR_ENOMEM;
    for (uint32_t i = 0; i < convo->roster.count; i++) {
        const struct import_person *person = &convo->persons[i];
        int64_t read_ms = person->read_ms >= 0 ? person->read_ms : person->cursor_ms;

        convo->points[count++] = (struct import_point){ person->joined_ms, i, POINT_JOIN };
        if (!person->is_in)
            convo->points[count++] = (struct import_point){ person->left_ms + 1, i, POINT_LEAVE };
        if (read_ms >= 0)
            convo->points[count++] = (struct import_point){ read_ms + 1, i, POINT_READ };
    }
    convo->point_count = count;
    qsort(convo->points, count, sizeof *convo->points, compare_points);
    return 0;
}

/* ---- storing -------------------------------------------------------------------------------- */

static struct span or_empty(const struct buffer *text)
{
    return text->size == 0 ? SPAN("") : (struct span){ text->bytes, text->size };
}

static struct span or_absent(const struct buffer *text)
{
    return text->size == 0 ? (struct span){ NULL, 0 } : (struct span){ text->bytes, text->size };
}

static void put_mark_id(struct import_convo *convo)
{
    char mark[sizeof convo->id + 8];
    int size = snprintf(mark, sizeof mark, "import:%s", convo->id);

    import_text(convo->run, (struct span){ mark, (size_t)size });
}

static int convo_begin_import(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    const int64_t *rules = convo->rules;
    int64_t days = rules[RULE_REJOIN_DAYS];

    import_step(run, &import_put_mark, 1);
    put_mark_id(convo);
    import_text(run, import_id(convo));
    import_int(run, run->import->now_ms);
    import_step(run, &import_put_convo, 1);
    import_text(run, import_id(convo));
    import_text(run, or_empty(&convo->suite));
    import_text(run, or_empty(&convo->creator));
    import_text(run, or_absent(&convo->name));
    import_text(run, or_absent(&convo->description));
    import_int(run, convo->created_ms);
    import_int(run, rules[RULE_INVITE] > 0);
    import_int(run, rules[RULE_EXTERNAL] != 0);
    import_int(run, days < 0 ? 30 : (days > RULE_DAYS_MAX ? RULE_DAYS_MAX : days));
    import_int(run, rules[RULE_MEMBERS_MAX] > 0 ? rules[RULE_MEMBERS_MAX] : 0);
    return import_store(run, false);
}

static void finish_row(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    int64_t active_ms = convo->rows > 0 ? convo->newest_ms : convo->active_ms;

    if (convo->group_info.size > 0 && convo->group_info_epoch > convo->epoch) {
        import_finding(run, import_id(convo), "its group info is of epoch %llu: left out",
            (unsigned long long)convo->group_info_epoch);
        buffer_free(&convo->group_info);
    }
    import_step(run, &import_set_convo, 1);
    import_text(run, import_id(convo));
    import_int(run, (int64_t)convo->epoch);
    import_int(run, (int64_t)convo->last_seq);
    import_int(run, (int64_t)convo->first_seq);
    import_int(run, active_ms > convo->created_ms ? active_ms : convo->created_ms);
    import_blob(run, or_absent(&convo->group_id));
    import_blob(run, or_absent(&convo->group_info));
    if (convo->group_info.size > 0)
        import_int(run, (int64_t)convo->group_info_epoch);
    else
        import_null(run);
    import_blob(run, convo->base_count > 0
                         ? (struct span){ (const char *)convo->chain, sizeof convo->chain }
                         : (struct span){ NULL, 0 });
}

static int put_members(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < convo->roster.count; i++) {
        const struct import_person *person = &convo->persons[i];

        import_step(run, &import_put_member, 1);
        import_text(run, import_id(convo));
        import_text(run, member_did(&convo->roster.members[i]));
        import_int(run, (int64_t)person->join_seq);
        if (person->is_in)
            import_null(run);
        else
            import_int(run, (int64_t)person->leave_seq);
        import_int(run, person->joined_ms);
        import_int(run, person->is_admin);
        import_int(run, person->is_moderator);
        import_int(run, (int64_t)person->read_seq);
        if (person->is_in)
            import_null(run);
        else
            import_int(run, person->left_ms);
        import_int(run, !person->is_in);
        rc = import_store(run, false);
    }
    return rc;
}

static int convo_end_import(struct import_convo *convo)
{
    int rc;

    finish_row(convo);
    rc = put_members(convo);
    if (rc < 0)
        return rc;
    import_step(convo->run, &end_mark, 1);
    put_mark_id(convo);
    return import_store(convo->run, false);
}

/* ---- what an earlier run left --------------------------------------------------------------- */

static int count_rows(struct import_convo *convo, int64_t *ret_rows)
{
    struct sql_unit *unit = sql_unit_create(0);
    int rc;

    if (unit == NULL)
        return TR_ENOMEM;
    sql_unit_step(unit, &import_count_log, 1);
    sql_unit_text(unit, import_id(convo));
    rc = sql_read_wait(convo->run->import->sql, unit);
    if (rc == 0)
        *ret_rows = sql_row_int(unit, 0, 0, 0);
    sql_unit_destroy(unit);
    return rc;
}

static int convo_forget_import(struct import_convo *convo)
{
    static const struct sql_statement *const statements[] = { &import_forget_targets,
        &import_forget_welcomes, &import_forget_members, &import_forget_convo };
    struct import_run *run = convo->run;
    int64_t rows = 0;
    int rc = count_rows(convo, &rows);

    for (; rc == 0 && rows > 0; rows -= 1000) {
        import_step(run, &import_forget_log, SQL_ROWS_ANY);
        import_text(run, import_id(convo));
        rc = import_store(run, true);
    }
    for (size_t i = 0; rc == 0 && i < sizeof statements / sizeof statements[0]; i++) {
        import_step(run, statements[i], SQL_ROWS_ANY);
        import_text(run, import_id(convo));
    }
    import_step(run, &import_forget_mark, 1);
    put_mark_id(convo);
    return rc < 0 ? rc : import_store(run, true);
}

/* ---- all of it ------------------------------------------------------------------------------ */

static int read_people(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    int rc = import_select(run, CATBIRD_MEMBERS, "WHERE convo_id::text = $1 ORDER BY 4, 2",
        convo->id, on_member, convo);

    if (rc == 0)
        rc = import_select(
            run, CATBIRD_CURSORS, "WHERE convo_id::text = $1", convo->id, on_cursor, convo);
    if (rc == 0)
        rc = import_select(
            run, CATBIRD_POLICIES, "WHERE convo_id::text = $1", convo->id, on_policy, convo);
    if (rc == TR_ELIMIT)
        (void)snprintf(run->why, run->why_size, "conversation %s has more than %d members",
            convo->id, PERSONS_MAX);
    return rc < 0 ? rc : make_points(convo);
}

static int run_all(struct import_convo *convo)
{
    struct import_run *run = convo->run;
    int rc = read_group_info(convo);

    if (rc == 0 && convo->suite.size == 0) {
        import_finding(run, import_id(convo), "its cipher suite is not known: that of all others");
        rc = buffer_text(&convo->suite, "MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519");
    }
    if (rc == 0)
        rc = read_people(convo);
    if (rc == 0)
        rc = convo_begin_import(convo);
    if (rc == 0)
        rc = import_log(convo);
    if (rc == 0)
        rc = import_welcomes(convo);
    return rc < 0 ? rc : convo_end_import(convo);
}

static void free_convo(struct import_convo *convo)
{
    buffer_free(&convo->creator);
    buffer_free(&convo->name);
    buffer_free(&convo->description);
    buffer_free(&convo->suite);
    buffer_free(&convo->group_info);
    buffer_free(&convo->group_id);
    roster_free(&convo->roster);
    base_free(convo->persons);
    base_free(convo->points);
    base_free(convo->bases);
    base_free(convo);
}

int import_convo(struct import_run *run, struct span id, bool is_begun)
{
    struct import_convo *convo = base_calloc(sizeof *convo);
    int rc = 0;

    if (convo == NULL)
        return TR_ENOMEM;
    convo->run = run;
    convo->id_size = id.size;
    memcpy(convo->id, id.at, id.size); /* the caller has checked its size */
    for (uint32_t i = 0; i < 5; i++)
        convo->rules[i] = -1;
    if (is_begun)
        rc = convo_forget_import(convo);
    if (rc == 0)
        rc = import_select(
            run, CATBIRD_CONVERSATIONS, "WHERE id::text = $1", convo->id, on_convo, convo);
    if (rc == 0 && !convo->is_there)
        rc = TR_EIO; /* it was listed in the same transaction */
    if (rc == 0 && convo->is_remote) {
        import_fate(run, CATBIRD_CONVERSATIONS, "is sequenced by another server", 1);
        rc = TR_ENOENT;
    } else if (rc == 0) {
        rc = run_all(convo);
        import_fate(run, CATBIRD_CONVERSATIONS, NULL, 1);
    }
    free_convo(convo);
    return rc;
}
