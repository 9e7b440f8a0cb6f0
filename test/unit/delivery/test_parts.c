/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a request belong to its conversation: group infos of its group, epoch and suite,
 * Welcomes of its suite for the listed key packages. A refused request changes nothing. */
#include "tree_site.h"

#define OTHER_SUITE "MLS_128_DHKEMX25519_CHACHA20POLY1305_SHA256_Ed25519"
#define CREATE "{\"groupId\":\"%s\",\"cipherSuite\":\"" SITE_SUITE "\","

struct play {
    struct site site;
    struct caller ada, bob, cyd;
    struct signer ada_key, bob_key, cyd_key;
};

static void play_begin(struct play *play)
{
    site_begin(&play->site);
    caller_begin(&play->ada);
    caller_begin(&play->bob);
    caller_begin(&play->cyd);
    signer_begin(&play->ada_key);
    signer_begin(&play->bob_key);
    signer_begin(&play->cyd_key);
}

static void play_end(struct play *play)
{
    signer_end(&play->ada_key);
    signer_end(&play->bob_key);
    signer_end(&play->cyd_key);
    caller_end(&play->ada);
    caller_end(&play->bob);
    caller_end(&play->cyd);
    site_end(&play->site);
}

__attribute__((format(printf, 5, 6))) static void act(const struct play *play, const char *call,
    unsigned status, const char *part, const char *format, ...)
{
    char *text = malloc(1 << 16);
    va_list list;

    CHECK(text != NULL);
    va_start(list, format);
    (void)vsnprintf(text, 1 << 16, format, list);
    va_end(list);
    site_expect(&play->site, &play->ada, call, text, status, part);
    free(text);
}

static void expect_epoch(const struct play *play, const char *convo, unsigned epoch)
{
    char call[64], part[32];

    (void)snprintf(call, sizeof call, "getConvo?convoId=%s", convo);
    (void)snprintf(part, sizeof part, "\"epoch\":%u,", epoch);
    site_expect(&play->site, &play->ada, call, "", 200, part);
}

static void expect_nothing(const struct play *play, const char *convo)
{
    char call[64];

    (void)snprintf(call, sizeof call, "getConvo?convoId=%s", convo);
    site_expect(&play->site, &play->ada, call, "", 404, "ConvoNotFound");
}

/* ---- group infos ---------------------------------------------------------------------------- */

static char *info_of(const struct play *play, struct group group)
{
    const struct leaf ada = { &play->ada, &play->ada_key, NULL };

    return info_make(&(struct info_options){ .group = group, .leaves = &ada, .count = 1 });
}

TEST(creation, takes_only_a_group_info_of_its_group_epoch_and_suite)
{
    static const struct {
        const char *convo;
        struct group group;
        unsigned epoch;
        unsigned status;
        const char *part;
    } cases[] = {
        { "g", { { "h", 1 }, 0, 0 }, 0, 400, "InvalidGroupInfo" },
        { "g", { { "gg", 2 }, 0, 0 }, 0, 400, "InvalidGroupInfo" },
        { "g", { { "g", 1 }, 1, 0 }, 0, 400, "InvalidGroupInfo" },
        { "g", { { "g", 1 }, 0, 0 }, 1, 400, "InvalidGroupInfo" },
        { "g", { { "g", 1 }, 0, 3 }, 0, 400, "InvalidGroupInfo" },
        { "g", { { "g", 1 }, 0, 0 }, 0, 200, "\"epoch\":0" },
        { "g1", { { "g1", 2 }, 1, 0 }, 1, 200, "\"epoch\":1" },
        /* its id is the group's as text, or in hex */
        { "00ff", { { "\0\xfe", 2 }, 0, 0 }, 0, 400, "InvalidGroupInfo" },
        { "00ff", { { "\0\xff", 2 }, 0, 0 }, 0, 200, "\"epoch\":0" },
    };
    struct play play;

    play_begin(&play);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *info = info_of(&play, cases[i].group);

        act(&play, "createConvo", cases[i].status, cases[i].part,
            CREATE "\"currentEpoch\":%u,\"groupInfo\":\"%s\"}", cases[i].convo, cases[i].epoch,
            info);
        if (cases[i].status != 200)
            expect_nothing(&play, cases[i].convo);
        free(info);
    }
    play_end(&play);
}

