/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of ratchets are gone once they were used: from the session, from memory that was freed, and from
 * the stack. Each case runs an operation, keeps a copy of all that it freed, of the stack that it left
 * and of all that it wiped, and derives the keys once more by the specifications. They must be in what
 * was wiped, since a later call may overwrite a part of the stack, and nowhere else. */
#include <dlfcn.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <stdlib.h>

#include "crypto/digest.h"
#include "matrix/crypto/mx_private.h"
#include "mx_stage.h"

extern const char __executable_start, etext; /* of this program's code, by the linker */

/* ---- the remains of an operation -------------------------------------------------------------- */

enum {
    FREED_BYTES = 1 << 20,
    STACK_BYTES = 48 << 10,
    FREED_STACK_BYTES = 4 << 10,
    PAD_BYTES = 8 << 10, /* between our frames and those of the operation */
};

static struct {
    bool is_open;
    size_t size;
    char freed[FREED_BYTES];
    char stack[STACK_BYTES];
    size_t wiped_size;
    char wiped[FREED_BYTES];
} remains;

/* Copy the stack below our caller's frame. */
static __attribute__((noinline)) void remains_copy_stack(char *to, size_t size)
{
    const volatile char *top = __builtin_frame_address(0);

    for (size_t i = 0; i < size; i++)
        to[i] = top[(ptrdiff_t)i - (ptrdiff_t)size];
}

/* free and realloc replace libc's. A sanitizer has its own, and guards the stack. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { REMAINS_WORK = false };
#else
enum { REMAINS_WORK = true };

/* Keep memory that is freed and, before it is overwritten, the stack that calls so far have left. Returns
 * the bytes of the memory, which are kept last. */
static size_t remains_keep(void *memory)
{
    size_t size;

    if (!remains.is_open)
        return 0;
    CHECK(FREED_STACK_BYTES <= FREED_BYTES - remains.size);
    remains_copy_stack(remains.freed + remains.size, FREED_STACK_BYTES);
    remains.size += FREED_STACK_BYTES;
    size = memory == NULL ? 0 : malloc_usable_size(memory);
    CHECK(size <= FREED_BYTES - remains.size);
    memcpy(remains.freed + remains.size, memory == NULL ? "" : memory, size);
    remains.size += size;
    return size;
}

void free(void *memory)
{
    static void (*real)(void *memory);

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "free");
    (void)remains_keep(memory);
    real(memory);
}

void *realloc(void *memory, size_t size)
{
    static void *(*real)(void *memory, size_t size);
    uintptr_t former = (uintptr_t)memory;
    size_t kept = remains_keep(memory);
    void *grown;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "realloc");
    grown = real(memory, size);
    if ((uintptr_t)grown == former)
        remains.size -= kept; /* it is not freed */
    return grown;
}
#endif

/* crypto_wipe calls this. OpenSSL does so as well, for copies of its own, which do not count. */
void OPENSSL_cleanse(void *memory, size_t size)
{
    static void (*real)(void *memory, size_t size);
    const char *caller = __builtin_return_address(0);
    bool is_ours = caller >= &__executable_start && caller < &etext;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "OPENSSL_cleanse");
    if (remains.is_open && is_ours) {
        CHECK(size <= FREED_BYTES - remains.wiped_size);
        memcpy(remains.wiped + remains.wiped_size, memory, size);
        remains.wiped_size += size;
    }
    real(memory, size);
}

static __attribute__((noinline)) int remains_run_deep(int (*run)(void *data), void *data)
{
    volatile char pad[PAD_BYTES];

    pad[0] = pad[PAD_BYTES - 1] = 0;
    return run(data);
}

/* Overwrite what earlier calls left. */
static __attribute__((noinline)) void remains_clear_stack(void)
{
    volatile char stack[STACK_BYTES + PAD_BYTES];

    for (size_t i = 0; i < sizeof stack; i++)
        stack[i] = 0;
}

/* Run an operation, which returns 0, and keep what it leaves. */
static void remains_of(int (*run)(void *data), void *data)
{
    int rc;

    remains_clear_stack();
    remains.size = remains.wiped_size = 0;
    remains.is_open = true;
    rc = remains_run_deep(run, data);
    remains.is_open = false;
    remains_copy_stack(remains.stack, STACK_BYTES);
    CHECK_EQ_INT(rc, 0);
}

