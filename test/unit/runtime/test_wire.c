/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <troupe/error.h>

#include "base/alloc.h"
#include "base/random.h"
#include "check.h"
#include "runtime/wire.h"

enum { BODY_MAX = 1000 };

static const struct tr__wire_frame samples[] = {
    { .kind = WIRE_HELLO, .id = WIRE_VERSION, .argument = 40 },
    { .kind = WIRE_BEGIN, .id = 7 },
    { .kind = WIRE_DONE, .id = 7 },
    { .kind = WIRE_DONE, .id = 8, .argument = (uint64_t)(int64_t)TR_EPROTO },
    { .kind = WIRE_REPLY, .id = 7, .body = "value", .size = 5 },
    { .kind = WIRE_REPLY, .id = 9, .argument = (uint64_t)(int64_t)TR_ECRASHED },
    { .kind = WIRE_ACCEPT, .id = UINT64_MAX },
    { .kind = WIRE_PONG, .id = 1 },
    { .kind = WIRE_BYE },
};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

static void put(struct tr__wire_buffer *buffer, struct tr__wire_frame frame)
{
    CHECK_EQ_INT(tr__wire_put(buffer, &frame), 0);
}

static int take(struct tr__wire_buffer *buffer, struct tr__wire_frame *ret_frame)
{
    return tr__wire_take(buffer, WIRE_FROM_CHILD, BODY_MAX, ret_frame);
}

static void check_same(const struct tr__wire_frame *a, const struct tr__wire_frame *b)
{
    CHECK_EQ_INT(a->kind, b->kind);
    CHECK_EQ_INT(a->lane, b->lane);
    CHECK_EQ_U64(a->id, b->id);
    CHECK_EQ_U64(a->argument, b->argument);
    CHECK_EQ_U64(a->size, b->size);
    CHECK(a->size == 0 || memcmp(a->body, b->body, a->size) == 0);
}

/* One frame of these bytes, the rest zero, alone in a buffer. */
static int take_bytes(const void *bytes, size_t size, enum tr__wire_way way)
{
    struct tr__wire_buffer buffer = { 0 };
    struct tr__wire_frame frame;
    int rc;

    CHECK_EQ_INT(tr__wire_put_bytes(&buffer, bytes, size), 0);
    rc = tr__wire_take(&buffer, way, BODY_MAX, &frame);
    tr__wire_fini(&buffer);
    return rc;
}

TEST(wire, frames_come_out_as_they_went_in)
{
    struct tr__wire_buffer buffer = { 0 };
    struct tr__wire_frame frame;

    for (int i = 0; i < SAMPLES; i++)
        put(&buffer, samples[i]);
    for (int i = 0; i < SAMPLES; i++) {
        CHECK_EQ_INT(take(&buffer, &frame), 1);
        check_same(&frame, &samples[i]);
    }
    CHECK_EQ_INT(take(&buffer, &frame), 0);
    tr__wire_fini(&buffer);
}

TEST(wire, frames_are_whole_however_their_bytes_arrive)
{
    struct tr__wire_buffer all = { 0 }, part = { 0 };
    struct tr__wire_frame frame;

    for (int i = 0; i < SAMPLES; i++)
        put(&all, samples[i]);
    for (size_t piece = 1; piece < 60; piece++) {
        int seen = 0;

        for (size_t at = 0; at < tr__wire_size(&all); at += piece) {
            size_t left = tr__wire_size(&all) - at;

            CHECK_EQ_INT(tr__wire_put_bytes(&part, all.bytes + at, left < piece ? left : piece), 0);
            while (take(&part, &frame) > 0)
                check_same(&frame, &samples[seen++]);
        }
        CHECK_EQ_INT(seen, SAMPLES);
        CHECK_EQ_U64(tr__wire_size(&part), 0);
    }
    tr__wire_fini(&all);
    tr__wire_fini(&part);
}

