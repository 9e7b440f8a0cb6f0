/* SPDX-License-Identifier: Apache-2.0 */
/* integrity_private.h: the cache of verified files. integrity.c has its messages, integrity_table.c
 * its entries. */
#ifndef SERVICES_PACKS_INTEGRITY_PRIVATE_H
#define SERVICES_PACKS_INTEGRITY_PRIVATE_H

#include <stdatomic.h>

#include "services/packs/integrity.h"

struct integrity {
    struct tr_system *system;
    const struct tr_env *env;
    struct hash_source source;
    uint32_t hashes_max, pinned_max, waiters_max;
    void (*on_hash)(void *data, int64_t key, tr_weak hasher);
    void *on_hash_data;
    struct tr_snapshot *view;
    _Atomic uint64_t ticket;     /* the last ticket; it survives restarts of the actor */
    _Atomic uint32_t jobs_alive; /* jobs use `source` */
    tr_sender cache;
    struct tr_done *done;
};

enum entry_state { COLD, QUEUED, HASHING, VERIFIED };

struct entry {
    int64_t key;
    enum entry_state state;
    uint8_t sha256[32];
    uint64_t size;
    uint32_t tries;
    uint64_t ticket; /* HASHING */
    struct hash_job *job;
    tr_sender hasher;
    tr_reply_handle *waiters;
    uint32_t waiter_count, waiter_capacity;
    struct pinned_file *pinned; /* VERIFIED */
    bool has_known_bad;
    struct file_identity known_bad;
    enum pack_verdict bad_verdict; /* the last verdict, if it was bad */
    struct entry *next;            /* in its chain */
    struct entry *queue_next;      /* QUEUED */
};

struct cache {
    struct integrity *integrity;
    struct entry **chains;
    uint32_t chain_count;
    uint32_t count;        /* of entries */
    uint32_t pinned_count; /* VERIFIED */
    uint32_t hand;         /* of the clock algorithm that evicts unused files */
    uint32_t running;
    struct entry *queue, **queue_last;
    bool is_sweeping; /* the timer runs */
    bool is_changed;  /* the published view is behind */
};

void integrity_table_metrics(void);

/* Publish the VERIFIED entries. If that fails, is_changed stays set. */
void integrity_publish(struct cache *cache);
void integrity_view_free(void *value);

struct entry *integrity_entry(const struct cache *cache, int64_t key); /* NULL: none */
struct entry *integrity_obtain(struct cache *cache, int64_t key);      /* NULL: no memory */
/* Close a VERIFIED file; the entry becomes COLD. */
void integrity_unpin(struct cache *cache, struct entry *entry);
/* Take a QUEUED entry out of the queue. */
void integrity_dequeue(struct cache *cache, struct entry *entry);
/* Cancel the running hash; its hasher ends soon. */
void integrity_disown(struct entry *entry);
/* Remove an entry that is COLD and has no waiters. */
void integrity_forget(struct cache *cache, struct entry *entry);
/* Free an entry in any state. */
void integrity_entry_free(struct entry *entry);
/* Close unused files until the limit of open files is met. */
void integrity_evict(struct cache *cache);

#endif
