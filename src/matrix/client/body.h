/* SPDX-License-Identifier: Apache-2.0 */
/* body.h: texts at rest. The server never sees a decrypted event or a message that waits to be
 * encrypted, so a copy of the database must not show it either: both are sealed with the host's key,
 * bound to their row. Bodies that the server has in the clear, and ciphertext, are stored as they
 * are. */
#ifndef MATRIX_CLIENT_BODY_H
#define MATRIX_CLIENT_BODY_H

#include "matrix/client/session.h"

/* Append a text as it is stored in the row with this key. MX_ETOOBIG, TR_ENOMEM. */
int mxclient_body_seal(const struct mxclient_session *session, struct span row_key,
    struct span text, struct buffer *out);
/* Append the text of a stored body, JSON: of an event (its key is the event id) or of the content of
 * an outbox row (the transaction id). The caller wipes it. MX_EMAC: another key, or a body that was
 * changed or moved; MX_E*, TR_ENOMEM. */
int mxclient_body_open(
    const struct mx_pickle_key *key, struct span row_key, struct span body, struct buffer *out);
/* Free a document that json_parse_copy made of such a text: its copy is wiped, too. */
static inline void mxclient_body_forget(struct json_doc *doc)
{
    mx_wipe_buffer(&doc->copy);
    json_doc_free(doc);
}

#endif