TEST(wire, size_over_the_bound_is_refused_before_its_bytes_come)
{
    unsigned char bytes[4] = { 0 };
    uint32_t size = WIRE_HEADER - 4 + BODY_MAX + 1;

    memcpy(bytes, &size, sizeof size);
    CHECK_EQ_INT(take_bytes(bytes, 4, WIRE_FROM_CHILD), TR_EPROTO);
    memset(bytes, 0xff, sizeof bytes);
    CHECK_EQ_INT(take_bytes(bytes, 4, WIRE_FROM_CHILD), TR_EPROTO);
    CHECK_EQ_INT(take_bytes(bytes, 3, WIRE_FROM_CHILD), 0);
}

TEST(wire, size_under_the_header_is_refused)
{
    unsigned char bytes[WIRE_HEADER] = { WIRE_HEADER - 5 };

    CHECK_EQ_INT(take_bytes(bytes, sizeof bytes, WIRE_FROM_CHILD), TR_EPROTO);
    memset(bytes, 0, sizeof bytes);
    CHECK_EQ_INT(take_bytes(bytes, sizeof bytes, WIRE_FROM_CHILD), TR_EPROTO);
}

/* Each is a good frame but for one thing. */
TEST(wire, every_field_is_checked)
{
    static const struct tr__wire_frame bad[] = {
        { .kind = 0 },
        { .kind = WIRE_KINDS },
        { .kind = (enum tr__wire_kind)255 },
        { .kind = WIRE_TELL, .id = 1 }, /* goes the other way */
        { .kind = WIRE_ASK, .id = 1 },
        { .kind = WIRE_PING, .id = 1 },
        { .kind = WIRE_STOP },
        { .kind = WIRE_BEGIN, .lane = 1, .id = 1 },
        { .kind = WIRE_BEGIN, .id = 1, .argument = 1 },
        { .kind = WIRE_BEGIN, .id = 1, .body = "x", .size = 1 },
        { .kind = WIRE_DONE, .id = 1, .argument = 1 },
        { .kind = WIRE_DONE, .id = 1, .body = "x", .size = 1 },
        { .kind = WIRE_REPLY, .id = 1, .argument = 1 },
        { .kind = WIRE_REPLY, .id = 1, .argument = (uint64_t)INT64_MIN },
        { .kind = WIRE_REPLY, .id = 1, .lane = 2 },
        { .kind = WIRE_HELLO, .id = 1, .argument = UINT64_C(1) << 32 },
        { .kind = WIRE_HELLO, .id = 1, .body = "x", .size = 1 },
        { .kind = WIRE_PONG, .id = 1, .argument = 1 },
        { .kind = WIRE_ACCEPT, .id = 1, .body = "x", .size = 1 },
        { .kind = WIRE_BYE, .id = 1 },
        { .kind = WIRE_BYE, .argument = 1 },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tr__wire_buffer buffer = { 0 };
        struct tr__wire_frame frame;

        put(&buffer, bad[i]);
        CHECK_MSG(take(&buffer, &frame) == TR_EPROTO, "row %zu was taken", i);
        tr__wire_fini(&buffer);
    }
    for (int place = 6; place < 8; place++) {
        unsigned char bytes[WIRE_HEADER];

        tr__wire_header(bytes, &samples[1]);
        bytes[place] = 1;
        CHECK_EQ_INT(take_bytes(bytes, sizeof bytes, WIRE_FROM_CHILD), TR_EPROTO);
    }
}

TEST(wire, lanes_of_messages_are_checked)
{
    struct tr__wire_frame frame = { .kind = WIRE_ASK, .id = 1, .argument = UINT64_MAX };
    unsigned char bytes[WIRE_HEADER];

    for (int lane = 0; lane < 256; lane++) {
        frame.lane = (uint8_t)lane;
        tr__wire_header(bytes, &frame);
        CHECK_EQ_INT(take_bytes(bytes, sizeof bytes, WIRE_TO_CHILD), lane < 3 ? 1 : TR_EPROTO);
    }
}

