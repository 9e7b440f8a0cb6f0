/* SPDX-License-Identifier: Apache-2.0 */
/* The three modes and the same input: each accepts another part of it. A refused request changes
 * nothing. */
#include "ops/flags.h"
#include "services/delivery/convo/direct.h"
#include "tree_site.h"

struct play {
    struct site site;
    struct caller ada, bob, nobody;
    struct signer ada_key, bob_key;
    unsigned number; /* of conversations */
    char what[128];  /* is tried */
};

static void play_begin(struct play *play)
{
    *play = (struct play){ .number = 0 };
    site_begin(&play->site);
    caller_begin(&play->ada);
    caller_begin(&play->bob);
    (void)snprintf(play->nobody.did, sizeof play->nobody.did, "a name that is no DID");
    signer_begin(&play->ada_key);
    signer_begin(&play->bob_key);
}

static void play_end(struct play *play)
{
    signer_end(&play->ada_key);
    signer_end(&play->bob_key);
    caller_end(&play->ada);
    caller_end(&play->bob);
    site_end(&play->site);
}

static void set_mode(const struct play *play, enum delivery_mode mode)
{
    ((struct delivery *)play->site.delivery)->mode = mode;
}

__attribute__((format(printf, 5, 6))) static void act(const struct play *play, const char *call,
    unsigned status, const char *part, const char *format, ...)
{
    char *text = malloc(1 << 16);
    struct web_answer answer;
    va_list list;

    CHECK(text != NULL);
    va_start(list, format);
    (void)vsnprintf(text, 1 << 16, format, list);
    va_end(list);
    answer = site_ask(&play->site, &play->ada, call, text);
    CHECK_MSG(answer.status == status && strstr(answer.body, part) != NULL,
        "%s: %s: wanted %u with '%s', got:\n%s", play->what, call, status, part, answer.text);
    web_answer_free(&answer);
    free(text);
}

/* ---- the inputs ----------------------------------------------------------------------------- */

/* Deviations from the usual commit, which is ada's public commit at epoch 0, without adds, with a
 * group info that has a tree. */
enum {
    IS_PRIVATE = 1 << 0,
    HAS_NO_INFO = 1 << 1,
    HAS_NO_TREE = 1 << 2,
    IS_SIGNED_WRONGLY = 1 << 3,
    IS_BY_NOBODY = 1 << 4, /* of a leaf that the tree does not have */
    INFO_IS_SIGNED_WRONGLY = 1 << 5,
    INFO_HAS_OTHER_TAG = 1 << 6,
    NAMES_UNKNOWN = 1 << 7, /* a proposal that nobody sent */
    NAMES_STORED = 1 << 8,  /* one that was sent before */
    NAMES_BROUGHT = 1 << 9, /* one that comes with it */
    BRINGS_PRIVATE = 1 << 10,
    HAS_UNNAMED = 1 << 11, /* bob is in the tree, and nobody says so */
    HAS_NO_DID = 1 << 12,
    IS_LATE = 1 << 13,           /* another commit has won its epoch */
    NOTHING_IS_STORED = 1 << 14, /* no group info of its epoch */
    BRINGS_WRONG = 1 << 15,      /* a proposal that is signed wrongly */
    HAS_OUTSIDER = 1 << 16,      /* the group lets bob propose, who is no member */
    IS_BY_OUTSIDER = 1 << 17,
};

enum input { COMMIT, EXTERNAL, PROPOSAL, NUMBERED, CREATE, UPDATE };

