/* SPDX-License-Identifier: Apache-2.0 */
/* variant.h: does a compressed file decompress to what it is said to? */
#ifndef SERVICES_PACKS_VARIANT_H
#define SERVICES_PACKS_VARIANT_H

#include <stdint.h>

#include "services/packs/upload.h"

/* Reads the descriptor from its beginning. 0: one whole gzip member or zstd frame, nothing behind
 * it, of exactly `size` bytes with this digest when decompressed. TR_EPROTO: it is not. TR_EIO,
 * TR_ENOMEM. Never more than `size` bytes are decompressed, with a window of 8 MiB at most (RFC
 * 9659: what every client of Content-Encoding: zstd must take). Blocks: for the pool. */
int variant_check(int fd, enum upload_encoding encoding, uint64_t size, const uint8_t sha256[32]);

#endif
