/* SPDX-License-Identifier: Apache-2.0 */
/* Every object of every file of the MLS working group that a server can look into: how many there
 * are, that each is read to its last byte, that whatever is signed inside is signed well, and that
 * no cut or changed one does more than be refused. test_mls_vectors.c has what is particular. */
#include <openssl/evp.h>

#include "vectors.h"

/* An object by itself or, if it has no length of its own, in the smallest frame it can be in: so a
 * part of it is never a whole one. */
enum how { AS_MESSAGE, AS_PACKAGE, AS_TREE, AS_PROPOSAL };
struct object {
    enum how how;
    struct span bytes; /* exactly as large as its memory */
    size_t inner_from; /* where the file's bytes begin in it; they are inner_size bytes */
    size_t inner_size;
};

/* The content of a file: columns of the README beside it, and the objects that it only implies. */
struct census {
    size_t rows, welcomes, packages, trees, group_infos;
    size_t public_commits, private_commits, public_proposals, private_proposals;
    size_t applications, private_applications;
    size_t external_commits, external_proposals;
    size_t bare_commits, bare_proposals, contents;
};

struct walk {
    struct census seen;
    size_t objects;
    bool is_signed; /* also objects inside public messages */
    void (*visit)(struct walk *walk, const struct object *object);
    size_t tried, refused; /* visit_broken */
    size_t signatures;     /* visit_signed */
};

/* ---- reading one ---------------------------------------------------------------------------- */

struct reading {
    struct mls_message message;
    struct mls_key_package package;
    struct mls_proposal proposal;
    uint32_t leaf_count;
};

static const char *read_one(enum how how, struct span bytes, struct reading *ret_reading)
{
    struct mls_reader reader;

    switch (how) {
    case AS_MESSAGE:
        return mls_message_read(bytes, &ret_reading->message);
    case AS_PACKAGE:
        return mls_key_package_read(bytes, &ret_reading->package);
    case AS_TREE:
        return mls_tree_check(bytes, &ret_reading->leaf_count);
    case AS_PROPOSAL:
        reader = mls_reader_of(bytes);
        if (!mls_proposal_next(&reader, &ret_reading->proposal) && reader.fault == NULL)
            return "there is nothing";
        mls_reader_end(&reader);
        return reader.fault;
    default:
        return "unknown";
    }
}

/* ---- walking the files ---------------------------------------------------------------------- */

static void visit(struct walk *walk, const struct object *object)
{
    walk->objects++;
    walk->visit(walk, object);
}

/* The value with `before` and `after` around it. */
static void visit_framed(struct walk *walk, enum how how, const struct json *value,
    const struct buffer *before, const struct buffer *after)
{
    struct span inner = bytes_of(value);
    size_t size = before->size + inner.size + after->size;
    char *bytes = malloc(size);

    CHECK(bytes != NULL && before->failed == 0 && after->failed == 0);
    if (before->size > 0)
        memcpy(bytes, before->bytes, before->size);
    memcpy(bytes + before->size, inner.at, inner.size);
    if (after->size > 0)
        memcpy(bytes + before->size + inner.size, after->bytes, after->size);
    visit(walk, &(struct object){ how, { bytes, size }, before->size, inner.size });
    free(bytes);
    drop(inner);
}

static void visit_plain(struct walk *walk, enum how how, const struct json *value)
{
    const struct buffer none = { 0 };

    visit_framed(walk, how, value, &none, &none);
}

static void count_message(struct census *seen, const struct mls_message *message)
{
    bool is_public = message->wire == MLS_PUBLIC;

    if (message->wire == MLS_WELCOME)
        seen->welcomes++;
    else if (message->wire == MLS_GROUP_INFO)
        seen->group_infos++;
    else if (message->wire == MLS_KEY_PACKAGE)
        seen->packages++;
    else if (message->content == MLS_COMMIT)
        *(is_public ? &seen->public_commits : &seen->private_commits) += 1;
    else if (message->content == MLS_PROPOSAL)
        *(is_public ? &seen->public_proposals : &seen->private_proposals) += 1;
    else
        *(is_public ? &seen->applications : &seen->private_applications) += 1;
    seen->external_commits += is_public && message->sender == MLS_NEW_COMMIT;
    seen->external_proposals += is_public && message->sender == MLS_EXTERNAL;
}