TEST(numbered_change, takes_only_a_group_info_of_its_group_and_of_the_epoch_it_leads_to)
{
    static const struct {
        struct group group;
        unsigned status;
    } cases[] = {
        { { { "h", 1 }, 1, 0 }, 400 }, { { { "g", 1 }, 0, 0 }, 400 }, { { { "g", 1 }, 2, 0 }, 400 },
        { { { "g", 1 }, 1, 3 }, 400 }, { { { "g", 1 }, 1, 0 }, 200 },
        { { { "g", 1 }, 1, 0 }, 400 }, /* the next one leads to 2 */
    };
    struct play play;
    unsigned epoch = 0;

    play_begin(&play);
    site_create(&play.site, &play.ada, "g");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *info = info_of(&play, cases[i].group);

        act(&play, "addMembers", cases[i].status,
            cases[i].status == 200 ? "\"newEpoch\":1" : "InvalidGroupInfo",
            "{\"convoId\":\"g\",\"didList\":[\"%s\"],\"groupInfo\":\"%s\"}",
            epoch == 0 ? play.bob.did : play.cyd.did, info);
        epoch += cases[i].status == 200;
        expect_epoch(&play, "g", epoch);
        free(info);
    }
    play_end(&play);
}

TEST(group_info, of_another_suite_is_not_stored)
{
    struct group other = { { "g", 1 }, 1, 3 }, same = { { "g", 1 }, 1, 0 };
    char *commit = commit_make("g", 0), *wrong, *right;
    struct play play;

    play_begin(&play);
    site_create(&play.site, &play.ada, "g");
    wrong = info_of(&play, other);
    right = info_of(&play, same);
    act(&play, "submitCommit", 400, "InvalidGroupInfo",
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"groupInfo\":\"%s\"}", commit, wrong);
    expect_epoch(&play, "g", 0);
    act(&play, "submitCommit", 200, "\"newEpoch\":1",
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"groupInfo\":\"%s\"}", commit, right);
    act(&play, "updateGroupInfo", 400, "InvalidGroupInfo",
        "{\"convoId\":\"g\",\"groupInfo\":\"%s\",\"epoch\":1}", wrong);
    site_expect(&play.site, &play.ada, "getGroupInfo?convoId=g", "", 200, right);
    free(commit);
    free(wrong);
    free(right);
    play_end(&play);
}

/* ---- Welcomes ------------------------------------------------------------------------------- */

/* base64 of a Welcome of this suite for one key package; the caller's to free. */
static char *welcome_of_suite(const char *hash, uint16_t suite)
{
    const char *const hashes[] = { hash };
    char *text = welcome_make(hashes, 1);
    unsigned char bytes[1024];
    struct buffer out = { 0 };
    size_t size;

    CHECK_EQ_INT(crypto_base64_decode(span_of(text), bytes, sizeof bytes, &size), 0);
    bytes[5] = (unsigned char)suite;
    buffer_append(&out, bytes, size);
    free(text);
    return base64_free(&out);
}

/* A package of each, claimed by ada. */
static void claim_two(const struct play *play, char bob[65], char cyd[65])
{
    site_publish(
        &play->site, &play->bob, (struct package_options){ .signer = &play->bob_key }, bob);
    site_publish(
        &play->site, &play->cyd, (struct package_options){ .signer = &play->cyd_key }, cyd);
    CHECK_EQ_INT(site_claim(&play->site, &play->ada, play->bob.did, NULL), 1);
    CHECK_EQ_INT(site_claim(&play->site, &play->ada, play->cyd.did, NULL), 1);
}

