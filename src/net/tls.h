/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h: TLS for accepted connections, by OpenSSL: versions 1.2 and 1.3 with forward secrecy,
 * without renegotiation and compression. */
#ifndef NET_TLS_H
#define NET_TLS_H

#include <stddef.h>

#include "net/stream.h"

/* A server's certificate and key. Any thread may accept with it while another reloads it. */
struct net_tls;

/* Read certificate and key from PEM files. `protocols` are those of ALPN, the preferred first;
 * the array ends with NULL and lives for ever. On failure `why` gets a sentence. TR_EINVAL,
 * TR_ENOMEM. */
int net_tls_create(const char *certificate_path, const char *key_path, const char *const *protocols,
    char *why, size_t why_size, struct net_tls **ret_tls);
/* Read the files again. On failure the old ones stay. Open connections keep theirs. */
int net_tls_reload(struct net_tls *tls, char *why, size_t why_size);
void net_tls_destroy(struct net_tls **tls);

/* Put TLS on a plain stream. On failure the stream does not change. TR_ENOMEM. */
int net_tls_wrap(struct net_tls *tls, struct net_stream *stream);
/* Take one step of the handshake. It computes much, so do not call it on a worker. Returns 1 when
 * done, NET_AGAIN or NET_GONE. */
int net_tls_handshake(struct net_stream *stream);
/* Returns the protocol that ALPN chose, or "". It lives as long as the stream. */
const char *net_tls_protocol(const struct net_stream *stream);

#endif