static void walk_message(struct walk *walk, const struct json *value)
{
    struct span bytes = bytes_of(value);
    struct mls_message message;
    const char *why = mls_message_read(bytes, &message);

    CHECK_MSG(why == NULL, "%s", why);
    count_message(&walk->seen, &message);
    drop(bytes);
    visit_plain(walk, AS_MESSAGE, value);
}

static void walk_tree(struct walk *walk, const struct json *value)
{
    if (value == NULL || json_kind(value) == JSON_NULL)
        return;
    walk->seen.trees++;
    visit_plain(walk, AS_TREE, value);
}

/* A member's view of a group: how it came in, and what it has seen since. */
static void walk_passive(struct walk *walk, const struct json *row)
{
    walk->seen.packages++;
    visit_plain(walk, AS_PACKAGE, json_get(row, "key_package"));
    walk_message(walk, json_get(row, "welcome"));
    walk_tree(walk, json_get(row, "ratchet_tree"));
    for (struct json_iter it = json_iterate(json_get(row, "epochs")); json_next(&it);) {
        walk_message(walk, json_get(it.value, "commit"));
        for (struct json_iter p = json_iterate(json_get(it.value, "proposals")); json_next(&p);)
            walk_message(walk, p.value);
    }
}

/* In the message of somebody who joins, whom no membership tag follows. */
static void walk_bare_commit(struct walk *walk, const struct json *value)
{
    struct buffer before = { 0 }, after = { 0 };

    mls_put_number(&before, 1, 2);
    mls_put_number(&before, MLS_PUBLIC, 2);
    mls_put_vector(&before, SPAN("a group"));
    mls_put_number(&before, 7, 8);
    mls_put_number(&before, MLS_NEW_COMMIT, 1);
    mls_put_vector(&before, SPAN(""));
    mls_put_number(&before, MLS_COMMIT, 1);
    mls_put_vector(&after, SPAN("signature"));
    mls_put_vector(&after, SPAN("confirmation tag"));
    walk->seen.bare_commits++;
    visit_framed(walk, AS_MESSAGE, value, &before, &after);
    buffer_free(&before);
    buffer_free(&after);
}

static void walk_bare_proposal(struct walk *walk, const struct json *value, uint16_t type)
{
    const struct buffer none = { 0 };
    struct buffer before = { 0 };

    mls_put_number(&before, 1, 1);
    mls_put_number(&before, type, 2);
    walk->seen.bare_proposals++;
    visit_framed(walk, AS_PROPOSAL, value, &before, &none);
    buffer_free(&before);
}

static void walk_messages(struct walk *walk, const struct json *row)
{
    static const char *const whole[] = { "mls_welcome", "mls_group_info", "mls_key_package",
        "public_message_application", "public_message_proposal", "public_message_commit",
        "private_message" };
    static const char *const proposals[] = { [MLS_ADD] = "add_proposal",
        [MLS_UPDATE] = "update_proposal",
        [MLS_REMOVE] = "remove_proposal",
        [MLS_PSK] = "pre_shared_key_proposal",
        [MLS_REINIT] = "re_init_proposal",
        [MLS_EXTERNAL_INIT] = "external_init_proposal",
        [MLS_CONTEXT_EXTENSIONS] = "group_context_extensions_proposal" };

    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        walk_message(walk, json_get(row, whole[i]));
    for (int i = MLS_ADD; i <= MLS_CONTEXT_EXTENSIONS; i++)
        walk_bare_proposal(walk, json_get(row, proposals[i]), (uint16_t)i);
    walk_bare_commit(walk, json_get(row, "commit"));
    walk_tree(walk, json_get(row, "ratchet_tree"));
}

