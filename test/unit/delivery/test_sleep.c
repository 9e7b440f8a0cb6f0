/* SPDX-License-Identifier: Apache-2.0 */
/* An idle conversation is a block of bytes. It wakes up with the same state, without the
 * database. */
#include "base/alloc.h"
#include "check.h"
#include "services/delivery/convo/convo.h"

static const struct span id = { "a conversation", 14 };

static void begin(struct delivery *delivery, struct convo_slot *slot)
{
    *delivery = (struct delivery){ .members_max = 1000 };
    CHECK_EQ_INT(convo_slot_make(delivery, id.at, id.size, slot), 0);
    CHECK(convo_slot_awake(slot) == NULL);
}

static void add(struct convo *convo, const char *did, bool is_in)
{
    struct member *member = roster_get(&convo->roster, span_of(did));

    CHECK(member != NULL);
    member->join_seq = 300 + convo->roster.count;
    member->read_seq = 100000 + convo->roster.count;
    member->joined_ms = INT64_C(1790000000000) + convo->roster.count;
    member->left_ms = is_in ? 0 : -1;
    member->roles = convo->roster.count == 1   ? MEMBER_ADMIN
                    : convo->roster.count == 2 ? MEMBER_MODERATOR
                                               : 0;
    member->was_removed = !is_in;
    member->has_reported = convo->roster.count == 2;
    member->quarantined_until_ms = convo->roster.count == 3 ? INT64_MAX : 0;
    roster_apply(&convo->roster, member, is_in);
    roster_plan(&convo->roster, member, is_in);
}

static void fill(struct convo *convo)
{
    convo->state = CONVO_LIVE;
    convo->is_there = true;
    convo->committed = convo->planned = (struct convo_point){
        .epoch = 5, .seq = UINT64_MAX, .kind = CONVO_MLS, .confirmed = 4, .chain = { 1, 2, 3 }
    };
    CHECK_EQ_INT(
        convo_set_texts(convo, &(struct convo_texts){ .id = convo->texts.id,
                                   .suite = SPAN("MLS_128_DHKEMX25519_AES128GCM_SHA256_Ed25519"),
                                   .creator = SPAN("did:plc:ada"),
                                   .name = SPAN("name"),
                                   .description = SPAN("what it is for"),
                                   .group_id = { "\0\1", 2 },
                                   .group_name = SPAN("another") }),
        0);
    convo->created_ms = 1;
    convo->active_ms = INT64_C(1790000000000);
    convo->policy = policy_default;
    convo->policy.fields[POLICY_APP_WINDOW] = -1;
    convo->policy.fields[POLICY_MEMBERS_MAX] = 12;
    convo->kept = (struct convo_kept){ .from = 200, .trims = 4 };
    CHECK_EQ_INT(buffer_append(&convo->revoked, "0123456789abcdef0123456789abcdef", 32), 0);
    add(convo, "did:plc:ada", true);
    add(convo, "did:plc:bob", true);
    add(convo, "did:plc:cyd", false);
    convo->newest = (struct convo_newest){
        .is_there = true, .sender = 1, .seq = 77, .base_epoch = 4, .sha256 = { 9, 8, 7 }
    };
}

static void check_filled(struct convo *convo)
{
    struct act act = { 0 };
    struct buffer *view = &act.answer;
    struct convo same;

    convo_init(&same, convo->delivery, &convo_actor_driver);
    fill(&same);
    CHECK(convo->state == CONVO_LIVE && convo->is_there);
    CHECK(memcmp(&convo->committed, &same.committed, sizeof same.committed) == 0);
    CHECK(memcmp(&convo->planned, &same.committed, sizeof same.committed) == 0);
    CHECK(memcmp(&convo->policy, &same.policy, sizeof same.policy) == 0);
    CHECK(memcmp(&convo->newest, &same.newest, sizeof same.newest) == 0);
    CHECK(convo->revoked.size == 32);
    CHECK(convo->kept.from == 200 && convo->kept.trims == 4);
    CHECK(span_equal(convo->texts.group_id, same.texts.group_id));
    CHECK(span_equal(convo_group_name(convo), same.texts.group_name));
    CHECK_EQ_INT(convo->roster.count, 3);
    CHECK_EQ_INT(convo->roster.in_count, 2);
    CHECK_EQ_INT(convo->roster.will_count, 2);
    for (uint32_t i = 0; i < 3; i++) {
        struct member member = convo->roster.members[i], other = same.roster.members[i];

        CHECK(span_equal(member_did(&member), member_did(&other)));
        member.did = other.did = NULL;
        CHECK_MSG(memcmp(&member, &other, sizeof member) == 0, "member %u", i);
    }
    view_answer(&(struct convo_op){ .convo = convo, .act = &act });
    CHECK_EQ_INT(view->failed, 0);
    buffer_append(view, "", 1);
    CHECK(strstr(view->bytes, "\"name\":\"name\"") != NULL);
    CHECK(strstr(view->bytes, "\"description\":\"what it is for\"") != NULL);
    CHECK(strstr(view->bytes, "\"id\":\"a conversation\"") != NULL);
    buffer_free(view);
    convo_fini(&same);
}

