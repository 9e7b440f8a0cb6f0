/* SPDX-License-Identifier: Apache-2.0 */
/* variant.h: check that a compressed file decompresses to its version. */
#ifndef SERVICES_PACKS_VARIANT_H
#define SERVICES_PACKS_VARIANT_H

#include <stdint.h>

#include "services/packs/upload.h"

/* Decompress the file from its beginning. Returns 0 if it is one whole gzip member or zstd frame with
 * nothing after it, of exactly `size` decompressed bytes with this digest; otherwise TR_EPROTO,
 * TR_EIO or TR_ENOMEM. Decompresses at most `size` bytes, with a window of at most 8 MiB (RFC 9659:
 * every client of Content-Encoding: zstd must support that). Blocks: for the pool. */
int variant_check(int fd, enum upload_encoding encoding, uint64_t size, const uint8_t sha256[32]);

#endif