static void walk_protection(struct walk *walk, const struct json *row)
{
    static const char *const names[] = { "proposal_pub", "proposal_priv", "commit_pub",
        "commit_priv", "application_priv" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        walk_message(walk, json_get(row, names[i]));
}

/* An AuthenticatedContent is a public message without its version and membership tag. */
static void walk_transcript(struct walk *walk, const struct json *row)
{
    struct buffer before = { 0 }, after = { 0 };

    mls_put_number(&before, 1, 2);
    mls_put_vector(&after, SPAN("membership tag"));
    walk->seen.contents++;
    visit_framed(walk, AS_MESSAGE, json_get(row, "authenticated_content"), &before, &after);
    buffer_free(&before);
    buffer_free(&after);
}

static void walk_trees(struct walk *walk, const struct json *row)
{
    walk_tree(walk, json_get(row, "tree"));
}

static void walk_welcome(struct walk *walk, const struct json *row)
{
    walk->seen.packages++;
    visit_plain(walk, AS_PACKAGE, json_get(row, "key_package"));
    walk_message(walk, json_get(row, "welcome"));
}

static const struct file {
    const char *name;
    void (*walk)(struct walk *walk, const struct json *row);
    bool is_signed; /* by members of real groups */
    struct census wanted;
} files[] = {
    { "messages", walk_messages, false,
        { .rows = 300,
            .welcomes = 300,
            .packages = 300,
            .trees = 300,
            .group_infos = 300,
            .applications = 300,
            .public_proposals = 300,
            .public_commits = 300,
            .private_applications = 102,
            .private_proposals = 99,
            .private_commits = 99,
            .bare_commits = 300,
            .bare_proposals = 2100 } },
    { "welcome", walk_welcome, true, { .rows = 7, .welcomes = 7, .packages = 7 } },
    { "message-protection", walk_protection, false,
        { .rows = 7,
            .public_proposals = 7,
            .private_proposals = 7,
            .public_commits = 7,
            .private_commits = 7,
            .private_applications = 7 } },
    { "transcript-hashes", walk_transcript, false, { .rows = 7, .contents = 7 } },
    { "tree-validation", walk_trees, false, { .rows = 98, .trees = 98 } },
    { "passive-client-welcome", walk_passive, true,
        { .rows = 56, .welcomes = 56, .packages = 56, .trees = 28 } },
    { "passive-client-handling-commit", walk_passive, true,
        { .rows = 91,
            .welcomes = 91,
            .packages = 91,
            .public_commits = 182,
            .public_proposals = 84 } },
    { "passive-client-random", walk_passive, true,
        { .rows = 1,
            .welcomes = 1,
            .packages = 1,
            .public_commits = 200,
            .public_proposals = 1542 } },
    { "passive-welcome_join", walk_passive, true,
        { .rows = 56, .welcomes = 56, .packages = 56, .trees = 14 } },
    { "passive-application", walk_passive, true, { .rows = 42, .welcomes = 42, .packages = 42 } },
    { "passive-commit", walk_passive, true,
        { .rows = 308,
            .welcomes = 308,
            .packages = 308,
            .public_commits = 35,
            .private_commits = 35,
            .public_proposals = 77,
            .private_proposals = 77 } },
    { "passive-external_join", walk_passive, true,
        { .rows = 42,
            .welcomes = 42,
            .packages = 42,
            .public_commits = 28,
            .external_commits = 28 } },
    { "passive-external_proposals", walk_passive, true,
        { .rows = 196,
            .welcomes = 196,
            .packages = 196,
            .public_commits = 161,
            .private_commits = 161,
            .public_proposals = 259,
            .private_proposals = 91,
            .external_proposals = 168 } },
    { "passive-reinit", walk_passive, true, { .rows = 336, .welcomes = 336, .packages = 336 } },
};
enum { FILES = sizeof files / sizeof files[0] };

static void walk_file(struct walk *walk, const struct file *file)
{
    struct vectors vectors;
    char path[96];

    (void)snprintf(path, sizeof path, "vectors/mls/%s.json", file->name);
    printf("%s\n", path);
    load(&vectors, path);
    walk->seen = (struct census){ .rows = json_count(vectors.root) };
    walk->is_signed = file->is_signed;
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);)
        file->walk(walk, it.value);
    unload(&vectors);
}

/* ---- to the last byte ----------------------------------------------------------------------- */

static void visit_whole(struct walk *walk, const struct object *object)
{
    struct reading reading;
    const char *why = read_one(object->how, object->bytes, &reading), *end;

    (void)walk;
    CHECK_MSG(why == NULL, "%s", why);
    if (object->inner_from == 0 || object->how != AS_MESSAGE)
        return;
    /* In a frame: reading ends at the end of the file's bytes, or of its signature and tag. */
    end = object->bytes.at + object->inner_from + object->inner_size;
    if (reading.message.sender == MLS_NEW_COMMIT)
        CHECK(reading.message.framed.at + reading.message.framed.size == end);
    else
        CHECK(reading.message.confirmation_tag.at + reading.message.confirmation_tag.size == end);
}

