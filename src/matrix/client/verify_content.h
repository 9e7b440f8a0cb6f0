/* SPDX-License-Identifier: Apache-2.0 */
/* verify_content.h: the contents of SAS messages, read and written. Functions that read return 0,
 * TR_ENOMEM or an enum mxclient_failure. */
#ifndef MATRIX_CLIENT_VERIFY_CONTENT_H
#define MATRIX_CLIENT_VERIFY_CONTENT_H

#include "json/json_write.h"
#include "matrix/client/verify.h"

#define MXCLIENT_SAS_METHOD "m.sas.v1"

enum { MXCLIENT_SAS_MACS_MAX = 32 }; /* in one message */

/* Check that `methods` of a request or a ready has our method. */
int mxclient_sas_read_methods(const struct json *content);
void mxclient_sas_put_methods(struct json_writer *writer);

/* Write the algorithms that we offer, as members of a start. */
void mxclient_sas_put_offer(struct json_writer *writer);
/* Choose among the algorithms that a start offers: the new MAC if both know it. */
int mxclient_sas_read_offer(const struct json *content, struct mxclient_sas_choice *ret_choice);
/* Write and read the members of an accept. */
void mxclient_sas_put_choice(
    struct json_writer *writer, const struct mxclient_sas_choice *choice, const char *commitment);
int mxclient_sas_read_choice(const struct json *content, struct mxclient_sas_choice *ret_choice,
    char ret_commitment[MX_SAS_COMMITMENT_CHARS + 1]);

/* A key that a MAC speaks about. */
struct mxclient_sas_key {
    char id[MXCLIENT_ID_BYTES_MAX + sizeof "ed25519:"];
    char text[MX_KEY_CHARS + 1];
    bool is_checked; /* the peer's MAC of it was right */
};
void mxclient_sas_key_init(
    struct mxclient_sas_key *key, struct span name, const struct mx_key *value);

/* Write the members of a mac with one key of ours. TR_ENOMEM. */
int mxclient_sas_put_macs(struct json_writer *writer, const struct mx_sas *sas,
    const struct mx_sas_flow *flow, const struct mxclient_sas_choice *choice,
    const struct mxclient_sas_key *key);
/* Check a mac of the peer: the list of its keys, and each key that we know. The first one must be
 * there. Keys that we do not know say nothing. */
int mxclient_sas_check_macs(const struct json *content, const struct mx_sas *sas,
    const struct mx_sas_flow *flow, const struct mxclient_sas_choice *choice,
    struct mxclient_sas_key *keys, size_t count);

#endif