TEST(sleep, keeps_everything)
{
    struct delivery delivery;
    struct convo_slot slot;
    char text[128];

    begin(&delivery, &slot);
    fill(convo_slot_wake(&slot));
    for (int i = 0; i < 3; i++) {
        convo_slot_rest(&slot);
        CHECK(convo_slot_awake(&slot) == NULL);
        convo_slot_show(&slot, text, sizeof text);
        CHECK_MSG(strstr(text, "epoch 5, seq 18446744073709551615, 2 members") != NULL, "%s", text);
        check_filled(convo_slot_wake(&slot));
    }
    convo_slot_fini(&slot);
}

TEST(sleep, takes_the_smallest_place_the_runtime_has)
{
    CHECK(sizeof(struct convo_slot) <= 16);
}

TEST(sleep, keeps_that_there_is_no_such_conversation)
{
    struct delivery delivery;
    struct convo_slot slot;
    struct convo *convo;

    begin(&delivery, &slot);
    convo = convo_slot_wake(&slot);
    CHECK(convo->state == CONVO_UNLOADED);
    convo->state = CONVO_LIVE;
    convo_slot_rest(&slot);
    convo = convo_slot_wake(&slot);
    CHECK(convo->state == CONVO_LIVE && !convo->is_there);
    CHECK(span_equal(convo->texts.id, id));
    convo_slot_fini(&slot);
}

TEST(sleep, ends_with_nothing_known_when_it_is_told_that_it_is_old)
{
    struct delivery delivery;
    struct convo_slot slot;
    struct convo *convo;

    begin(&delivery, &slot);
    fill(convo_slot_wake(&slot));
    convo_slot_rest(&slot);
    convo_slot_forget(&slot); /* asleep */
    convo = convo_slot_wake(&slot);
    CHECK(convo->state == CONVO_UNLOADED && span_equal(convo->texts.id, id));
    fill(convo);
    convo_slot_forget(&slot); /* awake */
    CHECK(convo->state == CONVO_UNLOADED && convo->roster.count == 0);
    CHECK(span_equal(convo->texts.id, id));
    convo_slot_fini(&slot);
}

TEST(sleep, does_not_come_to_who_has_something_to_do)
{
    struct delivery delivery;
    struct convo_slot slot;
    struct convo *convo;
    char did[32];

    begin(&delivery, &slot);
    convo = convo_slot_wake(&slot);
    fill(convo);
    convo->state = CONVO_LOADING;
    convo_slot_rest(&slot);
    CHECK(convo_slot_awake(&slot) == convo);
    convo->state = CONVO_LIVE;
    for (int i = 0; i < 40; i++) { /* many members */
        (void)snprintf(did, sizeof did, "did:plc:%d", i);
        add(convo, did, true);
    }
    convo_slot_rest(&slot);
    CHECK(convo_slot_awake(&slot) == convo);
    for (int i = 0; i < 40; i++) {
        (void)snprintf(did, sizeof did, "did:plc:%d", i);
        CHECK(roster_find(&convo->roster, span_of(did)) != NULL);
    }
    CHECK(roster_find(&convo->roster, SPAN("did:plc:40")) == NULL);
    convo_slot_fini(&slot);
}

/* ---- answers without waking ----------------------------------------------------------------- */

static struct act *act_of(const struct act_type *type, const char *did, uint64_t seq)
{
    struct act *act =
        act_create(type, &(struct auth_claims){ .kind = AUTH_SERVICE, .issuer = span_of(did) });

    CHECK(act != NULL);
    if (type == &poll_act_type)
        act_poll(act)->seq = seq;
    return act;
}

enum outcome { NOT_ANSWERED, ANSWERED, MUST_READ };

static enum outcome ask(
    const struct convo_slot *slot, const struct act_type *type, const char *did, uint64_t seq)
{
    struct act *act = act_of(type, did, seq);
    enum outcome outcome = NOT_ANSWERED;

    if (type->peek != NULL && type->peek(slot, act)) {
        bool must_read = type == &poll_act_type && act_poll(act)->must_read;

        CHECK_EQ_INT(act->status, 200);
        outcome = must_read ? MUST_READ : ANSWERED;
        CHECK(must_read || (act->result_epoch == 5 && act->result_seq == UINT64_MAX));
        CHECK(must_read || type != &poll_act_type || act_poll(act)->kept_from == 200);
    }
    act_unref(act);
    return outcome;
}