static size_t objects_in(const struct census *census)
{
    return census->welcomes + census->packages + census->trees + census->group_infos +
           census->public_commits + census->private_commits + census->public_proposals +
           census->private_proposals + census->applications + census->private_applications +
           census->bare_commits + census->bare_proposals + census->contents;
}

TEST_LONG(mls_files, every_object_is_read_to_its_last_byte, 60)
{
    struct walk walk = { .visit = visit_whole };
    size_t wanted = 0;

    for (size_t i = 0; i < FILES; i++) {
        walk_file(&walk, &files[i]);
        CHECK_MSG(memcmp(&walk.seen, &files[i].wanted, sizeof walk.seen) == 0,
            "%s has not what its README says", files[i].name);
        wanted += objects_in(&files[i].wanted);
    }
    printf("%zu objects\n", walk.objects);
    CHECK_EQ_U64(walk.objects, wanted);
}

/* ---- signatures ----------------------------------------------------------------------------- */

static void verify_package(struct walk *walk, const struct mls_key_package *package)
{
    const struct mls_suite *suite = mls_suite_of(package->suite);

    CHECK(suite != NULL);
    CHECK(mls_leaf_verify(suite, &package->leaf, SPAN(""), 0));
    CHECK(mls_verify(suite, package->leaf.signature_key, "MLS 1.0 KeyPackageTBS", package->to_sign,
        package->signature));
    walk->signatures += 2;
}

/* A leaf says not of which suite it is, its key's size does nearly. */
static void verify_leaf(
    struct walk *walk, const struct mls_leaf *leaf, const struct mls_message *message)
{
    bool is_good = false;

    for (uint16_t suite = 1; suite <= 7 && !is_good; suite++)
        is_good =
            mls_suite_of(suite)->signature_key_size == leaf->signature_key.size &&
            mls_leaf_verify(mls_suite_of(suite), leaf, message->group_id, message->sender_index);
    CHECK(is_good);
    walk->signatures++;
}

static void verify_proposal(
    struct walk *walk, const struct mls_proposal *proposal, const struct mls_message *message)
{
    if (proposal->is_reference)
        return;
    if (proposal->type == MLS_ADD)
        verify_package(walk, &proposal->key_package);
    if (proposal->type == MLS_UPDATE)
        verify_leaf(walk, &proposal->leaf, message);
}

static void verify_message(struct walk *walk, const struct mls_message *message)
{
    struct mls_reader list = mls_reader_of(message->commit.proposals);
    struct mls_proposal proposal;

    CHECK(mls_message_check(message) == NULL);
    if (message->content == MLS_PROPOSAL)
        verify_proposal(walk, &message->proposal, message);
    if (message->content != MLS_COMMIT)
        return;
    while (mls_proposal_next(&list, &proposal))
        verify_proposal(walk, &proposal, message);
    /* The place of one who joins is nowhere in its commit. */
    if (message->commit.has_path && message->sender == MLS_MEMBER)
        verify_leaf(walk, &message->commit.path_leaf, message);
}

static void visit_signed(struct walk *walk, const struct object *object)
{
    struct reading reading;

    CHECK(read_one(object->how, object->bytes, &reading) == NULL);
    if (object->how == AS_PACKAGE)
        verify_package(walk, &reading.package);
    if (object->how == AS_MESSAGE && reading.message.wire == MLS_KEY_PACKAGE)
        verify_package(walk, &reading.message.key_package);
    if (object->how == AS_PROPOSAL && reading.proposal.type == MLS_ADD)
        verify_package(walk, &reading.proposal.key_package);
    if (walk->is_signed && object->how == AS_MESSAGE && reading.message.wire == MLS_PUBLIC)
        verify_message(walk, &reading.message);
}

TEST_LONG(mls_files, every_key_package_and_every_leaf_is_signed, 120)
{
    struct walk walk = { .visit = visit_signed };

    for (size_t i = 0; i < FILES; i++)
        walk_file(&walk, &files[i]);
    printf("%zu signatures\n", walk.signatures);
    /* Two of each of 1435 key packages and of 300 bare adds, the rest in proposals and commits. */
    CHECK_EQ_U64(walk.signatures, 7158);
}

