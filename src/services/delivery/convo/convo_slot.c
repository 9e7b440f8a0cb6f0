/* SPDX-License-Identifier: Apache-2.0 */
/* convo_slot.c: where an actor keeps its conversation. An idle one sleeps in one packed block.
 *
 *   asleep ──an act that peek cannot answer──▶ awake ──nothing is under way──▶ asleep
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
enum { LOADED = 1, THERE = 2, POLICY = 4 };

_Static_assert(ACT_CONVO_SIZE_MAX < 256, "the size of an id is a byte");

/* ---- numbers and bytes ---------------------------------------------------------------------- */

/* Each function below describes a part of the packed form once: it counts the bytes of a value,
 * writes them, or reads the value from them. */
struct packer {
    unsigned char *bytes; /* NULL: count only */
    size_t size;
    bool is_reading;
};

static void pack_number(struct packer *packer, uint64_t *number)
{
    uint64_t left = *number;
    unsigned shift = 0;
    unsigned char byte;

    *number = 0;
    do {
        byte = (unsigned char)((left & 0x7f) | (left >= 0x80 ? 0x80 : 0));
        if (packer->is_reading)
            byte = packer->bytes[packer->size];
        else if (packer->bytes != NULL)
            packer->bytes[packer->size] = byte;
        packer->size++;
        *number |= (uint64_t)(byte & 0x7f) << shift;
        left >>= 7;
        shift += 7;
    } while ((byte & 0x80) != 0);
}

/* Packs a part of a struct that consists of 64-bit words. */
static void pack_words(struct packer *packer, void *self, size_t from, size_t to)
{
    uint64_t word;

    tr_assert(from % sizeof word == 0);
    tr_assert(to % sizeof word == 0);
    for (char *at = (char *)self + from; at < (char *)self + to; at += sizeof word) {
        memcpy(&word, at, sizeof word);
        pack_number(packer, &word);
        memcpy(at, &word, sizeof word);
    }
}

/* Packs span->size bytes; reading borrows them. */
static void pack_text(struct packer *packer, struct span *span)
{
    if (packer->is_reading)
        span->at = (const char *)packer->bytes + packer->size;
    else if (packer->bytes != NULL && span->at != NULL)
        memcpy(packer->bytes + packer->size, span->at, span->size);
    packer->size += span->size;
}

static void pack_span(struct packer *packer, struct span *span)
{
    uint64_t size = span->size;

    pack_number(packer, &size);
    span->size = (size_t)size;
    pack_text(packer, span);
}

/* ---- the packed form ------------------------------------------------------------------------ */

static unsigned flags_of(const struct convo *convo)
{
    if (convo->state != CONVO_LIVE)
        return 0;
    if (!convo->is_there)
        return LOADED;
    return LOADED | THERE |
           (memcmp(&convo->policy, &policy_default, sizeof policy_default) != 0 ? POLICY : 0u);
}

/* The packed block has a loaded conversation that exists. */
static bool packed_has_convo(const unsigned char *packed)
{
    return (packed[FLAGS_AT] & (LOADED | THERE)) == (LOADED | THERE);
}

/* Reads what follows the id. */
static struct packer packed_reader(unsigned char *packed)
{
    return (struct packer){
        .bytes = packed, .size = ID_AT + (size_t)packed[ID_AT - 1], .is_reading = true
    };
}

/* Packs what a view of a sleeping conversation needs. Returns the number of members, which
 * follow. */
static uint32_t pack_head(struct packer *packer, struct convo *convo)
{
    uint64_t in_count = convo->roster.in_count, count = convo->roster.count;

    pack_words(packer, convo, offsetof(struct convo, committed), offsetof(struct convo, planned));
    pack_number(packer, &in_count);
    pack_number(packer, &count);
    pack_span(packer, &convo->texts.creator);
    convo->roster.in_count = (uint32_t)in_count;
    return (uint32_t)count;
}

/* The creator's DID has size 0: the head has it. */
static void pack_member(
    struct packer *packer, struct span creator, struct member *copy, struct span *did)
{
    if (span_equal(*did, creator))
        copy->did_size = 0;
    pack_words(packer, copy, offsetof(struct member, did_size), sizeof *copy);
    did->size = copy->did_size;
    if (did->size == 0)
        *did = creator;
    else
        pack_text(packer, did);
}

/* TR_ENOMEM when reading. */
static int pack_members(struct packer *packer, struct convo *convo, uint32_t count)
{
    struct roster *roster = &convo->roster;

    if (packer->is_reading)
        roster_expect(roster, count);
    for (uint32_t i = 0; i < count; i++) {
        struct member copy = packer->is_reading ? (struct member){ 0 } : roster->members[i];
        struct span did = member_did(&copy);
        struct member *member;

        pack_member(packer, convo->texts.creator, &copy, &did);
        if (!packer->is_reading)
            continue;
        member = roster_get(roster, did);
        if (member == NULL)
            return TR_ENOMEM;
        copy.did = member->did;
        copy.did_size = member->did_size;
        copy.will_be_in = copy.is_in;
        *member = copy;
    }
    roster->will_count = roster->in_count; /* no unit is in flight */
    return 0;
}

/* A known suite is a number. */
static void pack_suite(struct packer *packer, struct span *name)
{
    const struct mls_suite *suite = mls_suite_named(*name);
    uint64_t id = suite == NULL ? 0 : suite->id;

    pack_number(packer, &id);
    if (id == 0)
        pack_span(packer, name);
    else
        *name = span_of(mls_suite_of((uint16_t)id)->name);
}

