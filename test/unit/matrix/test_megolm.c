/* SPDX-License-Identifier: Apache-2.0 */
/* Includes the private header: libolm's own vectors are about the ratchet, which callers never see.
 */
#include <stdlib.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "matrix/crypto/mx_private.h"
#include "mx_stage.h"

/* ---- the ratchet, with the vectors of libolm's test_megolm ----------------------------------- */

static struct mx__ratchet ratchet_at(uint32_t index)
{
    struct mx__ratchet ratchet = { .index = index };

    for (size_t i = 0; i < sizeof ratchet.parts; i++)
        ((uint8_t *)ratchet.parts)[i] = (uint8_t) "0123456789ABCDEF"[i % 16];
    return ratchet;
}

static void check_ratchet(const struct mx__ratchet *ratchet, uint32_t index, const char *hex)
{
    uint8_t expected[MX__RATCHET_BYTES];

    CHECK_EQ_U64(ratchet->index, index);
    mx_stage_hex(hex, expected, sizeof expected);
    CHECK(memcmp(ratchet->parts, expected, sizeof expected) == 0);
}

TEST(ratchet, advances_as_libolm_does)
{
    struct mx__ratchet ratchet = ratchet_at(0);

    mx__ratchet_advance(&ratchet, 1);
    check_ratchet(&ratchet, 1,
        "3031323334353637383941424344454630313233343536373839414243444546"
        "3031323334353637383941424344454630313233343536373839414243444546"
        "3031323334353637383941424344454630313233343536373839414243444546"
        "ba9cd955741d1c162323ec825e7c5ce889bbb423a18f23828fb2090d6e2af86a");
    mx__ratchet_advance(&ratchet, 0x1000000);
    check_ratchet(&ratchet, 0x1000000,
        "54022d7dc0298e1637e21c97153092f933c056ff74fe1b922d971f2482c2859c"
        "7004c01ee49bd6efe0073525af9b1632c5be726d12349cc5bd472bdc2df6540f"
        "3112591194fda617e568c683101eaecd7eddd6de1fbc0767ae34da1a09a54eab"
        "ba9cd955741d1c162323ec825e7c5ce889bbb423a18f23828fb2090d6e2af86a");
    mx__ratchet_advance(&ratchet, 0x1041506);
    check_ratchet(&ratchet, 0x1041506,
        "54022d7dc0298e1637e21c97153092f933c056ff74fe1b922d971f2482c2859c"
        "55588df5b7a48878428927868164589f3663447b51edc3595b036ca604c46dcd"
        "5c54850bfa98a1fd79a9df1cbe8fc5681937d30c85c8c31f7bb828816cf9ff3b"
        "956cbf807e65126a49558d45c84a2e4cd56f03e24416b98e1cfd97c206aa907a");
}

static void check_equal(struct mx__ratchet a, struct mx__ratchet b)
{
    CHECK(memcmp(a.parts, b.parts, sizeof a.parts) == 0);
}

TEST(ratchet, overflows_as_libolm_does)
{
    struct mx__ratchet a = ratchet_at(0xffffffff), b = ratchet_at(0);

    mx__ratchet_advance(&a, 0x1000000);
    mx__ratchet_advance(&b, 0x2000000);
    CHECK_EQ_U64(a.index, 0x1000000);
    check_equal(a, b);
    a = b = ratchet_at(1);
    mx__ratchet_advance(&a, 0x80000000);
    mx__ratchet_advance(&a, 0);
    mx__ratchet_advance(&b, 0);
    CHECK_EQ_U64(a.index, 0);
    check_equal(a, b);
}