/* The transcript hash (RFC 9420 section 8.2) covers the content and its signature: the reader
 * reports these spans at their right place. */
TEST(mls_files, transcripts_hash_what_was_read)
{
    struct vectors vectors;

    load(&vectors, "vectors/mls/transcript-hashes.json");
    for (struct json_iter it = json_iterate(vectors.root); json_next(&it);) {
        struct span before = bytes_of(json_get(it.value, "interim_transcript_hash_before"));
        struct span after = bytes_of(json_get(it.value, "confirmed_transcript_hash_after"));
        struct span content = bytes_of(json_get(it.value, "authenticated_content"));
        struct buffer message_bytes = { 0 }, input = { 0 };
        unsigned char hash[MLS_REFERENCE_SIZE_MAX];
        struct mls_message message;
        int64_t id;
        size_t size;

        CHECK(json_int(json_get(it.value, "cipher_suite"), &id));
        mls_put_number(&message_bytes, 1, 2);
        buffer_span(&message_bytes, content);
        mls_put_vector(&message_bytes, SPAN("membership tag"));
        must_read((struct span){ message_bytes.bytes, message_bytes.size }, &message, MLS_PUBLIC);
        CHECK_EQ_INT(message.content, MLS_COMMIT);
        buffer_span(&input, before);
        mls_put_number(&input, MLS_PUBLIC, 2);
        buffer_span(&input, message.framed);
        mls_put_vector(&input, message.signature);
        CHECK(EVP_Q_digest(NULL, mls_suite_of((uint16_t)id)->digest, NULL, input.bytes, input.size,
                  hash, &size) == 1);
        CHECK(size == after.size && memcmp(hash, after.at, size) == 0);
        buffer_free(&message_bytes);
        buffer_free(&input);
        drop(before);
        drop(after);
        drop(content);
    }
    unload(&vectors);
}

/* ---- cut and changed ------------------------------------------------------------------------ */

/* How far apart cuts and changed bits are: all of them in the long run, else some of every object.
 * Odd, so that every bit of a byte has its turn. */
static size_t step_of(size_t count)
{
#ifdef __SANITIZE_THREAD__ /* it has nothing to look for here, and takes ten times as long */
    bool is_long = false;
#else
    bool is_long = check_is_long();
#endif

    return is_long || count < 100 ? 1 : count / 100 | 1;
}

static void visit_broken(struct walk *walk, const struct object *object)
{
    size_t size = object->bytes.size, step = step_of(size), bits = size * 8;
    char *copy = malloc(size);
    struct reading reading;

    CHECK(copy != NULL);
    for (size_t cut = walk->objects % step; cut < size; cut += step) {
        char *part = malloc(cut == 0 ? 1 : cut); /* exactly: a sanitizer sees a byte too many */

        CHECK(part != NULL);
        memcpy(part, object->bytes.at, cut);
        CHECK_MSG(read_one(object->how, (struct span){ part, cut }, &reading) != NULL,
            "%zu of %zu bytes are taken for a whole one", cut, size);
        free(part);
        walk->tried++;
        walk->refused++;
    }
    memcpy(copy, object->bytes.at, size);
    step = step_of(bits);
    for (size_t bit = walk->objects % step; bit < bits; bit += step) {
        const char *why;

        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
        why = read_one(object->how, (struct span){ copy, size }, &reading);
        if (why == NULL && object->how == AS_MESSAGE)
            (void)mls_message_check(&reading.message);
        walk->tried++;
        walk->refused += why != NULL;
        copy[bit / 8] = (char)(copy[bit / 8] ^ 1 << bit % 8);
    }
    free(copy);
}

TEST_LONG(mls_files, a_cut_object_is_refused_and_a_changed_one_never_crashes, 900)
{
    struct walk walk = { .visit = visit_broken };

    for (size_t i = 0; i < FILES; i++)
        walk_file(&walk, &files[i]);
    printf("%zu broken ones of %zu objects, %zu of them refused\n", walk.tried, walk.objects,
        walk.refused);
    CHECK(walk.tried > 1000000);
}