TEST(asleep, it_tells_members_its_epoch_and_that_nothing_is_new)
{
    struct delivery delivery;
    struct convo_slot slot;

    begin(&delivery, &slot);
    atomic_store(&delivery.trims, 4);
    CHECK_EQ_INT(
        ask(&slot, &epoch_act_type, "did:plc:ada", 0), NOT_ANSWERED); /* nothing is known yet */
    CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), MUST_READ);
    fill(convo_slot_wake(&slot));
    for (int i = 0; i < 2; i++) { /* awake, it does so of polls alone */
        CHECK_EQ_INT(
            ask(&slot, &epoch_act_type, "did:plc:ada", 0), i == 0 ? NOT_ANSWERED : ANSWERED);
        CHECK_EQ_INT(
            ask(&slot, &epoch_act_type, "did:plc:bob", 0), i == 0 ? NOT_ANSWERED : ANSWERED);
        CHECK_EQ_INT(ask(&slot, &epoch_act_type, "did:plc:cyd", 0), NOT_ANSWERED); /* is out */
        CHECK_EQ_INT(ask(&slot, &epoch_act_type, "did:plc:eve", 0), NOT_ANSWERED);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), ANSWERED);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:bob", UINT64_MAX), ANSWERED);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:bob", UINT64_MAX - 1), MUST_READ);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:cyd", UINT64_MAX), MUST_READ);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:eve", UINT64_MAX), MUST_READ);
        CHECK_EQ_INT(ask(&slot, &member_act_type, "did:plc:ada", 0), NOT_ANSWERED);
        convo_slot_rest(&slot);
        CHECK(convo_slot_awake(&slot) == NULL);
    }
    check_filled(convo_slot_wake(&slot)); /* looking has changed nothing */
    convo_slot_fini(&slot);
}

TEST(poll, has_no_answer_while_the_log_is_trimmed_and_looks_afterwards)
{
    struct delivery delivery;
    struct convo_slot slot;

    begin(&delivery, &slot);
    fill(convo_slot_wake(&slot));
    for (int i = 0; i < 2; i++) {
        atomic_store(&delivery.trims, 4);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), ANSWERED);
        atomic_store(&delivery.trims, 5);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), MUST_READ);
        atomic_store(&delivery.trims, 6);
        CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), NOT_ANSWERED);
        CHECK_EQ_INT(
            ask(&slot, &poll_act_type, "did:plc:ada", 7), MUST_READ); /* that needs no look */
        convo_slot_rest(&slot);
    }
    convo_slot_fini(&slot);
}

TEST(poll, has_no_answer_while_something_is_on_its_way)
{
    struct delivery delivery;
    struct convo_slot slot;
    struct convo_op op = { 0 };
    struct convo *convo;

    begin(&delivery, &slot);
    atomic_store(&delivery.trims, 4);
    convo = convo_slot_wake(&slot);
    fill(convo);
    convo->flying.first = &op;
    CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), MUST_READ);
    convo->flying.first = NULL;
    convo->state = CONVO_POISONED;
    CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), MUST_READ);
    convo->state = CONVO_LOADING;
    CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), MUST_READ);
    convo->state = CONVO_LIVE;
    CHECK_EQ_INT(ask(&slot, &poll_act_type, "did:plc:ada", UINT64_MAX), ANSWERED);
    convo_slot_fini(&slot);
}

/* Every allocation fails once: it stays what it is, and nothing is lost. */
TEST(sleep, without_memory_changes_nothing)
{
    struct delivery delivery;
    struct convo_slot slot;
    uint64_t failed = 0;

    begin(&delivery, &slot);
    fill(convo_slot_wake(&slot));
    base_fault_countdown(1, 1);
    convo_slot_rest(&slot);
    (void)base_fault_countdown(0, 0);
    CHECK(convo_slot_awake(&slot) != NULL);
    convo_slot_rest(&slot);
    CHECK(convo_slot_awake(&slot) == NULL);
    for (;; failed++) {
        struct convo *convo;

        base_fault_countdown(failed + 1, 1);
        convo = convo_slot_wake(&slot);
        (void)base_fault_countdown(0, 0);
        if (convo != NULL)
            break;
        CHECK(convo_slot_awake(&slot) == NULL);
    }
    CHECK(failed >= 4);
    check_filled(convo_slot_wake(&slot));
    convo_slot_fini(&slot);
}