TEST(ratchet, one_jump_is_many_steps)
{
    static const uint32_t starts[] = { 0, 0xfe, 0xfff0, 0xfffff0, 0xfffffff0 };

    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        struct mx__ratchet steps = ratchet_at(starts[i]), jump = steps;

        for (uint32_t index = starts[i] + 1; index != starts[i] + 600; index++) {
            mx__ratchet_advance(&steps, index);
            jump = ratchet_at(starts[i]);
            mx__ratchet_advance(&jump, index);
            check_equal(steps, jump);
        }
    }
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* libolm's test_group_session. */
static const char libolm_key[] =
    "AgAAAAAwMTIzNDU2Nzg5QUJERUYwMTIzNDU2Nzg5QUJDREVGMDEyMzQ1Njc4OUFCREVGM"
    "DEyMzQ1Njc4OUFCQ0RFRjAxMjM0NTY3ODlBQkRFRjAxMjM0NTY3ODlBQkNERUYwMTIzND"
    "U2Nzg5QUJERUYwMTIzNDU2Nzg5QUJDREVGMDEyMw0bdg1BDq4Px/slBow06q8n/B9WBfw"
    "WYyNOB8DlUmXGGwrFmaSb9bR/eY8xgERrxmP07hFmD9uqA2p8PMHdnV5ysmgufE6oLZ5+"
    "8/mWQOW3VVTnDIlnwd8oHUYRuk8TCQ";
static const char libolm_message[] =
    "AwgAEhAcbh6UpbByoyZxufQ+h2B+8XHMjhR69G8F4+qjMaFlnIXusJZX3r8LnRORG9T3D"
    "XFdbVuvIWrLyRfm4i8QRbe8VPwGRFG57B1CtmxanuP8bHtnnYqlwPsD";

static void check_decrypts(struct mx_inbound *inbound, struct span body, const char *text)
{
    struct buffer plaintext = { 0 };
    uint32_t index = 99;

    CHECK_EQ_INT(mx_inbound_decrypt(inbound, body, &plaintext, &index), 0);
    mx_stage_check_text(&plaintext, text);
    CHECK_EQ_U64(index, 0);
    mx_wipe_buffer(&plaintext);
}

TEST(inbound, reads_the_session_of_libolm)
{
    struct mx_inbound *inbound = NULL, *imported = NULL;
    struct buffer text = { 0 };

    CHECK_EQ_INT(mx_inbound_create(SPAN(libolm_key), &inbound), 0);
    CHECK(mx_inbound_is_verified(inbound));
    check_decrypts(inbound, SPAN(libolm_message), "Message");
    CHECK_EQ_INT(mx_inbound_export(inbound, 0, &text), 0);
    CHECK_EQ_U64(text.size, MX_SESSION_EXPORT_CHARS);
    CHECK_EQ_INT(mx_inbound_import(mx_stage_span(&text), &imported), 0);
    CHECK(!mx_inbound_is_verified(imported));
    check_decrypts(imported, SPAN(libolm_message), "Message");
    CHECK(mx_inbound_is_verified(imported));
    mx_inbound_destroy(inbound);
    mx_inbound_destroy(imported);
    mx_wipe_buffer(&text);
}

TEST(inbound, a_changed_bit_is_refused_and_changes_nothing)
{
    struct mx_inbound *inbound = NULL;
    struct buffer changed = { 0 }, plaintext = { 0 };
    uint8_t bytes[256];
    uint32_t index;
    size_t size;

    CHECK_EQ_INT(mx_inbound_create(SPAN(libolm_key), &inbound), 0);
    CHECK_EQ_INT(mx_base64_decode(SPAN(libolm_message), bytes, sizeof bytes, &size), 0);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        int rc;

        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        buffer_clear(&changed);
        mx_base64_encode(bytes, size, &changed);
        rc = mx_inbound_decrypt(inbound, mx_stage_span(&changed), &plaintext, &index);
        CHECK(rc == MX_EFORMAT || rc == MX_EVERSION || rc == MX_ESIGNATURE);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK_EQ_U64(plaintext.size, 0);
    check_decrypts(inbound, SPAN(libolm_message), "Message");
    buffer_free(&changed);
    mx_wipe_buffer(&plaintext);
    mx_inbound_destroy(inbound);
}

