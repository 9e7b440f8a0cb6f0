/* SPDX-License-Identifier: Apache-2.0 */
/* convo_slot.c: where an actor keeps its conversation. An idle one sleeps in one packed block.
 *
 *   asleep ──an act──▶ awake ──nothing is under way──▶ asleep
 *
 * Asleep it is a zero byte, flags, the id's size and the id, then its memory, with numbers of seven
 * bits a byte. Awake it is a struct convo whose texts stay in the packed block. Neither move reads
 * the database: a conversation that is used now and then costs a microsecond more, and a hundred
 * thousand idle ones cost little. A conversation with many members stays awake: packing them would
 * cost more than it saves. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "services/delivery/convo/convo.h"
#include "services/delivery/delivery_metrics.h"
#include "services/delivery/mls/mls_check.h"

enum { MEMBERS_MAX = 16 };        /* packed in a microsecond or two */
enum { FLAGS_AT = 1, ID_AT = 3 }; /* the id's size is the byte before the id */
enum { LOADED = 1, THERE = 2, NEWEST = 4, POLICY = 8 };
enum {
    PACKED_IN = 4, /* behind the two roles */
    PACKED_REMOVED = 8,
    PACKED_REPORTED = 16,
    PACKED_CREATOR = 32, /* its DID is the creator's */
};

_Static_assert(ACT_CONVO_SIZE_MAX < 256, "the size of an id is a byte");

/* ---- numbers and bytes ---------------------------------------------------------------------- */

/* Without `bytes` it only counts. */
struct packer {
    unsigned char *bytes;
    size_t size;
};

static void pack_byte(struct packer *packer, unsigned byte)
{
    if (packer->bytes != NULL)
        packer->bytes[packer->size] = (unsigned char)byte;
    packer->size++;
}

static void pack_number(struct packer *packer, uint64_t number)
{
    for (; number >= 0x80; number >>= 7)
        pack_byte(packer, (unsigned)(number & 0x7f) | 0x80);
    pack_byte(packer, (unsigned)number);
}

/* Numbers near zero are short, of either sign. */
static void pack_signed(struct packer *packer, int64_t number)
{
    pack_number(packer, (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0));
}

static void pack_bytes(struct packer *packer, const void *bytes, size_t size)
{
    if (packer->bytes != NULL && size > 0)
        memcpy(packer->bytes + packer->size, bytes, size);
    packer->size += size;
}

static void pack_span(struct packer *packer, struct span span)
{
    pack_number(packer, span.size);
    pack_bytes(packer, span.at, span.size);
}

static uint64_t take_number(const unsigned char **at)
{
    uint64_t number = 0;
    unsigned shift = 0;

    for (; (**at & 0x80) != 0; shift += 7)
        number |= (uint64_t)(*(*at)++ & 0x7f) << shift;
    return number | (uint64_t)(*(*at)++) << shift;
}

static int64_t take_signed(const unsigned char **at)
{
    uint64_t number = take_number(at);

    return (int64_t)(number >> 1 ^ ((number & 1) != 0 ? UINT64_MAX : 0));
}

static void take_bytes(const unsigned char **at, void *bytes, size_t size)
{
    memcpy(bytes, *at, size);
    *at += size;
}

static struct span take_span(const unsigned char **at)
{
    size_t size = (size_t)take_number(at);
    struct span span = { (const char *)*at, size };

    *at += size;
    return span;
}

/* ---- packing -------------------------------------------------------------------------------- */

static unsigned flags_of(const struct convo *convo)
{
    unsigned flags = LOADED;

    if (convo->state != CONVO_LIVE)
        return 0;
    if (!convo->is_there)
        return flags;
    flags |= THERE;
    if (convo->newest.is_there)
        flags |= NEWEST;
    if (memcmp(&convo->policy, &policy_default, sizeof convo->policy) != 0)
        flags |= POLICY;
    return flags;
}

static void pack_member(
    struct packer *packer, const struct convo *convo, const struct member *member)
{
    bool is_creator = span_equal(member_did(member), convo->texts.creator);

    pack_byte(packer, member->roles | (member->is_in ? PACKED_IN : 0) |
                          (member->was_removed ? PACKED_REMOVED : 0) |
                          (member->has_reported ? PACKED_REPORTED : 0) |
                          (is_creator ? PACKED_CREATOR : 0));
    if (!is_creator)
        pack_span(packer, member_did(member));
    pack_number(packer, member->join_seq);
    pack_number(packer, member->read_seq);
    pack_signed(packer, member->joined_ms);
    pack_signed(packer, member->left_ms);
    pack_signed(packer, member->quarantined_until_ms);
}

