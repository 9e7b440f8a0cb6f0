/* SPDX-License-Identifier: Apache-2.0 */
/* key_file.h: all received sessions as the JSON of a key file, and back. A passphrase protects the file
 * (mx_key_file_encrypt, mx_key_file_decrypt); that takes a second of a processor by design, so it runs
 * in no actor. */
#ifndef MATRIX_CLIENT_KEY_FILE_H
#define MATRIX_CLIENT_KEY_FILE_H

#include "matrix/client/client.h"

enum { MXCLIENT_IMPORT_MAX = 50000 }; /* sessions in one file, and in one unit */

/* Append all sessions, a JSON array, each from the first index that is known; our own ones too. The
 * caller wipes it. MX_ETOOBIG over MX_KEY_FILE_BYTES_MAX, TR_ENOMEM. */
int mxclient_key_file_write(const struct mxclient *client, struct buffer *sessions);

struct mxclient_import {
    uint32_t sessions; /* in the file */
    uint32_t taken;    /* new, or better than the copy that was known */
    uint32_t known;    /* not better; they change nothing */
    uint32_t invalid;  /* skipped */
};
/* Take the sessions of a key file and add the steps that store them. Held events of their rooms are
 * due again. MX_EFORMAT for a text that is no JSON array, MX_ETOOBIG over the limits: no step was
 * added. TR_ENOMEM: drop the client and load it. */
int mxclient_key_file_take(struct mxclient *client, struct span sessions, struct sql_unit *unit,
    struct mxclient_import *ret_import);

#endif