/* S and S + L are one number modulo L, the order of the group: libolm by itself accepts both. */
TEST(inbound, a_second_form_of_the_signature_is_refused)
{
    static const char order[] = "edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010";
    struct buffer changed = { 0 }, plaintext = { 0 };
    uint8_t bytes[256], add[32], *s;
    struct mx_inbound *inbound = NULL;
    unsigned sum = 0;
    uint32_t index;
    size_t size;

    CHECK_EQ_INT(mx_inbound_create(SPAN(libolm_key), &inbound), 0);
    CHECK_EQ_INT(mx_base64_decode(SPAN(libolm_message), bytes, sizeof bytes, &size), 0);
    mx_stage_hex(order, add, sizeof add);
    s = bytes + size - sizeof add;
    for (size_t i = 0; i < sizeof add; i++, sum >>= 8) {
        sum += (unsigned)s[i] + add[i];
        s[i] = (uint8_t)sum;
    }
    CHECK_EQ_U64(sum, 0);
    mx_base64_encode(bytes, size, &changed);
    CHECK_EQ_INT(
        mx_inbound_decrypt(inbound, mx_stage_span(&changed), &plaintext, &index), MX_ESIGNATURE);
    buffer_free(&changed);
    mx_inbound_destroy(inbound);
}

TEST(inbound, a_wrong_session_key_is_refused)
{
    struct mx_inbound *inbound = NULL;
    struct buffer changed = { 0 };
    uint8_t bytes[MX__SESSION_KEY_BYTES];
    size_t size;

    CHECK_EQ_INT(mx_base64_decode(SPAN(libolm_key), bytes, sizeof bytes, &size), 0);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 1;
        buffer_clear(&changed);
        mx_base64_encode(bytes, size, &changed);
        CHECK_EQ_INT(mx_inbound_create(mx_stage_span(&changed), &inbound),
            i == 0 ? MX_EVERSION : MX_ESIGNATURE);
        bytes[i] ^= 1;
    }
    CHECK_EQ_INT(mx_inbound_create(SPAN("AgAA"), &inbound), MX_EFORMAT);
    CHECK_EQ_INT(mx_inbound_import(SPAN(libolm_key), &inbound), MX_EFORMAT);
    memset(changed.bytes, '!', changed.size);
    CHECK_EQ_INT(mx_inbound_create(mx_stage_span(&changed), &inbound), MX_EBASE64);
    buffer_free(&changed);
}

static struct mx_outbound *outbound_of_seed(void)
{
    struct mx_outbound *outbound = NULL;

    CHECK_EQ_INT(mx_outbound_create(mx_stage_random(), &outbound), 0);
    return outbound;
}

static struct mx_inbound *inbound_of(const struct mx_outbound *outbound)
{
    struct mx_inbound *inbound = NULL;
    struct buffer key = { 0 };

    CHECK_EQ_INT(mx_outbound_key(outbound, &key), 0);
    CHECK_EQ_U64(key.size, MX_SESSION_KEY_CHARS);
    CHECK_EQ_INT(mx_inbound_create(mx_stage_span(&key), &inbound), 0);
    mx_wipe_buffer(&key);
    return inbound;
}

/* libolm wrote these texts from the random bytes 0, 1, 2 and so on. */
TEST(outbound, a_session_from_fixed_bytes_is_that_of_libolm)
{
    struct mx_random random = MX_STAGE_COUNTING;
    struct mx_outbound *outbound = NULL;
    struct buffer text = { 0 };

    CHECK_EQ_INT(mx_outbound_create(&random, &outbound), 0);
    CHECK_EQ_INT(mx_outbound_key(outbound, &text), 0);
    mx_stage_check_text(&text,
        "AgAAAAAAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8"
        "PT4/QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl9gYWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+"
        "f80Us3+VbpUxlP9/tzs9gdzFYdYadTgJS3w+GmQ+5fOqEr8kXbwHoCPdmNziaA3AS3E88NfBts8GkbgowcKfTZ/d"
        "UdpB5Lw7Bmjq/LD+MB4Hh2LFmPD5178ooOHsrUquDw");
    buffer_clear(&text);
    CHECK_EQ_INT(mx_outbound_encrypt(outbound, SPAN("Message"), &text), 0);
    mx_stage_check_text(&text,
        "AwgAEhCpNPQi1lfaqj6dsnl9E85P1W+lkNJAObd/VxLLXg96yF53lpHQ5QcGvP65Ml2yhsMO5oX5QdS2nGzjpmvw"
        "pTtUBTTopxJiXjusMTfrnMYDbgzeWqK5z3IE");
    mx_wipe_buffer(&text);
    mx_outbound_destroy(outbound);
}