static void pack_point(struct packer *packer, const struct convo_point *point)
{
    pack_number(packer, point->epoch);
    pack_number(packer, point->seq);
    pack_number(packer, point->confirmed);
    pack_number(packer, (unsigned)point->kind);
    pack_bytes(packer, point->chain, sizeof point->chain);
}

static void pack_texts(struct packer *packer, const struct convo_texts *texts)
{
    const struct mls_suite *suite = mls_suite_named(texts->suite);

    pack_number(packer, suite == NULL ? 0 : suite->id);
    if (suite == NULL)
        pack_span(packer, texts->suite);
    pack_span(packer, texts->creator);
    pack_span(packer, texts->name);
    pack_span(packer, texts->description);
    pack_span(packer, texts->group_id);
    pack_span(packer, texts->group_name);
}

static void pack_convo(struct packer *packer, const struct convo *convo)
{
    unsigned flags = flags_of(convo);

    pack_byte(packer, 0);
    pack_byte(packer, flags);
    pack_byte(packer, (unsigned)convo->texts.id.size);
    pack_bytes(packer, convo->texts.id.at, convo->texts.id.size);
    if ((flags & THERE) == 0)
        return;
    pack_point(packer, &convo->committed);
    pack_number(packer, convo->roster.in_count); /* convo_slot_show() reads it without unpacking */
    pack_number(packer, convo->kept.from);
    pack_number(packer, convo->kept.trims);
    pack_number(packer, convo->roster.count);
    pack_texts(packer, &convo->texts);
    pack_signed(packer, convo->created_ms);
    pack_signed(packer, convo->active_ms);
    pack_span(packer, (struct span){ convo->revoked.bytes, convo->revoked.size });
    for (int i = 0; i < POLICY_FIELDS && (flags & POLICY) != 0; i++)
        pack_signed(packer, convo->policy.fields[i]);
    for (uint32_t i = 0; i < convo->roster.count; i++)
        pack_member(packer, convo, &convo->roster.members[i]);
    if ((flags & NEWEST) == 0)
        return;
    pack_number(packer, convo->newest.sender);
    pack_number(packer, convo->newest.seq);
    pack_number(packer, convo->newest.base_epoch);
    pack_bytes(packer, convo->newest.sha256, sizeof convo->newest.sha256);
}

/* ---- unpacking ------------------------------------------------------------------------------ */

static void take_point(const unsigned char **at, struct convo_point *point)
{
    point->epoch = take_number(at);
    point->seq = take_number(at);
    point->confirmed = take_number(at);
    point->kind = (int)take_number(at);
    take_bytes(at, point->chain, sizeof point->chain);
}

static void take_kept(const unsigned char **at, struct convo_kept *kept)
{
    kept->from = take_number(at);
    kept->trims = take_number(at);
}

static void take_texts(const unsigned char **at, struct convo_texts *texts)
{
    uint16_t suite = (uint16_t)take_number(at);

    texts->suite = suite == 0 ? take_span(at) : span_of(mls_suite_of(suite)->name);
    texts->creator = take_span(at);
    texts->name = take_span(at);
    texts->description = take_span(at);
    texts->group_id = take_span(at);
    texts->group_name = take_span(at);
}

static int take_member(const unsigned char **at, struct convo *convo)
{
    unsigned flags = *(*at)++;
    struct span did = (flags & PACKED_CREATOR) != 0 ? convo->texts.creator : take_span(at);
    struct member *member = roster_get(&convo->roster, did);

    if (member == NULL)
        return TR_ENOMEM;
    member->roles = (uint8_t)(flags & (MEMBER_ADMIN | MEMBER_MODERATOR));
    member->was_removed = (flags & PACKED_REMOVED) != 0;
    member->has_reported = (flags & PACKED_REPORTED) != 0;
    member->join_seq = take_number(at);
    member->read_seq = take_number(at);
    member->joined_ms = take_signed(at);
    member->left_ms = take_signed(at);
    member->quarantined_until_ms = take_signed(at);
    roster_apply(&convo->roster, member, (flags & PACKED_IN) != 0);
    roster_plan(&convo->roster, member, member->is_in);
    return 0;
}