static bool has_bytes(const void *memory, size_t size, const void *secret)
{
    return memmem(memory, size, secret, CRYPTO_SHA256_BYTES) != NULL;
}

/* Check that 32 bytes are not in the remains, nor in the memory of an object (NULL: of none). */
static void check_gone(const void *secret, void *object, const char *what)
{
    CHECK_MSG(!has_bytes(remains.freed, remains.size, secret),
        "%s is in freed memory, or was on the stack", what);
    CHECK_MSG(!has_bytes(remains.stack, STACK_BYTES, secret), "%s is on the stack", what);
    CHECK_MSG(object == NULL || !has_bytes(object, malloc_usable_size(object), secret),
        "%s is in the session", what);
}

/* Check that 32 bytes were wiped, too. */
static void check_wiped(const void *secret, void *object, const char *what)
{
    check_gone(secret, object, what);
    CHECK_MSG(has_bytes(remains.wiped, remains.wiped_size, secret), "%s is not wiped", what);
}

static int count_wiped(const void *secret)
{
    const char *at = remains.wiped, *end = remains.wiped + remains.wiped_size;
    int count = 0;

    while ((at = memmem(at, (size_t)(end - at), secret, CRYPTO_SHA256_BYTES)) != NULL) {
        at += CRYPTO_SHA256_BYTES;
        count++;
    }
    return count;
}

static void check_keys_wiped(const struct mx__message_keys *keys, void *object)
{
    check_wiped(keys->aes, object, "the AES key of a message");
    check_wiped(keys->mac, object, "the MAC key of a message");
}

/* Call every primitive once: the dynamic linker, which finds a function at its first call, saves all
 * registers on the stack. The hardened build finds them at the start. */
static int warm_up(void *data)
{
    struct buffer key = { 0 }, body = { 0 }, plaintext = { 0 };
    struct mx_outbound *outbound;
    struct mx_inbound *inbound;
    struct mx_stage stage;
    uint32_t index;

    (void)data;
    mx_stage_init(&stage);
    mx_stage_meet(&stage);
    mx_stage_fini(&stage);
    CHECK_EQ_INT(mx_outbound_create(mx_stage_random(), &outbound), 0);
    CHECK_EQ_INT(mx_outbound_key(outbound, &key), 0);
    CHECK_EQ_INT(mx_inbound_create(mx_stage_span(&key), &inbound), 0);
    CHECK_EQ_INT(mx_outbound_encrypt(outbound, SPAN("hello"), &body), 0);
    CHECK_EQ_INT(mx_inbound_decrypt(inbound, mx_stage_span(&body), &plaintext, &index), 0);
    mx_outbound_destroy(outbound);
    mx_inbound_destroy(inbound);
    buffer_free(&key);
    buffer_free(&body);
    buffer_free(&plaintext);
    return 0;
}

static void remains_need(void)
{
    if (!REMAINS_WORK)
        SKIP("a sanitizer owns the allocator and the stack");
    if (mx_backend != MX_BACKEND_OWN)
        SKIP("the sessions are libolm's");
    CHECK_EQ_INT(warm_up(NULL), 0); /* OpenSSL starts, which frees much */
    remains_of(warm_up, NULL);
}

static int leave_freed(void *memory)
{
    free(memory);
    return 0;
}

TEST(wipe, a_key_that_is_left_is_found)
{
    uint8_t secret[CRYPTO_SHA256_BYTES];
    char *object;

    remains_need();
    mx_stage_random()->fill(mx_stage_random()->data, secret, sizeof secret);
    object = malloc(1000);
    CHECK(object != NULL);
    memcpy(object + 500, secret, sizeof secret);
    CHECK(has_bytes(object, malloc_usable_size(object), secret));
    remains_of(leave_freed, object);
    CHECK(has_bytes(remains.freed, remains.size, secret));
}

static int leave_on_stack(void *secret)
{
    volatile uint8_t copy[CRYPTO_SHA256_BYTES];

    for (size_t i = 0; i < sizeof copy; i++)
        copy[i] = ((const uint8_t *)secret)[i];
    return 0;
}

TEST(wipe, a_key_that_is_left_on_the_stack_is_found)
{
    uint8_t secret[CRYPTO_SHA256_BYTES];

    remains_need();
    mx_stage_random()->fill(mx_stage_random()->data, secret, sizeof secret);
    remains_of(leave_on_stack, secret);
    CHECK(has_bytes(remains.stack, STACK_BYTES, secret));
}