TEST(outbound, messages_are_read_in_any_order)
{
    enum { COUNT = 300 };
    struct mx_outbound *outbound = outbound_of_seed();
    struct mx_inbound *inbound = inbound_of(outbound);
    struct buffer bodies[COUNT] = { 0 }, plaintext = { 0 };
    char ours[MX_SESSION_ID_CHARS + 1], theirs[MX_SESSION_ID_CHARS + 1];
    uint32_t index;

    mx_outbound_id(outbound, ours);
    mx_inbound_id(inbound, theirs);
    CHECK_EQ_STR(ours, theirs);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_EQ_U64(mx_outbound_index(outbound), i);
        CHECK_EQ_INT(
            mx_outbound_encrypt(outbound, (struct span){ (char *)&i, sizeof i }, &bodies[i]), 0);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t at = i * 7 % COUNT;

        buffer_clear(&plaintext);
        CHECK_EQ_INT(
            mx_inbound_decrypt(inbound, mx_stage_span(&bodies[at]), &plaintext, &index), 0);
        CHECK_EQ_U64(index, at);
        CHECK(plaintext.size == sizeof at && memcmp(plaintext.bytes, &at, sizeof at) == 0);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        buffer_free(&bodies[i]);
    mx_wipe_buffer(&plaintext);
    mx_outbound_destroy(outbound);
    mx_inbound_destroy(inbound);
}

TEST(inbound, messages_before_its_first_index_stay_unread)
{
    struct mx_outbound *outbound = outbound_of_seed();
    struct buffer before = { 0 }, after = { 0 }, plaintext = { 0 };
    struct mx_inbound *inbound;
    uint32_t index;

    mx_outbound_encrypt(outbound, SPAN("before"), &before);
    inbound = inbound_of(outbound);
    mx_outbound_encrypt(outbound, SPAN("after"), &after);
    CHECK_EQ_U64(mx_inbound_first_index(inbound), 1);
    CHECK_EQ_INT(
        mx_inbound_decrypt(inbound, mx_stage_span(&before), &plaintext, &index), MX_EINDEX);
    CHECK_EQ_INT(mx_inbound_export(inbound, 0, &plaintext), MX_EINDEX);
    CHECK_EQ_INT(mx_inbound_decrypt(inbound, mx_stage_span(&after), &plaintext, &index), 0);
    buffer_free(&before);
    buffer_free(&after);
    mx_wipe_buffer(&plaintext);
    mx_outbound_destroy(outbound);
    mx_inbound_destroy(inbound);
}

/* Export libolm's session from `index` on and compare with the bare ratchet. */
static int check_export(uint32_t index)
{
    uint8_t key[MX__SESSION_KEY_BYTES], bytes[MX__SESSION_EXPORT_BYTES];
    struct mx__ratchet ratchet = { .index = 0 };
    struct mx_inbound *inbound = NULL;
    struct buffer text = { 0 };
    int rc;

    CHECK_EQ_INT(mx_inbound_create(SPAN(libolm_key), &inbound), 0);
    rc = mx_inbound_export(inbound, index, &text);
    if (rc == 0) {
        CHECK_EQ_INT(mx__session_key_read(SPAN(libolm_key), key), 0);
        CHECK_EQ_INT(mx__session_export_read(mx_stage_span(&text), bytes), 0);
        memcpy(ratchet.parts, key + 5, sizeof ratchet.parts);
        mx__ratchet_advance(&ratchet, index);
        CHECK(memcmp(bytes + 5, ratchet.parts, sizeof ratchet.parts) == 0);
    }
    mx_wipe_buffer(&text);
    mx_inbound_destroy(inbound);
    return rc;
}

