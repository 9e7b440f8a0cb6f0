/* SPDX-License-Identifier: Apache-2.0 */
#include "matrix/client/body.h"

int mxclient_body_seal(const struct mxclient_session *session, struct span row_key,
    struct span text, struct buffer *out)
{
    return mx_text_seal(text, row_key, session->key, session->random, out);
}

/* A body that is not sealed is a JSON object and starts with a brace; an abandoned event has none. */
int mxclient_body_open(
    const struct mx_pickle_key *key, struct span row_key, struct span body, struct buffer *out)
{
    if (body.size == 0 || body.at[0] == '{')
        return buffer_span(out, body);
    return mx_text_open(body, row_key, key, out);
}