/* ---- megolm ----------------------------------------------------------------------------------- */

struct room {
    struct mx_outbound *outbound;
    struct mx_inbound *inbound;
    struct buffer key, body, plaintext;
};

static int room_encrypt(void *data)
{
    struct room *room = data;

    return mx_outbound_encrypt(room->outbound, SPAN("hello"), &room->body);
}

static int room_decrypt(void *data)
{
    struct room *room = data;
    uint32_t index;

    CHECK_EQ_INT(
        mx_inbound_decrypt(room->inbound, mx_stage_span(&room->body), &room->plaintext, &index), 0);
    return 0;
}

static int room_take_key(void *data)
{
    struct room *room = data;

    return mx_inbound_create(mx_stage_span(&room->key), &room->inbound);
}

static int room_end(void *data)
{
    struct room *room = data;

    mx_outbound_destroy(room->outbound);
    mx_inbound_destroy(room->inbound);
    return 0;
}

/* Read the ratchet of a session key. */
static struct mx__ratchet ratchet_of(const struct buffer *key)
{
    uint8_t bytes[MX__SESSION_KEY_BYTES];
    struct mx__ratchet ratchet = { .index = 0 };

    CHECK_EQ_INT(mx__session_key_read(mx_stage_span(key), bytes), 0);
    memcpy(ratchet.parts, bytes + 5, sizeof ratchet.parts);
    return ratchet;
}

TEST(wipe, a_megolm_key_is_gone_after_its_message)
{
    struct room room = { 0 };
    struct mx__message_keys keys[2];
    struct mx__ratchet first, last;

    remains_need();
    CHECK_EQ_INT(mx_outbound_create(mx_stage_random(), &room.outbound), 0);
    CHECK_EQ_INT(mx_outbound_key(room.outbound, &room.key), 0);
    first = ratchet_of(&room.key);
    last = first;
    for (int i = 0; i < 2; i++) {
        mx__ratchet_advance(&last, (uint32_t)i);
        mx__ratchet_keys(&last, &keys[i]);
    }
    remains_of(room_take_key, &room);
    for (int i = 0; i < 4; i++)
        check_wiped(first.parts[i], NULL, "a part of the ratchet");
    for (int i = 0; i < 2; i++) {
        buffer_clear(&room.body);
        remains_of(room_encrypt, &room);
        check_keys_wiped(&keys[i], room.outbound);
        check_gone(first.parts[3], room.outbound, "the part that the first message used");
    }
    check_gone(last.parts[3], room.outbound, "the part that the second message used");
    CHECK(has_bytes(room.outbound, malloc_usable_size(room.outbound), first.parts[0]));
    remains_of(room_decrypt, &room);
    check_keys_wiped(&keys[1], room.inbound);
    check_wiped(last.parts[3], NULL, "the part that the second message used");
    remains_of(room_end, &room);
    for (int i = 0; i < 4; i++)
        check_wiped(first.parts[i], NULL, "a part of the ratchet");
    buffer_free(&room.key);
    buffer_free(&room.body);
    mx_wipe_buffer(&room.plaintext);
}

/* ---- olm -------------------------------------------------------------------------------------- */

enum { OLM_MESSAGES = 3, TAPE_KEYS = 64 };

/* The secret keys that were generated: all randomness that has their size. */
static struct {
    uint8_t keys[TAPE_KEYS][MX_KEY_BYTES];
    size_t count;
} tape;

static void tape_fill(void *data, void *bytes, size_t size)
{
    (void)data;
    mx_stage_random()->fill(mx_stage_random()->data, bytes, size);
    CHECK(tape.count < TAPE_KEYS);
    if (size == MX_KEY_BYTES)
        memcpy(tape.keys[tape.count++], bytes, size);
}
static const struct mx_random tape_random = { .fill = tape_fill };

static struct mx__key_pair tape_find(const struct mx_key *public_key)
{
    struct mx__key_pair pair = { 0 };

    for (size_t i = 0; i < tape.count; i++) {
        memcpy(pair.secret, tape.keys[i], sizeof pair.secret);
        mx__key_pair_derive(&pair);
        if (mx_key_equal(&pair.public_key, public_key))
            return pair;
    }
    CHECK_MSG(false, "a key is not on the tape");
    return pair;
}