static int unpack_convo(struct convo *convo, const unsigned char *packed)
{
    const unsigned char *at = packed + ID_AT;
    unsigned flags = packed[FLAGS_AT];
    uint32_t count;
    struct span revoked;
    int rc = 0;

    convo->texts.id = (struct span){ (const char *)at, packed[ID_AT - 1] };
    convo->state = (flags & LOADED) != 0 ? CONVO_LIVE : CONVO_UNLOADED;
    convo->is_there = (flags & LOADED) != 0 && (flags & THERE) != 0;
    convo->policy = policy_default;
    if (!convo->is_there)
        return 0;
    at += convo->texts.id.size;
    take_point(&at, &convo->committed);
    (void)take_number(&at);
    take_kept(&at, &convo->kept);
    count = (uint32_t)take_number(&at);
    take_texts(&at, &convo->texts);
    convo->created_ms = take_signed(&at);
    convo->active_ms = take_signed(&at);
    revoked = take_span(&at);
    if (revoked.size > 0)
        rc = buffer_span(&convo->revoked, revoked);
    for (int i = 0; i < POLICY_FIELDS && (flags & POLICY) != 0; i++)
        convo->policy.fields[i] = take_signed(&at);
    roster_expect(&convo->roster, count);
    for (uint32_t i = 0; i < count && rc == 0; i++)
        rc = take_member(&at, convo);
    if (rc < 0)
        return rc;
    convo->planned = convo->committed;
    convo->newest.is_there = (flags & NEWEST) != 0;
    if (!convo->newest.is_there)
        return 0;
    convo->newest.sender = (uint32_t)take_number(&at);
    convo->newest.seq = take_number(&at);
    convo->newest.base_epoch = take_number(&at);
    take_bytes(&at, convo->newest.sha256, sizeof convo->newest.sha256);
    return 0;
}

/* ---- the view of a sleeping conversation -------------------------------------------------------- */

static void skip_numbers(const unsigned char **at, int count)
{
    for (; count > 0; count--)
        (void)take_number(at);
}

static void skip_spans(const unsigned char **at, int count)
{
    for (; count > 0; count--)
        (void)take_span(at);
}

/* Walks the members in the order of pack_member(). */
static bool is_packed_in(
    const unsigned char *at, uint32_t count, struct span creator, struct span did)
{
    for (; count > 0; count--) {
        unsigned flags = *at++;

        if (span_equal((flags & PACKED_CREATOR) != 0 ? creator : take_span(&at), did))
            return (flags & PACKED_IN) != 0;
        skip_numbers(&at, 5);
    }
    return false;
}