/* Packs everything after the id. TR_ENOMEM when reading. */
static int pack_known(struct packer *packer, struct convo *convo, unsigned flags)
{
    struct span revoked = { convo->revoked.bytes, convo->revoked.size };
    int rc = pack_members(packer, convo, pack_head(packer, convo));

    if (rc < 0)
        return rc;
    pack_suite(packer, &convo->texts.suite);
    pack_span(packer, &convo->texts.name);
    pack_span(packer, &convo->texts.description);
    pack_span(packer, &convo->texts.group_id);
    pack_span(packer, &convo->texts.group_name);
    if ((flags & POLICY) != 0)
        pack_words(packer, &convo->policy, 0, sizeof convo->policy);
    pack_span(packer, &revoked);
    return packer->is_reading && revoked.size > 0 ? buffer_span(&convo->revoked, revoked) : 0;
}

static void pack_convo(struct packer *packer, struct convo *convo)
{
    unsigned flags = flags_of(convo);

    if (packer->bytes != NULL) {
        packer->bytes[0] = 0;
        packer->bytes[FLAGS_AT] = (unsigned char)flags;
        packer->bytes[ID_AT - 1] = (unsigned char)convo->texts.id.size;
    }
    packer->size = ID_AT;
    pack_text(packer, &convo->texts.id);
    if ((flags & THERE) != 0)
        (void)pack_known(packer, convo, flags);
}

static int unpack_convo(struct convo *convo, unsigned char *packed)
{
    struct packer packer = packed_reader(packed);
    int rc;

    convo->texts.id = (struct span){ (const char *)packed + ID_AT, packed[ID_AT - 1] };
    convo->state = (packed[FLAGS_AT] & LOADED) != 0 ? CONVO_LIVE : CONVO_UNLOADED;
    convo->is_there = packed_has_convo(packed);
    if (!convo->is_there)
        return 0;
    rc = pack_known(&packer, convo, packed[FLAGS_AT]);
    convo->planned = convo->committed;
    return rc;
}

bool convo_slot_view(const struct convo_slot *slot, struct span caller, struct convo_view *ret_view)
{
    struct convo asleep = { 0 };
    struct packer packer;
    uint32_t count;

    if (convo_slot_awake(slot) != NULL || !packed_has_convo(slot->self))
        return false;
    packer = packed_reader(slot->self);
    count = pack_head(&packer, &asleep);
    *ret_view = (struct convo_view){
        .epoch = asleep.committed.epoch, .seq = asleep.committed.seq, .kept = asleep.kept
    };
    for (; count > 0; count--) {
        struct member member = { 0 };
        struct span did = { NULL, 0 };

        pack_member(&packer, asleep.texts.creator, &member, &did);
        if (span_equal(did, caller)) {
            ret_view->is_in = member.is_in;
            break;
        }
    }
    return true;
}

/* ---- texts ---------------------------------------------------------------------------------- */

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
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i]->size > 0)
            memcpy(at, all[i]->at, all[i]->size);
        all[i]->at = at;
        at += all[i]->size;
    }
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
    convo = base_alloc(sizeof *convo);
    if (convo == NULL)
        return NULL;
    convo_init(convo, slot->delivery, &convo_actor_driver);
    if (unpack_convo(convo, slot->self) < 0) {
        convo_fini(convo);
        base_free(convo);
        return NULL;
    }
    convo->text_block = slot->self;
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
    struct packer packer = { 0 };
    size_t size;

    if (convo == NULL || !is_resting(convo) || convo->roster.count > MEMBERS_MAX)
        return;
    tr_assert(convo->state != CONVO_LIVE || convo->planned.seq == convo->committed.seq);
    pack_convo(&packer, convo);
    size = packer.size;
    packer.bytes = base_alloc(size);
    if (packer.bytes == NULL)
        return;
    pack_convo(&packer, convo);
    tr_assert(packer.size == size);
    convo_fini(convo);
    base_free(convo);
    slot->self = packer.bytes;
}

void convo_slot_forget(struct convo_slot *slot)
{
    struct convo *convo = convo_slot_awake(slot);
    char *text_block;
    struct span id;

    if (convo == NULL) {
        ((unsigned char *)slot->self)[FLAGS_AT] = 0;
        return;
    }
    id = convo->texts.id;
    text_block = convo->text_block;
    convo->text_block = NULL; /* it has the id */
    convo_fini(convo);
    convo_init(convo, slot->delivery, &convo_actor_driver);
    convo->text_block = text_block;
    convo->texts.id = id;
}

void convo_slot_fini(struct convo_slot *slot)
{
    struct convo *convo = slot->self == NULL ? NULL : convo_slot_awake(slot);

    if (convo != NULL)
        convo_fini(convo);
    base_free(slot->self);
    slot->self = NULL;
}

void convo_slot_show(const void *self, char *text, size_t size)
{
    const struct convo_slot *slot = self;
    const struct convo *convo = convo_slot_awake(slot);
    struct convo asleep = { 0 };

    if (convo == NULL && packed_has_convo(slot->self)) {
        struct packer packer = packed_reader(slot->self);

        (void)pack_head(&packer, &asleep);
    }
    if (convo == NULL)
        convo = &asleep;
    (void)snprintf(text, size, "epoch %llu, seq %llu, %u members, %u in flight, %u waiting",
        (unsigned long long)convo->committed.epoch, (unsigned long long)convo->committed.seq,
        convo->roster.in_count, convo->flying.count, convo->waiting.count);
}
