/* SPDX-License-Identifier: Apache-2.0 */
/* receipt.h: proof of the order of a conversation's commits. Every commit, revocation and reset has
 * a row in a hash chain:
 *
 *   receipt = SHA-256( receipt before (32 bytes, zeros for the first) | seq (8 bytes, big-endian)
 *                      | base epoch (8) | SHA-256 of what was stored (32) )
 *
 * and the server signs the newest one, with Ed25519, over
 *
 *   "troupe-receipt-v1" | size of the conversation's id (2 bytes, big-endian) | id | seq (8)
 *   | receipt (32)
 *
 * A client that keeps a signed receipt can prove that the server showed another history later. To
 * verify an answer of getReceipts: check the signature with `publicKey`; begin with `previous`,
 * compute each receipt from the one before it and compare; compare the last with the signed one if
 * it has the same seq. Compare the SHA-256 of each commit whose bytes you have. */
#ifndef SERVICES_DELIVERY_CONVO_RECEIPT_H
#define SERVICES_DELIVERY_CONVO_RECEIPT_H

#include "crypto/key.h"
#include "support/buffer.h"

struct receipt_row {
    uint64_t seq;
    uint64_t base_epoch;
    const void *sha256; /* 32 bytes */
};
/* Replaces `chain` by the next receipt. */
void receipt_extend(unsigned char chain[32], const struct receipt_row *row);
/* Appends the bytes that the server signs. */
void receipt_statement(struct buffer *out, struct span convo, uint64_t seq, const void *receipt);
/* Reads the server's key from DIRECTORY/receipts.key, or creates it there with mode 0600. Without a
 * directory the key is of this process alone. On failure `why` gets a sentence. */
int receipt_key_open(
    const char *directory, char *why, size_t why_size, struct crypto_key **ret_key);

#endif