bool convo_slot_view(const struct convo_slot *slot, struct span caller, struct convo_view *ret_view)
{
    const unsigned char *at = slot->self;
    unsigned flags = at[FLAGS_AT];
    struct convo_point point;
    struct span creator;
    uint32_t count;

    if (convo_slot_awake(slot) != NULL || (flags & (LOADED | THERE)) != (LOADED | THERE))
        return false;
    at += ID_AT + at[ID_AT - 1];
    take_point(&at, &point);
    skip_numbers(&at, 1);
    take_kept(&at, &ret_view->kept);
    count = (uint32_t)take_number(&at);
    if (take_number(&at) == 0) /* the suite: see pack_texts() */
        skip_spans(&at, 1);
    creator = take_span(&at);
    skip_spans(&at, 4);
    skip_numbers(&at, 2);
    skip_spans(&at, 1);
    skip_numbers(&at, (flags & POLICY) != 0 ? POLICY_FIELDS : 0);
    ret_view->epoch = point.epoch;
    ret_view->seq = point.seq;
    ret_view->is_in = is_packed_in(at, count, creator, caller);
    return true;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static void move_text(char **at, struct span *text)
{
    if (text->size > 0)
        memcpy(*at, text->at, text->size);
    text->at = *at;
    *at += text->size;
}

int convo_set_texts(struct convo *convo, const struct convo_texts *texts)
{
    struct convo_texts copy = *texts;
    struct span *const all[] = { &copy.id, &copy.suite, &copy.creator, &copy.name,
        &copy.description, &copy.group_id, &copy.group_name };
    size_t size = 0;
    char *block, *at;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        size += all[i]->size;
    block = at = base_alloc(size);
    if (block == NULL)
        return TR_ENOMEM;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        move_text(&at, all[i]);
    base_free(convo->text_block);
    convo->text_block = block;
    convo->texts = copy;
    return 0;
}

/* ---- the slot ------------------------------------------------------------------------------- */

int convo_slot_make(void *data, const void *key, size_t key_size, void *memory)
{
    struct convo_slot *slot = memory;
    unsigned char *packed;

    if (key_size == 0 || key_size > ACT_CONVO_SIZE_MAX)
        return TR_EINVAL;
    packed = base_calloc(ID_AT + key_size);
    if (packed == NULL)
        return TR_ENOMEM;
    packed[ID_AT - 1] = (unsigned char)key_size;
    memcpy(packed + ID_AT, key, key_size);
    *slot = (struct convo_slot){ .delivery = data, .self = packed };
    delivery_metrics_add(DELIVERY_METRIC_SPAWNS, 1);
    return 0;
}

struct convo *convo_slot_awake(const struct convo_slot *slot)
{
    return *(const unsigned char *)slot->self == 0 ? NULL : slot->self;
}

struct convo *convo_slot_wake(struct convo_slot *slot)
{
    struct convo *convo = convo_slot_awake(slot);

    tr_assert(slot->self != NULL);
    if (convo != NULL)
        return convo;
    convo = base_calloc(sizeof *convo);
    if (convo == NULL)
        return NULL;
    convo->is_awake = true;
    convo->delivery = slot->delivery;
    if (unpack_convo(convo, slot->self) < 0) {
        convo_fini(convo);
        base_free(convo);
        return NULL;
    }
    convo->text_block = slot->self;
    sql_client_init(&convo->sql, slot->delivery->sql);
    slot->self = convo;
    return convo;
}

static bool is_resting(const struct convo *convo)
{
    return (convo->state == CONVO_LIVE || convo->state == CONVO_UNLOADED) &&
           convo->flying.first == NULL && convo->waiting.first == NULL && convo->looking == NULL &&
           !convo->is_exclusive && convo->subscribers == NULL && convo->losers == NULL &&
           convo->sql.waiting == NULL;
}

void convo_slot_rest(struct convo_slot *slot)
{
    struct convo *convo = convo_slot_awake(slot);
    struct packer packer = { NULL, 0 };
    size_t size;

    if (convo == NULL || !is_resting(convo) || convo->roster.count > MEMBERS_MAX)
        return;
    tr_assert(convo->state != CONVO_LIVE || convo->planned.seq == convo->committed.seq);
    pack_convo(&packer, convo);
    packer.bytes = base_alloc(packer.size);
    if (packer.bytes == NULL)
        return;
    size = packer.size;
    packer.size = 0;
    pack_convo(&packer, convo);
    tr_assert(packer.size == size);
    convo_fini(convo);
    base_free(convo);
    slot->self = packer.bytes;
}

void convo_slot_forget(struct convo_slot *slot)
{
    struct convo *convo = convo_slot_awake(slot);
    struct convo fresh = { .is_awake = true, .delivery = slot->delivery };

    if (convo == NULL) {
        ((unsigned char *)slot->self)[FLAGS_AT] = 0;
        return;
    }
    fresh.text_block = convo->text_block;
    fresh.texts.id = convo->texts.id;
    fresh.policy = policy_default;
    convo->text_block = NULL; /* the fresh one keeps its id there */
    convo_fini(convo);
    sql_client_init(&fresh.sql, slot->delivery->sql);
    *convo = fresh;
}

void convo_slot_fini(struct convo_slot *slot)
{
    struct convo *convo = slot->self == NULL ? NULL : convo_slot_awake(slot);

    if (convo != NULL)
        convo_fini(convo);
    base_free(slot->self);
    slot->self = NULL;
}

static void show_point(const struct convo *convo, uint32_t members, char *text, size_t size)
{
    (void)snprintf(text, size, "epoch %llu, seq %llu, %u members, %u in flight, %u waiting",
        (unsigned long long)convo->committed.epoch, (unsigned long long)convo->committed.seq,
        members, convo->flying.count, convo->waiting.count);
}

void convo_slot_show(const struct convo_slot *slot, char *text, size_t size)
{
    const struct convo *convo = convo_slot_awake(slot);
    const unsigned char *at = slot->self;
    struct convo asleep = { 0 };

    if (convo != NULL) {
        show_point(convo, convo->roster.in_count, text, size);
        return;
    }
    if ((at[FLAGS_AT] & (LOADED | THERE)) == (LOADED | THERE)) {
        at += ID_AT + at[ID_AT - 1];
        take_point(&at, &asleep.committed);
        show_point(&asleep, (uint32_t)take_number(&at), text, size);
    } else {
        show_point(&asleep, 0, text, size);
    }
}
