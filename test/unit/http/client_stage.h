/* SPDX-License-Identifier: Apache-2.0 */
/* client_stage.h: a scripted server, a system and a client that talks to it. */
#ifndef TEST_UNIT_HTTP_CLIENT_STAGE_H
#define TEST_UNIT_HTTP_CLIENT_STAGE_H

#include "check.h"
#include "fake_server.h"
#include "http/client.h"

struct stage {
    struct tr_system *system;
    struct http_client *client;
    struct fake_server *server;
};

static inline struct stage stage_of(fake_script script, void *data, const struct fake_tls *tls)
{
    struct stage stage = { .server = fake_server_start(script, data, tls) };

    CHECK_EQ_INT(
        tr_system_create(&(struct tr_system_options){ .workers = 2, .quiet = true }, &stage.system),
        0);
    CHECK_EQ_INT(http_client_start(stage.system,
                     &(struct http_client_options){ .allow_private = true,
                         .concurrent_max = 4,
                         .ca_path = tls == NULL ? NULL : tls->ca_path },
                     &stage.client),
        0);
    return stage;
}

static inline void stage_end(struct stage *stage)
{
    http_client_stop(&stage->client);
    CHECK_EQ_INT(tr_system_join(stage->system, 0), 0);
    tr_system_destroy(&stage->system);
    fake_server_stop(&stage->server);
}

static inline struct http_client_transfer *transfer_of(
    enum http_client_transfer_kind kind, int fd, uint64_t offset, uint64_t size)
{
    struct http_client_transfer *transfer = NULL;

    CHECK_EQ_INT(http_client_transfer_create(
                     &(struct http_client_transfer_options){
                         .kind = kind, .fd = fd, .offset = offset, .size = size },
                     &transfer),
        0);
    return transfer;
}

#endif
