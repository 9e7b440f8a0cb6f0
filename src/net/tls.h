/* SPDX-License-Identifier: Apache-2.0 */
/* tls.h: TLS for accepted connections, by OpenSSL: 1.2 and 1.3, without renegotiation and
 * compression, forward secrecy only. */
#ifndef NET_TLS_H
#define NET_TLS_H

#include <stddef.h>

#include "net/stream.h"

/* A server's certificate and key. Any thread may accept with it while another reloads it. */
struct net_tls;

/* PEM files; the key must fit the certificate. `protocols`: what ALPN offers, most wanted first;
 * ends with NULL and lives for ever. `why` gets a sentence. */
int net_tls_create(const char *certificate_path, const char *key_path, const char *const *protocols,
    char *why, size_t why_size, struct net_tls **ret_tls);
/* Read the files again; what is there stays on failure. Open connections keep theirs. */
int net_tls_reload(struct net_tls *tls, char *why, size_t why_size);
void net_tls_destroy(struct net_tls **tls);

/* Put TLS on a plain stream; on failure it is as before. TR_ENOMEM. */
int net_tls_wrap(struct net_tls *tls, struct net_stream *stream);
/* One step of the handshake: computes much, so best not on a worker. 1 done, NET_AGAIN, NET_GONE.
 */
int net_tls_handshake(struct net_stream *stream);
/* What ALPN agreed on, "" if nothing. Lives as long as the stream. */
const char *net_tls_protocol(const struct net_stream *stream);

#endif