TEST(inbound, half_of_all_indices_are_exported)
{
    static const uint32_t indices[] = { 0, 1, 0xff, 0x100, 0x1234567, 0x7fffffff };

    for (size_t i = 0; i < sizeof indices / sizeof indices[0]; i++)
        CHECK_EQ_INT(check_export(indices[i]), 0);
}

TEST(inbound, the_other_half_is_exported_too)
{
    static const uint32_t indices[] = { 0x80000000, 0xfffffffe, 0xffffffff };

    if (mx_backend == MX_BACKEND_LIBOLM) {
        CHECK_EQ_INT(check_export(indices[0]), MX_EINDEX);
        SKIP("libolm counts indices in a ring: 2^31 and more after the first are refused");
    }
    for (size_t i = 0; i < sizeof indices / sizeof indices[0]; i++)
        CHECK_EQ_INT(check_export(indices[i]), 0);
}

TEST(inbound, an_earlier_copy_is_better_only_if_it_leads_to_the_same_ratchet)
{
    struct mx_outbound *outbound = outbound_of_seed(), *other = outbound_of_seed();
    struct mx_inbound *early = inbound_of(outbound), *stranger = inbound_of(other), *late, *forged;
    struct buffer body = { 0 }, text = { 0 };
    uint8_t bytes[MX__SESSION_EXPORT_BYTES];
    size_t size;

    for (int i = 0; i < 260; i++)
        mx_outbound_encrypt(outbound, SPAN("x"), &body);
    late = inbound_of(outbound);
    CHECK_EQ_INT(mx_inbound_compare(late, early), MX_COPY_BETTER);
    CHECK_EQ_INT(mx_inbound_compare(early, late), MX_COPY_WORSE);
    CHECK_EQ_INT(mx_inbound_compare(early, early), MX_COPY_EQUAL);
    CHECK_EQ_INT(mx_inbound_compare(early, stranger), MX_COPY_UNRELATED);
    CHECK_EQ_INT(mx_inbound_export(early, 3, &text), 0);
    CHECK_EQ_INT(mx_base64_decode(mx_stage_span(&text), bytes, sizeof bytes, &size), 0);
    bytes[5] ^= 1; /* of the ratchet: the id stays the same */
    buffer_clear(&text);
    mx_base64_encode(bytes, size, &text);
    CHECK_EQ_INT(mx_inbound_import(mx_stage_span(&text), &forged), 0);
    CHECK_EQ_INT(mx_inbound_compare(late, forged), MX_COPY_UNRELATED);
    mx_wipe_buffer(&text);
    buffer_free(&body);
    mx_inbound_destroy(early);
    mx_inbound_destroy(late);
    mx_inbound_destroy(stranger);
    mx_inbound_destroy(forged);
    mx_outbound_destroy(outbound);
    mx_outbound_destroy(other);
}

TEST(outbound, out_of_memory_loses_no_message)
{
    struct mx_outbound *outbound = outbound_of_seed();
    struct mx_inbound *inbound = inbound_of(outbound);
    struct buffer body = { 0 }, plaintext = { 0 };
    uint64_t faults = 0;
    uint32_t index;
    int rc;

    do {
        base_fault_countdown(++faults, 1);
        rc = mx_outbound_encrypt(outbound, SPAN("text"), &body);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        CHECK_EQ_U64(mx_outbound_index(outbound), rc == 0 ? 1 : 0);
        body.failed = 0;
    } while (rc != 0);
    CHECK(faults > (mx_backend == MX_BACKEND_LIBOLM ? 1 : 2)); /* libolm fills our memory */
    faults = 0;
    do {
        base_fault_countdown(++faults, 1);
        rc = mx_inbound_decrypt(inbound, mx_stage_span(&body), &plaintext, &index);
        base_fault_countdown(0, 0);
        CHECK(rc == 0 || rc == TR_ENOMEM);
        plaintext.failed = 0;
    } while (rc != 0);
    CHECK(faults > 2);
    mx_stage_check_text(&plaintext, "text");
    buffer_free(&body);
    mx_wipe_buffer(&plaintext);
    mx_outbound_destroy(outbound);
    mx_inbound_destroy(inbound);
}