/* For any bytes: a frame that is accepted encodes to the same bytes, so it has one meaning. */
TEST_LONG(wire, noise_is_refused_or_understood_exactly, 60)
{
    for (uint64_t seed; check_each_seed(&seed, 2000);) {
        struct tr__wire_buffer buffer = { 0 };
        struct tr__wire_frame frame;
        struct base_random random;
        unsigned char bytes[200];
        size_t used = 0;
        int rc;

        base_random_init(&random, seed);
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)base_random_next(&random);
        /* Half of them begin with a frame that is nearly right. */
        if (seed % 2 == 0) {
            tr__wire_header(bytes, &samples[seed / 2 % SAMPLES]);
            if (seed % 3 == 0)
                bytes[base_random_below(&random, WIRE_HEADER)] ^=
                    (unsigned char)(1u << base_random_below(&random, 8));
        }
        CHECK_EQ_INT(tr__wire_put_bytes(&buffer, bytes, sizeof bytes), 0);
        while ((rc = take(&buffer, &frame)) > 0) {
            unsigned char again[WIRE_HEADER];

            tr__wire_header(again, &frame);
            CHECK(memcmp(again, bytes + used, WIRE_HEADER) == 0);
            used += WIRE_HEADER + frame.size;
        }
        CHECK(rc == 0 || rc == TR_EPROTO);
        tr__wire_fini(&buffer);
    }
}

static int count_frame(void *owner, struct tr_context *ctx, const struct tr__wire_frame *frame)
{
    unsigned *got = owner;

    (void)ctx;
    CHECK_EQ_U64(frame->id, (*got)++);
    return 0;
}

TEST(wire, full_socket_takes_what_it_can_and_the_rest_later)
{
    struct tr__wire_buffer out = { 0 }, in = { 0 };
    static unsigned char body[BODY_MAX];
    unsigned put_count = 0, got = 0;
    const struct tr__wire_reader reader = { WIRE_FROM_CHILD, BODY_MAX, count_frame, &got };
    int pair[2], rc;

    CHECK_EQ_INT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    do {
        put(&out, (struct tr__wire_frame){
                      .kind = WIRE_REPLY, .id = put_count++, .body = body, .size = BODY_MAX });
        rc = tr__wire_send(&out, pair[0]);
    } while (rc == 0);
    CHECK_EQ_INT(rc, TR_EAGAIN);
    while (got < put_count) {
        rc = tr__wire_read(&in, pair[1], 1, &reader, NULL);
        CHECK(rc >= 0);
        rc = tr__wire_send(&out, pair[0]);
        CHECK(rc == 0 || rc == TR_EAGAIN);
    }
    close(pair[0]);
    CHECK_EQ_INT(tr__wire_read(&in, pair[1], 1, &reader, NULL), TR_ECLOSED);
    put(&out, samples[0]);
    CHECK_EQ_INT(tr__wire_send(&out, pair[1]), TR_ECLOSED); /* and no SIGPIPE */
    close(pair[1]);
    tr__wire_fini(&in);
    tr__wire_fini(&out);
}

TEST(wire, out_of_memory_leaves_the_buffer_as_it_was)
{
    struct tr__wire_buffer buffer = { 0 };
    static unsigned char body[BODY_MAX];
    struct tr__wire_frame large = { .kind = WIRE_REPLY, .id = 1, .body = body, .size = BODY_MAX };
    struct tr__wire_frame frame;

    put(&buffer, samples[1]);
    base_fault_countdown(1, UINT64_MAX);
    for (int i = 0; i < 10; i++)
        if (tr__wire_put(&buffer, &large) < 0)
            break;
    CHECK_EQ_INT(tr__wire_put(&buffer, &large), TR_ENOMEM);
    base_fault_countdown(0, 0);
    CHECK_EQ_INT(take(&buffer, &frame), 1);
    check_same(&frame, &samples[1]);
    CHECK_EQ_INT(take(&buffer, &frame), 1);
    check_same(&frame, &large);
    tr__wire_fini(&buffer);
}
