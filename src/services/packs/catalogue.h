/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue.h: the packs, versions and releases. The database is the truth, and one actor owns the
 * copy in memory. Readers use a published snapshot, the view, and send no message. An edit (edit.h)
 * goes to the actor, which answers after the COMMIT, when the new view is published.
 *
 * A view is immutable, and valid until the handler that read it returns: copy what is needed later.
 * A struct pack_version copied by value keeps its texts, but not `pack`. */
#ifndef SERVICES_PACKS_CATALOGUE_H
#define SERVICES_PACKS_CATALOGUE_H

#include "manifest/manifest.h"
#include "services/packs/objects.h"
#include "services/packs/packs.h"
#include "support/buffer.h"

enum {
    PACK_NAME_MAX = MANIFEST_PACK_CHARS_MAX,
    PACK_VERSION_MAX = MANIFEST_VERSION_CHARS_MAX,
    PACK_TYPE_MAX = MANIFEST_TYPE_CHARS_MAX,
    PACK_HISTORY_MAX = 32, /* versions that a rollback can go back */
    RELEASE_ID_SIZE = 32,
    /* An edit past these limits is refused with 409 CatalogueFull. */
    CATALOGUE_PACKS_MAX = 4096,
    CATALOGUE_VERSIONS_MAX = 16384,
    CATALOGUE_RELEASES_MAX = 4096,
    CATALOGUE_ARTIFACTS_MAX = 64, /* of a release */
    /* Texts and blobs of all rows: they are read as one result, which sql limits to 64 MiB. */
    CATALOGUE_BYTES_MAX = 48 << 20,
};

/* As they are stored. */
enum pack_state { PACK_DRAFT = 0, PACK_PUBLISHED = 1, PACK_DISABLED = 2 };
enum release_state { RELEASE_DRAFT = 0, RELEASE_PUBLISHED = 1, RELEASE_DEPRECATED = 2 };
enum pack_key_state { PACK_KEY_CURRENT = 0, PACK_KEY_RETIRED = 1 };

struct pack_variant {
    bool there;
    uint8_t sha256[32];
    char sha256_hex[65];
    uint64_t size;
};

struct pack;
struct pack_version {
    int64_t id;
    const struct pack *pack;
    char pack_name[PACK_NAME_MAX + 1];
    char version[PACK_VERSION_MAX + 1];
    char type[PACK_TYPE_MAX + 1]; /* media type */
    uint8_t sha256[32];
    char sha256_hex[65]; /* also the name of its object */
    uint64_t size;
    int64_t created_s;
    int64_t published_s; /* first time; 0: never */
    bool is_active;
    bool is_disabled;
    struct pack_variant variants[PACK_CODINGS - 1]; /* from PACK_ZSTD on */
    const char *min_app_version;                    /* NULL: none; points into the view */
    struct span manifest;                           /* absent: not signed; points into the view */
    struct span signature;
    const char *signing_key;
};

struct pack_key {
    const char *key;
    enum pack_key_state state;
    struct span statement; /* absent: first key of the pack */
    struct span signature;
    int64_t created_ms;
};

struct pack {
    int64_t id;
    const char *name, *kind, *language, *title;
    const char *description; /* NULL: none */
    enum pack_state state;
    int64_t created_ms, changed_ms;
    const struct pack_version *versions; /* newest first */
    uint32_t version_count;
    const struct pack_version *active; /* NULL: none */
    int64_t history[PACK_HISTORY_MAX]; /* version ids, newest first; the first is active */
    uint32_t history_count;
    int64_t history_place;       /* of the newest entry; 0: none */
    const struct pack_key *keys; /* oldest first */
    uint32_t key_count;
};

struct release_artifact {
    const struct pack *pack;
    const char *role;
    bool is_required;
    const char *wanted; /* version of a draft; NULL: the active one */
    /* Pinned by publishing the release. */
    const char *version;
    char sha256_hex[65];
    uint64_t size;
};

struct release {
    const char *id, *name;
    const char *notes; /* NULL: none */
    const char *roles; /* with commas between them */
    enum release_state state;
    int64_t place; /* 0: a draft */
    int64_t created_ms, published_ms, deprecated_ms;
    const struct release_artifact *artifacts;
    uint32_t artifact_count;
};

struct packs_view {
    const struct pack *packs; /* by name */
    uint32_t pack_count;
    uint32_t version_count;
    const struct release *releases; /* drafts first, then in the order of publishing, newest last */
    uint32_t release_count;
    int64_t pack_id_next, version_id_next, audit_id_next, release_place_next;
    uint64_t stored_bytes; /* of all objects, each counted once */
    uint64_t read_bytes;   /* texts and blobs of all rows */
    uint64_t number;       /* counts the views of this process, from 1 */
};

/* Return the newest view, for use until the handler returns. Never NULL after the start. */
const struct packs_view *catalogue_view(const struct packs *packs);

/* Look up what everybody may see: a published pack, and its versions that were published and are not
 * disabled. NULL: not found. */
const struct pack *catalogue_pack(const struct packs_view *view, struct span name);
const struct pack_version *catalogue_version(const struct pack *pack, struct span version);
/* Look up for administrators, in any state. */
const struct pack *catalogue_any_pack(const struct packs_view *view, struct span name);
const struct pack_version *catalogue_any_version(const struct pack *pack, struct span version);
const struct release *catalogue_release(const struct packs_view *view, struct span id);
const struct release *catalogue_latest(const struct packs_view *view); /* published; NULL: none */

/* The rules of manifest_is_pack and manifest_is_version. */
#define PACK_NAME_RULE "must have a-z, 0-9, '.', '_' and '-' only, and not start with a dot"
#define PACK_VERSION_RULE                                                                          \
    "must have A-Z, a-z, 0-9, '.', '+', '_' and '-' only, and not start with a dot"
#define PACK_NOT_FOUND "There is no pack of this name."
#define VERSION_NOT_FOUND "The pack has no such version."
#define RELEASE_NOT_FOUND "There is no release with this id."
/* Compare by semver if both are semver (a leading v is ignored), else by bytes: < 0, 0, > 0. */
int pack_version_compare(struct span a, struct span b);
/* Compare for sorting: a total order, with texts that are not semver first. */
int pack_version_order(struct span a, struct span b);

/* Create a unit that reads the whole catalogue from one snapshot of the database. NULL: out of
 * memory. */
struct sql_unit *view_unit(void);
/* Build a view from the rows of that unit. Returns TR_ENOMEM, or TR_EPROTO if rows contradict each
 * other. */
int view_build(const struct sql_unit *unit, uint64_t number, struct packs_view **ret_view);
void view_free(void *memory);

/* Load the catalogue and start the actor. Blocks. */
int catalogue_start(struct packs *packs, char *why, size_t why_size);
void catalogue_stop(struct packs *packs);
/* False while the view is behind the database. */
bool catalogue_is_ready(const struct packs *packs, char *why, size_t why_size);

#endif