/* The keys of the first chain (the Olm specification, "Initial setup" and "Advancing the chain key"). */
struct chain {
    uint8_t shared[3][MX_KEY_BYTES];
    uint8_t derived[2][CRYPTO_SHA256_BYTES]; /* root and first chain key */
    uint8_t keys[OLM_MESSAGES + 1][CRYPTO_SHA256_BYTES];
    uint8_t secrets[OLM_MESSAGES][CRYPTO_SHA256_BYTES];
    uint8_t extracts[OLM_MESSAGES][CRYPTO_SHA256_BYTES]; /* inside HKDF */
    struct mx__message_keys messages[OLM_MESSAGES];
    struct mx__key_pair base, one_time;
};

static void chain_derive(struct chain *chain, const struct buffer *body, const struct mx_key *bob)
{
    static const uint8_t no_salt[CRYPTO_SHA256_BYTES];
    struct mx__olm_pre_key pre_key;
    struct mx__key_pair identity;
    struct span bytes;
    uint8_t *decoded;

    CHECK_EQ_INT(mx__body_decode(mx_stage_span(body), &decoded, &bytes), 0);
    CHECK_EQ_INT(mx__olm_read_pre_key(bytes, &pre_key), 0);
    identity = tape_find(&pre_key.identity);
    chain->base = tape_find(&pre_key.base_key);
    chain->one_time = tape_find(&pre_key.one_time_key);
    CHECK_EQ_INT(mx__agree(&identity, &pre_key.one_time_key, chain->shared[0]), 0);
    CHECK_EQ_INT(mx__agree(&chain->base, bob, chain->shared[1]), 0);
    CHECK_EQ_INT(mx__agree(&chain->base, &pre_key.one_time_key, chain->shared[2]), 0);
    mx__hkdf((struct span){ NULL, 0 }, MX__BYTES(chain->shared), SPAN("OLM_ROOT"), chain->derived,
        sizeof chain->derived);
    memcpy(chain->keys[0], chain->derived[1], sizeof chain->keys[0]);
    for (int i = 0; i < OLM_MESSAGES; i++) {
        crypto_hmac_sha256(chain->keys[i], sizeof chain->keys[i], "\x01", 1, chain->secrets[i]);
        crypto_hmac_sha256(chain->keys[i], sizeof chain->keys[i], "\x02", 1, chain->keys[i + 1]);
        crypto_hmac_sha256(no_salt, sizeof no_salt, chain->secrets[i], sizeof chain->secrets[i],
            chain->extracts[i]);
        mx__message_keys(MX__BYTES(chain->secrets[i]), "OLM_KEYS", &chain->messages[i]);
    }
    free(decoded);
}

/* Check the keys after the message with this number: its own were wiped, and those before it are gone. The
 * secret of `skipped` (-1: of none) is still in the session. */
static void chain_check(const struct chain *chain, int number, int skipped, void *session)
{
    check_wiped(chain->secrets[number], session, "the secret of a message");
    check_wiped(chain->extracts[number], session, "the extract of a message's secret");
    check_keys_wiped(&chain->messages[number], session);
    for (int i = 0; i < 3; i++)
        check_gone(chain->shared[i], session, "an agreement");
    check_gone(chain->derived[0], NULL, "the root key");
    for (int i = 0; i <= number; i++) {
        check_gone(chain->keys[i], session, "a chain key that was used");
        check_gone(chain->secrets[i], i == skipped ? NULL : session, "the secret of a message");
    }
    check_gone(chain->keys[number + 1], NULL, "the chain key that is next");
}

struct pair {
    struct mx_account *alice, *bob;
    struct mx_olm *to_bob, *to_alice;
    struct buffer bodies[OLM_MESSAGES], plaintext;
    int number;
};

static int pair_start(void *data)
{
    struct pair *pair = data;
    struct mx_one_time_key key;

    CHECK(mx_account_one_time_key_at(pair->bob, 0, &key));
    return mx_olm_create_outbound(
        pair->alice, mx_account_identity_key(pair->bob), &key.key, &tape_random, &pair->to_bob);
}

static int pair_send(void *data)
{
    struct pair *pair = data;
    enum mx_olm_type type;

    return mx_olm_encrypt(
        pair->to_bob, SPAN("hello"), &tape_random, &type, &pair->bodies[pair->number]);
}