static const struct {
    const char *what;
    enum input input;
    unsigned flags;
    struct {
        unsigned status;
        const char *label;
    } wanted[3]; /* by mode */
} cases[] = {
    { "a public commit", COMMIT, 0, { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "a private commit", COMMIT, IS_PRIVATE,
        { { 200, "" }, { 200, "" }, { 400, "PublicHandshakeRequired" } } },
    { "a commit without a group info", COMMIT, HAS_NO_INFO,
        { { 200, "" }, { 200, "" }, { 400, "GroupInfoRequired" } } },
    { "a commit without the tree", COMMIT, HAS_NO_TREE,
        { { 200, "" }, { 200, "" }, { 400, "GroupInfoRequired" } } },
    { "a commit signed wrongly", COMMIT, IS_SIGNED_WRONGLY,
        { { 200, "" }, { 400, "The signature of the commit is wrong." },
            { 400, "The signature of the commit is wrong." } } },
    { "a commit signed wrongly, without a group info", COMMIT, IS_SIGNED_WRONGLY | HAS_NO_INFO,
        { { 200, "" }, { 400, "InvalidCommit" }, { 400, "GroupInfoRequired" } } },
    { "a commit of nobody in the tree", COMMIT, IS_BY_NOBODY,
        { { 200, "" }, { 400, "InvalidCommit" }, { 400, "InvalidCommit" } } },
    { "a commit that nothing is stored to check with", COMMIT, NOTHING_IS_STORED,
        { { 200, "" }, { 200, "" }, { 400, "InvalidCommit" } } },
    { "a group info signed wrongly", COMMIT, INFO_IS_SIGNED_WRONGLY,
        { { 200, "" }, { 400, "InvalidGroupInfo" }, { 400, "InvalidGroupInfo" } } },
    { "a group info of another commit", COMMIT, INFO_HAS_OTHER_TAG,
        { { 200, "" }, { 400, "another confirmation tag" }, { 400, "another confirmation tag" } } },
    { "a tree with somebody unnamed", COMMIT, HAS_UNNAMED,
        { { 200, "" }, { 400, "RosterMismatch" }, { 400, "RosterMismatch" } } },
    { "a tree with a name that is no DID", COMMIT, HAS_NO_DID,
        { { 200, "" }, { 200, "" }, { 400, "InvalidGroupInfo" } } },
    { "a commit of an unknown proposal", COMMIT, NAMES_UNKNOWN,
        { { 200, "" }, { 200, "" }, { 400, "UnknownProposal" } } },
    { "a commit of a stored proposal", COMMIT, NAMES_STORED,
        { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "a commit of a proposal it brings", COMMIT, NAMES_BROUGHT,
        { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "a commit with a private proposal", COMMIT, BRINGS_PRIVATE,
        { { 200, "" }, { 200, "" }, { 400, "PublicHandshakeRequired" } } },
    { "a commit with a proposal signed wrongly", COMMIT, BRINGS_WRONG,
        { { 200, "" }, { 400, "The signature of the proposal is wrong." },
            { 400, "The signature of the proposal is wrong." } } },
    { "a commit that comes too late", COMMIT, IS_LATE,
        { { 409, "EpochConflict" }, { 409, "EpochConflict" }, { 409, "EpochConflict" } } },
    { "a late commit of an unknown proposal", COMMIT, IS_LATE | NAMES_UNKNOWN,
        { { 409, "EpochConflict" }, { 409, "EpochConflict" }, { 409, "EpochConflict" } } },
    { "an external commit", EXTERNAL, 0, { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "an external commit without a group info", EXTERNAL, HAS_NO_INFO,
        { { 200, "" }, { 200, "" }, { 400, "GroupInfoRequired" } } },
    { "an external commit signed wrongly", EXTERNAL, IS_SIGNED_WRONGLY,
        { { 200, "" }, { 400, "The signature of the commit is wrong." },
            { 400, "The signature of the commit is wrong." } } },
    { "an external commit that nothing is stored to check with", EXTERNAL, NOTHING_IS_STORED,
        { { 200, "" }, { 400, "InvalidCommit" }, { 400, "InvalidCommit" } } },
    { "a public proposal", PROPOSAL, 0, { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "a proposal signed wrongly", PROPOSAL, IS_SIGNED_WRONGLY,
        { { 200, "" }, { 400, "The signature of the proposal is wrong." },
            { 400, "The signature of the proposal is wrong." } } },
    { "a proposal of nobody in the tree", PROPOSAL, IS_BY_NOBODY,
        { { 200, "" }, { 400, "InvalidMessage" }, { 400, "InvalidMessage" } } },
    { "a proposal that nothing is stored to check with", PROPOSAL, NOTHING_IS_STORED,
        { { 200, "" }, { 200, "" }, { 400, "InvalidMessage" } } },
    { "a proposal that comes too late", PROPOSAL, IS_LATE,
        { { 409, "EpochMismatch" }, { 409, "EpochMismatch" }, { 409, "EpochMismatch" } } },
    { "a late proposal signed wrongly", PROPOSAL, IS_LATE | IS_SIGNED_WRONGLY,
        { { 409, "EpochMismatch" }, { 409, "EpochMismatch" }, { 409, "EpochMismatch" } } },
    { "a proposal from outside", PROPOSAL, HAS_OUTSIDER | IS_BY_OUTSIDER,
        { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "a proposal from outside signed wrongly", PROPOSAL,
        HAS_OUTSIDER | IS_BY_OUTSIDER | IS_SIGNED_WRONGLY,
        { { 200, "" }, { 400, "InvalidMessage" }, { 400, "InvalidMessage" } } },
    { "a proposal from outside, which the group does not know of", PROPOSAL, IS_BY_OUTSIDER,
        { { 200, "" }, { 400, "The sender of the proposal" }, { 400, "InvalidMessage" } } },
    { "a private proposal", PROPOSAL, IS_PRIVATE,
        { { 200, "" }, { 200, "" }, { 400, "PublicHandshakeRequired" } } },
    { "a change without a commit", NUMBERED, 0,
        { { 200, "" }, { 200, "" }, { 400, "CommitRequired" } } },
    { "a conversation with a group info", CREATE, 0, { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "a conversation without a group info", CREATE, HAS_NO_INFO,
        { { 200, "" }, { 200, "" }, { 400, "GroupInfoRequired" } } },
    { "a conversation whose group info has no tree", CREATE, HAS_NO_TREE,
        { { 200, "" }, { 200, "" }, { 400, "GroupInfoRequired" } } },
    { "a newer group info", UPDATE, 0, { { 200, "" }, { 200, "" }, { 200, "" } } },
    { "a newer group info without the tree", UPDATE, HAS_NO_TREE,
        { { 200, "" }, { 200, "" }, { 400, "GroupInfoRequired" } } },
};
enum { CASES = sizeof cases / sizeof cases[0] };

static const char unknown_reference[] =
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static char *info_of(const struct play *play, struct group group, unsigned flags)
{
    const struct leaf leaves[] = { { &play->ada, &play->ada_key, NULL },
        { (flags & HAS_NO_DID) != 0 ? &play->nobody : &play->bob, &play->bob_key, NULL } };
    struct info_options with = { .group = group, .leaves = leaves, .count = 1 };

    if ((flags & HAS_NO_INFO) != 0)
        return strdup("");
    if ((flags & (HAS_UNNAMED | HAS_NO_DID)) != 0)
        with.count = 2;
    if ((flags & HAS_NO_TREE) != 0)
        with.count = 0;
    with.has_bad_signature = (flags & INFO_IS_SIGNED_WRONGLY) != 0;
    with.outside = (flags & HAS_OUTSIDER) != 0 ? &play->bob_key : NULL;
    with.tag = (flags & INFO_HAS_OTHER_TAG) != 0 ? "another tag" : NULL;
    return info_make(&with);
}

static void create(
    const struct play *play, struct group group, unsigned flags, unsigned status, const char *label)
{
    char *info = info_of(play, group, flags);

    act(play, "createConvo", status, label,
        "{\"groupId\":\"%s\",\"cipherSuite\":\"" SITE_SUITE "\",\"groupInfo\":\"%s\"}", group.id.at,
        info);
    free(info);
}

/* ada's commit, or her joining again from outside. */
static void commit(
    const struct play *play, struct group group, size_t number, unsigned status, const char *label)
{
    unsigned flags = cases[number].flags;
    struct public_options with = { .group = group,
        .signer = &play->ada_key,
        .sender = (flags & IS_BY_NOBODY) != 0 ? 7 : 0,
        .joiner = cases[number].input == EXTERNAL ? play->ada.did : NULL };
    struct public_options of_proposal = {
        .group = group, .signer = &play->ada_key, .has_bad_signature = (flags & BRINGS_WRONG) != 0
    };
    struct group after = { group.id, group.epoch + 1, 0 };
    char reference[65], *info = info_of(play, after, flags), *bytes;
    char *proposal = (flags & BRINGS_PRIVATE) != 0 ? private_make(&group, MLS_PROPOSAL)
                                                   : public_proposal(&of_proposal, reference);
    bool brings = (flags & (NAMES_BROUGHT | BRINGS_PRIVATE | BRINGS_WRONG)) != 0;

    if ((flags & NAMES_STORED) != 0)
        act(play, "sendProposal", 200, "seq",
            "{\"convoId\":\"%s\",\"msgId\":\"p\",\"proposal\":\"%s\"}", group.id.at, proposal);
    if ((flags & (NAMES_STORED | NAMES_BROUGHT)) != 0)
        with.reference = reference;
    if ((flags & NAMES_UNKNOWN) != 0)
        with.reference = unknown_reference;
    with.has_bad_signature = (flags & IS_SIGNED_WRONGLY) != 0;
    bytes = (flags & IS_PRIVATE) != 0 ? private_make(&group, MLS_COMMIT) : public_commit(&with);
    act(play, with.joiner != NULL ? "processExternalCommit" : "submitCommit", status, label,
        "{\"convoId\":\"%s\",\"%s\":\"%s\",\"groupInfo\":\"%s\",\"proposals\":[%s%s%s]}",
        group.id.at, with.joiner != NULL ? "externalCommit" : "commit", bytes, info,
        brings ? "\"" : "", brings ? proposal : "", brings ? "\"" : "");
    free(bytes);
    free(proposal);
    free(info);
}

static void send(
    const struct play *play, struct group group, size_t number, unsigned status, const char *label)
{
    unsigned flags = cases[number].flags;
    bool is_outside = (flags & IS_BY_OUTSIDER) != 0;
    char reference[65], *bytes;

    switch (cases[number].input) {
    case COMMIT:
    case EXTERNAL:
        commit(play, group, number, status, label);
        break;
    case PROPOSAL:
        bytes = (flags & IS_PRIVATE) != 0
                    ? private_make(&group, MLS_PROPOSAL)
                    : public_proposal(&(struct public_options){ .group = group,
                                          .signer = is_outside ? &play->bob_key : &play->ada_key,
                                          .sender = (flags & IS_BY_NOBODY) != 0 ? 7 : 0,
                                          .is_outside = is_outside,
                                          .has_bad_signature = (flags & IS_SIGNED_WRONGLY) != 0 },
                          reference);
        act(play, "sendProposal", status, label,
            "{\"convoId\":\"%s\",\"msgId\":\"p\",\"proposal\":\"%s\"}", group.id.at, bytes);
        free(bytes);
        break;
    case NUMBERED:
        act(play, "addMembers", status, label, "{\"convoId\":\"%s\",\"didList\":[\"%s\"]}",
            group.id.at, play->bob.did);
        break;
    case CREATE:
        create(play, group, flags, status, label);
        break;
    case UPDATE:
        bytes = info_of(play, group, flags);
        act(play, "updateGroupInfo", status, label,
            "{\"convoId\":\"%s\",\"groupInfo\":\"%s\",\"epoch\":0}", group.id.at, bytes);
        free(bytes);
        break;
    }
}

/* ---- what is there -------------------------------------------------------------------------- */

/* The conversation, its group info and its log as text; the caller's to free. */
static char *look(const struct play *play, struct group group)
{
    static const char *const calls[] = { "getConvo", "getGroupInfo", "getMessages" };
    struct buffer text = { 0 };

    for (size_t i = 0; i < 3; i++) {
        struct web_answer answer;
        char call[128], *expires;

        (void)snprintf(call, sizeof call, "%s?convoId=%s", calls[i], group.id.at);
        answer = site_ask(&play->site, &play->ada, call, "");
        expires = strstr(answer.body, "\"expiresAt\""); /* the last, and by the clock */
        if (expires != NULL)
            *expires = '\0';
        buffer_text(&text, answer.body);
        web_answer_free(&answer);
    }
    buffer_append(&text, "", 1);
    CHECK_EQ_INT(text.failed, 0);
    return text.bytes;
}

static void try_case(struct play *play, size_t number, enum delivery_mode mode)
{
    unsigned flags = cases[number].flags, status = cases[number].wanted[mode].status;
    char name[32], *before, *after;
    struct group group;

    (void)snprintf(name, sizeof name, "group-%u", play->number++);
    group = (struct group){ span_of(name), 0, 0 };
    (void)snprintf(play->what, sizeof play->what, "%s, mode %d", cases[number].what, (int)mode);
    set_mode(play, DELIVERY_CHECKED);
    if (cases[number].input != CREATE)
        create(play, group, (flags & NOTHING_IS_STORED) != 0 ? HAS_NO_INFO : flags & HAS_OUTSIDER,
            200, name);
    set_mode(play, mode);
    if ((flags & IS_LATE) != 0)
        commit(play, group, 0, 200, "newEpoch");
    if ((flags & NAMES_STORED) != 0) /* which sends it first */
        CHECK_EQ_INT(status, 200);
    before = look(play, group);
    send(play, group, number, status, cases[number].wanted[mode].label);
    after = look(play, group);
    CHECK_MSG((status == 200) == (strcmp(before, after) != 0) || cases[number].input == UPDATE,
        "%s: before\n%s\nafter\n%s", play->what, before, after);
    if (status != 200)
        CHECK_EQ_STR(after, before);
    free(before);
    free(after);
}

static void try_all(void)
{
    struct play play;

    play_begin(&play);
    for (size_t i = 0; i < CASES; i++)
        for (int mode = DELIVERY_BLIND; mode <= DELIVERY_ASSISTED; mode++)
            try_case(&play, i, (enum delivery_mode)mode);
    play_end(&play);
}

TEST_LONG(mode, decides_what_is_taken_and_what_is_refused_changes_nothing, 60)
{
    try_all();
}

TEST_LONG(mode, decides_the_same_without_actors, 60)
{
    direct_register();
    (void)flags_set("delivery.direct", FLAG_ALL); /* there is no file to keep it in */
    CHECK(flags_find("delivery.direct") != NULL);
    try_all();
}

/* ---- outsiders ------------------------------------------------------------------------------ */

/* bob, who is not in, tries: a commit, a proposal, or to join from outside. */
static struct web_answer try_outside(
    const struct play *play, enum input input, const struct public_options *with)
{
    static const char *const calls[] = { "submitCommit", "processExternalCommit", "sendProposal" };
    static const char *const names[] = { "commit", "externalCommit", "proposal" };
    struct group after = { with->group.id, with->group.epoch + 1, 0 };
    char reference[65], *info = info_of(play, after, 0);
    char *bytes = input == PROPOSAL ? public_proposal(with, reference) : public_commit(with);
    struct buffer body = { 0 };
    struct web_answer answer;

    buffer_format(&body, "{\"convoId\":\"%s\",\"msgId\":\"x\",\"groupInfo\":\"%s\",\"%s\":\"%s\"}",
        with->group.id.at, info, names[input], bytes);
    buffer_append(&body, "", 1);
    CHECK_EQ_INT(body.failed, 0);
    answer = site_ask(&play->site, &play->bob, calls[input], body.bytes);
    buffer_free(&body);
    free(bytes);
    free(info);
    return answer;
}

static void refuse_outside(
    const struct play *play, enum input input, const struct public_options *with)
{
    static const char refusal[] =
        "{\"error\":\"NotMember\",\"message\":\"You are not a member of this conversation.\"}";
    struct web_answer answer = try_outside(play, input, with);

    CHECK_MSG(answer.status == 403 && strcmp(answer.body, refusal) == 0,
        "mode %d, input %d, epoch %d, leaf %u: %s",
        (int)((struct delivery *)play->site.delivery)->mode, (int)input, (int)with->group.epoch,
        with->sender, answer.text);
    web_answer_free(&answer);
}

/* Neither the epoch nor who has which leaf. */
static void try_outsider(struct play *play, enum delivery_mode mode)
{
    struct public_options with = { .group = { SPAN("secret"), 0, 0 }, .signer = &play->bob_key };

    set_mode(play, mode);
    for (int input = COMMIT; input <= PROPOSAL; input++)
        for (with.group.epoch = 0; with.group.epoch < 3; with.group.epoch++)
            for (with.sender = 0; with.sender < 2; with.sender++)
                for (int is_bad = 0; is_bad < 2; is_bad++) {
                    with.joiner = input == EXTERNAL ? play->bob.did : NULL;
                    with.has_bad_signature = is_bad != 0;
                    refuse_outside(play, (enum input)input, &with);
                }
}

static void try_outsiders(void)
{
    const struct group group = { SPAN("secret"), 0, 0 };
    struct web_answer answer;
    struct play play;

    play_begin(&play);
    create(&play, group, 0, 200, "secret");
    for (int mode = DELIVERY_BLIND; mode <= DELIVERY_ASSISTED; mode++)
        try_outsider(&play, (enum delivery_mode)mode);
    /* An account that may join gets the reason why this commit does not. */
    act(&play, "updatePolicy", 200, "", "{\"convoId\":\"secret\",\"allowExternalCommits\":true}");
    answer = try_outside(&play, EXTERNAL,
        &(struct public_options){ .group = group,
            .signer = &play.bob_key,
            .joiner = play.bob.did,
            .has_bad_signature = true });
    CHECK_MSG(
        answer.status == 400 && strstr(answer.body, "The commit's signature is wrong, or") != NULL,
        "%s", answer.text);
    web_answer_free(&answer);
    play_end(&play);
}

TEST(mode, tells_who_is_not_in_nothing_of_the_group)
{
    try_outsiders();
}

TEST(mode, tells_who_is_not_in_nothing_of_the_group_without_actors)
{
    direct_register();
    (void)flags_set("delivery.direct", FLAG_ALL);
    try_outsiders();
}

/* ---- the setting ---------------------------------------------------------------------------- */

static enum delivery_mode mode_with(const char *file)
{
    struct buffer errors = { 0 };
    struct config config = { 0 };
    enum delivery_mode mode;
    struct site site;

    CHECK_EQ_INT(
        config_load_bytes(span_of(file), "t.conf", &(struct config_sources){ 0 }, &config, &errors),
        0);
    site_begin_with(&site, &config);
    mode = ((struct delivery *)site.delivery)->mode;
    site_end(&site);
    config_fini(&config);
    buffer_free(&errors);
    return mode;
}

TEST(mode, is_what_the_setting_says)
{
    struct site site;

    CHECK_EQ_INT(mode_with(""), DELIVERY_CHECKED);
    CHECK_EQ_INT(mode_with("[delivery]\nmode = blind\n"), DELIVERY_BLIND);
    CHECK_EQ_INT(mode_with("[delivery]\nmode = checked\n"), DELIVERY_CHECKED);
    CHECK_EQ_INT(mode_with("[delivery]\nmode = assisted\n"), DELIVERY_ASSISTED);
    site_begin(&site);
    CHECK_EQ_INT(((struct delivery *)site.delivery)->mode, DELIVERY_CHECKED);
    site_end(&site);
}

TEST(mode, is_one_of_three_words)
{
    static const char *const words[] = { "", "blindly", "Checked", "assist", "on", "0" };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct buffer errors = { 0 };
        struct config config = { 0 };
        char file[64];

        (void)snprintf(file, sizeof file, "[delivery]\nmode = %s\n", words[i]);
        CHECK_EQ_INT(config_load_bytes(
                         span_of(file), "t.conf", &(struct config_sources){ 0 }, &config, &errors),
            TR_EINVAL);
        buffer_append(&errors, "", 1);
        CHECK_MSG(strstr(errors.bytes, "t.conf:2: delivery.mode is") != NULL &&
                      strstr(errors.bytes, "it must be blind, checked or assisted") != NULL,
            "%s", errors.bytes);
        config_fini(&config);
        buffer_free(&errors);
    }
}