TEST(welcome, of_another_suite_than_the_conversation_is_refused)
{
    char bob[65], cyd[65], *wrong, *right, *third, *commit = commit_make("g", 0);
    struct play play;

    play_begin(&play);
    claim_two(&play, bob, cyd);
    wrong = welcome_of_suite(bob, 3);
    right = welcome_of_suite(bob, 1);
    third = welcome_of_suite(cyd, 3);
    act(&play, "createConvo", 400, "InvalidWelcome",
        CREATE "\"initialMembers\":[\"%s\"],\"welcomeMessage\":\"%s\"}", "g", play.bob.did, wrong);
    expect_nothing(&play, "g");
    site_create(&play.site, &play.ada, "g");
    act(&play, "addMembers", 400, "InvalidWelcome",
        "{\"convoId\":\"g\",\"didList\":[\"%s\"],\"commit\":\"%s\",\"welcomeMessage\":\"%s\"}",
        play.bob.did, commit, wrong);
    act(&play, "submitCommit", 400, "InvalidWelcome",
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"welcomes\":[\"%s\"]}", commit, wrong);
    act(&play, "submitCommit", 400, "InvalidWelcome", /* the one is right, the other is not */
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"welcomes\":[\"%s\",\"%s\"]}", commit, right, third);
    expect_epoch(&play, "g", 0);
    act(&play, "submitCommit", 200, "\"newEpoch\":1",
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"welcomes\":[\"%s\"]}", commit, right);
    free(commit);
    free(wrong);
    free(right);
    free(third);
    play_end(&play);
}

/* A conversation of the other suite takes what the first does not. */
TEST(welcome, of_the_suite_of_another_conversation_is_right_there)
{
    char bob[65], cyd[65], *wrong, *right, *commit = commit_make("g3", 0);
    struct play play;

    play_begin(&play);
    claim_two(&play, bob, cyd);
    wrong = welcome_of_suite(bob, 1);
    right = welcome_of_suite(bob, 3);
    act(&play, "createConvo", 200, "g3",
        "{\"groupId\":\"g3\",\"cipherSuite\":\"" OTHER_SUITE "\"}%s", "");
    act(&play, "submitCommit", 400, "InvalidWelcome",
        "{\"convoId\":\"g3\",\"commit\":\"%s\",\"welcomes\":[\"%s\"]}", commit, wrong);
    act(&play, "submitCommit", 200, "\"newEpoch\":1",
        "{\"convoId\":\"g3\",\"commit\":\"%s\",\"welcomes\":[\"%s\"]}", commit, right);
    free(commit);
    free(wrong);
    free(right);
    play_end(&play);
}

TEST(welcome, that_names_a_key_package_twice_is_refused)
{
    char bob[65], cyd[65], *twice, *once, *commit = commit_make("g", 0);
    struct play play;

    play_begin(&play);
    site_create(&play.site, &play.ada, "g");
    claim_two(&play, bob, cyd);
    {
        const char *const hashes[] = { bob, cyd, bob };

        twice = welcome_make(hashes, 3);
        once = welcome_make(hashes, 1);
    }
    act(&play, "submitCommit", 400, "InvalidWelcome",
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"welcomes\":[\"%s\"]}", commit, twice);
    act(&play, "submitCommit", 400, "InvalidWelcome",
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"welcomes\":[\"%s\",\"%s\"]}", commit, once, once);
    act(&play, "createConvo", 400, "InvalidWelcome", CREATE "\"welcomeMessage\":\"%s\"}", "h",
        twice);
    expect_nothing(&play, "h");
    expect_epoch(&play, "g", 0);
    act(&play, "submitCommit", 200, "\"newEpoch\":1",
        "{\"convoId\":\"g\",\"commit\":\"%s\",\"welcomes\":[\"%s\"]}", commit, once);
    free(commit);
    free(twice);
    free(once);
    play_end(&play);
}

/* ---- keyPackageHashes ----------------------------------------------------------------------- */

enum { LISTS_MAX = 512 };