static int pair_accept(void *data)
{
    struct pair *pair = data;

    return mx_olm_create_inbound(pair->bob, mx_account_identity_key(pair->alice),
        mx_stage_span(&pair->bodies[pair->number]), &pair->to_alice, &pair->plaintext);
}

static int pair_receive(void *data)
{
    struct pair *pair = data;

    return mx_olm_decrypt(pair->to_alice, MX_OLM_PRE_KEY,
        mx_stage_span(&pair->bodies[pair->number]), &pair->plaintext);
}

static int pair_end(void *data)
{
    struct pair *pair = data;

    mx_olm_destroy(pair->to_bob);
    mx_olm_destroy(pair->to_alice);
    mx_account_destroy(pair->alice);
    mx_account_destroy(pair->bob);
    return 0;
}

static void pair_init(struct pair *pair, struct chain *chain)
{
    *pair = (struct pair){ 0 };
    CHECK_EQ_INT(mx_account_create(&tape_random, &pair->alice), 0);
    CHECK_EQ_INT(mx_account_create(&tape_random, &pair->bob), 0);
    CHECK_EQ_INT(mx_account_add_one_time_keys(pair->bob, 1, &tape_random), 0);
    remains_of(pair_start, pair);
    /* Its message has the keys from which the chain is derived. */
    CHECK_EQ_INT(pair_send(pair), 0);
    chain_derive(chain, &pair->bodies[0], mx_account_identity_key(pair->bob));
    for (int i = 0; i < 3; i++)
        check_wiped(chain->shared[i], pair->to_bob, "an agreement");
    check_wiped(chain->base.secret, pair->to_bob, "the base key");
    check_wiped(chain->derived[0], NULL, "the root key");
    /* HKDF has two copies of its last block, and the handshake a third. */
    CHECK_EQ_INT(count_wiped(chain->keys[0]), 3);
}

static void pair_fini(struct pair *pair, const struct chain *chain)
{
    remains_of(pair_end, pair);
    check_wiped(chain->derived[0], NULL, "the root key");
    check_wiped(chain->keys[OLM_MESSAGES], NULL, "the last chain key");
    check_gone(chain->one_time.secret, NULL, "a one-time key");
    for (int i = 0; i < OLM_MESSAGES; i++)
        buffer_free(&pair->bodies[i]);
    mx_wipe_buffer(&pair->plaintext);
}

TEST(wipe, an_olm_key_is_gone_after_its_message_was_sent)
{
    struct chain chain;
    struct pair pair;

    remains_need();
    pair_init(&pair, &chain);
    for (pair.number = 1; pair.number < OLM_MESSAGES; pair.number++) {
        remains_of(pair_send, &pair);
        chain_check(&chain, pair.number, -1, pair.to_bob);
        check_wiped(chain.keys[pair.number + 1], NULL, "the chain key that is next, in a copy");
    }
    pair_fini(&pair, &chain);
}

TEST(wipe, an_olm_key_is_gone_after_its_message_was_read)
{
    const struct mx__key_pair *one_time;
    struct chain chain;
    struct pair pair;

    remains_need();
    pair_init(&pair, &chain);
    for (pair.number = 1; pair.number < OLM_MESSAGES; pair.number++)
        CHECK_EQ_INT(pair_send(&pair), 0);
    pair.number = 0;
    one_time = mx__account_find(pair.bob, &chain.one_time.public_key);
    CHECK(has_bytes(one_time, sizeof *one_time, chain.one_time.secret));
    remains_of(pair_accept, &pair);
    chain_check(&chain, 0, -1, pair.to_alice);
    check_wiped(chain.one_time.secret, NULL, "a one-time key that was used");
    CHECK(!has_bytes(one_time, sizeof *one_time, chain.one_time.secret)); /* the account's memory */
    pair.number = 2; /* the key of message 1 is skipped */
    remains_of(pair_receive, &pair);
    chain_check(&chain, 2, 1, pair.to_alice);
    pair.number = 1;
    remains_of(pair_receive, &pair);
    check_wiped(chain.secrets[1], pair.to_alice, "the secret of a skipped message");
    check_keys_wiped(&chain.messages[1], pair.to_alice);
    pair_fini(&pair, &chain);
}