/* The member keyPackageHashes of up to two. */
static void list_hashes(
    char list[LISTS_MAX], const char *const dids[2], const char *const hashes[2])
{
    (void)snprintf(list, LISTS_MAX, "\"keyPackageHashes\":[{\"did\":\"%s\",\"hash\":\"%s\"}",
        dids[0], hashes[0]);
    if (dids[1] != NULL)
        (void)snprintf(list + strlen(list), LISTS_MAX - strlen(list),
            ",{\"did\":\"%s\",\"hash\":\"%s\"}", dids[1], hashes[1]);
    (void)snprintf(list + strlen(list), LISTS_MAX - strlen(list), "]");
}

TEST(hashes, that_are_listed_are_those_of_the_welcome)
{
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    char bob[65], cyd[65], upper[65], device[300], *commit = commit_make("g", 0), *welcome;
    struct play play;

    play_begin(&play);
    site_create(&play.site, &play.ada, "g");
    claim_two(&play, bob, cyd);
    for (size_t i = 0; i < sizeof upper; i++)
        upper[i] = (char)(bob[i] >= 'a' ? bob[i] - 'a' + 'A' : bob[i]);
    (void)snprintf(device, sizeof device, "%s#phone", play.cyd.did);
    {
        const char *const both[] = { bob, cyd };
        const char *b = play.bob.did, *c = play.cyd.did;
        const struct {
            const char *dids[2], *hashes[2];
            const char *label; /* NULL: it is taken */
        } cases[] = {
            { { b, NULL }, { bob, NULL }, "WelcomeMismatch" },
            { { b, c }, { bob, zeros }, "WelcomeMismatch" },
            { { b, b }, { bob, bob }, "WelcomeMismatch" },
            { { c, b }, { bob, cyd }, "WelcomeMismatch" }, /* each is the other's */
            { { b, c }, { bob, "00" }, "WelcomeMismatch" },
            { { b, c }, { bob, "no hex" }, "InvalidRequest" },
            { { b, c }, { bob, "" }, "InvalidRequest" },
            { { "bob", c }, { bob, cyd }, "InvalidRequest" },
            { { device, b }, { cyd, upper }, NULL },
        };

        welcome = welcome_make(both, 2);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            char list[LISTS_MAX];

            list_hashes(list, cases[i].dids, cases[i].hashes);
            if (cases[i].label != NULL) {
                act(&play, "createConvo", 400, cases[i].label,
                    CREATE "\"welcomeMessage\":\"%s\",%s}", "h", welcome, list);
                expect_nothing(&play, "h");
            }
            act(&play, "addMembers", cases[i].label == NULL ? 200 : 400,
                cases[i].label == NULL ? "\"newEpoch\":1" : cases[i].label,
                "{\"convoId\":\"g\",\"didList\":[\"%s\",\"%s\"],\"commit\":\"%s\","
                "\"welcomeMessage\":\"%s\",%s}",
                b, c, commit, welcome, list);
            expect_epoch(&play, "g", cases[i].label == NULL ? 1 : 0);
        }
    }
    free(commit);
    free(welcome);
    play_end(&play);
}

TEST(hashes, without_a_welcome_name_nothing)
{
    char bob[65], cyd[65], list[LISTS_MAX];
    struct play play;

    play_begin(&play);
    site_create(&play.site, &play.ada, "g");
    claim_two(&play, bob, cyd);
    {
        const char *const dids[] = { play.bob.did, NULL }, *const hashes[] = { bob, NULL };

        list_hashes(list, dids, hashes);
    }
    act(&play, "addMembers", 400, "WelcomeMismatch", "{\"convoId\":\"g\",\"didList\":[\"%s\"],%s}",
        play.bob.did, list);
    expect_epoch(&play, "g", 0);
    act(&play, "addMembers", 200, "\"newEpoch\":1",
        "{\"convoId\":\"g\",\"didList\":[\"%s\"],\"keyPackageHashes\":[]}", play.bob.did);
    play_end(&play);
}
