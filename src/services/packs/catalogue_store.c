/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue_store.c: read all rows of the catalogue and build an immutable view from them. The view
 * owns its memory in blocks, and its pointers point into them. Packs are sorted by name; the versions
 * of a pack lie together, newest first. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "crypto/encoding.h"
#include "services/packs/catalogue.h"
#include "sql/unit.h"

enum { BLOCK_SIZE = 64 << 10 };

struct view_block {
    struct view_block *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};

struct view {
    struct packs_view shown; /* first */
    struct view_block *blocks;
    struct pack *packs;
    struct pack_version *versions;
    struct release *releases;
};

/* The index of the row with an id. */
struct place {
    int64_t id;
    uint32_t index;
};

struct build {
    const struct sql_unit *unit;
    struct view *view;
    struct place *packs, *versions; /* by id */
    int failed;
};

enum { PACKS, VERSIONS, VARIANTS, HISTORY, KEYS, RELEASES, ARTIFACTS, LAST_IDS };

SQL_STATEMENT(all_packs, "SELECT id, name, kind, language, title, description, state, created_ms,"
                         " changed_ms FROM packs");
SQL_STATEMENT(all_versions,
    "SELECT id, pack, version, sha256, size, media_type, min_app_version, is_active, is_disabled,"
    " created_ms, published_ms, manifest, signature, signing_key FROM pack_versions");
SQL_STATEMENT(all_variants, "SELECT version, encoding, sha256, size FROM pack_variants");
SQL_STATEMENT(
    all_history, "SELECT pack, version, place FROM pack_history ORDER BY pack, place DESC");
SQL_STATEMENT(all_keys, "SELECT pack, signing_key, state, statement, signature, created_ms"
                        " FROM pack_keys ORDER BY pack, place");
SQL_STATEMENT(all_releases, "SELECT id, name, notes, roles, state, COALESCE(place, 0), created_ms,"
                            " COALESCE(published_ms, 0), COALESCE(deprecated_ms, 0)"
                            " FROM pack_releases ORDER BY COALESCE(place, 0), created_ms, id");
SQL_STATEMENT(all_artifacts, "SELECT release, pack, role, required, wanted, version, sha256, size"
                             " FROM pack_artifacts ORDER BY release, pack");
SQL_STATEMENT(last_ids, "SELECT (SELECT COALESCE(MAX(id), 0) FROM packs),"
                        " (SELECT COALESCE(MAX(id), 0) FROM pack_versions),"
                        " (SELECT COALESCE(MAX(id), 0) FROM pack_audit),"
                        " (SELECT COALESCE(MAX(place), 0) FROM pack_releases),"
                        " (SELECT CAST(COALESCE(SUM(size), 0) AS BIGINT) FROM"
                        " (SELECT sha256, MAX(size) AS size FROM (SELECT sha256, size FROM"
                        " pack_versions UNION ALL SELECT sha256, size FROM pack_variants) AS every"
                        " GROUP BY sha256) AS each)");

struct sql_unit *view_unit(void)
{
    static const struct sql_statement *const statements[] = {
        [PACKS] = &all_packs,
        [VERSIONS] = &all_versions,
        [VARIANTS] = &all_variants,
        [HISTORY] = &all_history,
        [KEYS] = &all_keys,
        [RELEASES] = &all_releases,
        [ARTIFACTS] = &all_artifacts,
        [LAST_IDS] = &last_ids,
    };
    struct sql_unit *unit = sql_unit_create(0);

    _Static_assert(sizeof statements / sizeof statements[0] == LAST_IDS + 1, "one for each part");
    for (size_t i = 0; unit != NULL && i < sizeof statements / sizeof statements[0]; i++)
        sql_unit_step(unit, statements[i], SQL_ROWS_ANY);
    return unit;
}

/* ---- memory --------------------------------------------------------------------------------- */

static void *view_alloc(struct build *build, size_t size)
{
    struct view_block *block;
    void *memory;

    tr_assert(build->view != NULL);
    block = build->view->blocks;
    size = (size + 15) & ~(size_t)15;
    if (block == NULL || block->size - block->used < size) {
        size_t room = size > BLOCK_SIZE ? size : BLOCK_SIZE;

        block = base_alloc(sizeof *block + room);
        if (block == NULL) {
            build->failed = TR_ENOMEM;
            return NULL;
        }
        *block = (struct view_block){ .next = build->view->blocks, .size = room };
        build->view->blocks = block;
    }
    memory = block->bytes + block->used;
    block->used += size;
    memset(memory, 0, size);
    return memory;
}

static struct span column_bytes(
    const struct build *build, uint32_t step, uint32_t row, uint32_t number)
{
    if (sql_row_is_null(build->unit, step, row, number))
        return (struct span){ NULL, 0 };
    return sql_row_bytes(build->unit, step, row, number);
}

static int64_t number_of(const struct build *build, uint32_t step, uint32_t row, uint32_t number)
{
    return sql_row_is_null(build->unit, step, row, number)
               ? 0
               : sql_row_int(build->unit, step, row, number);
}

/* Copy a text or blob into the view, with a zero after it. An absent span stays absent. */
static struct span copy_bytes(struct build *build, struct span text)
{
    char *copy = text.at == NULL ? NULL : view_alloc(build, text.size + 1);

    if (copy == NULL)
        return (struct span){ NULL, 0 };
    memcpy(copy, text.at, text.size);
    return (struct span){ copy, text.size };
}

static const char *copy_column(struct build *build, uint32_t step, uint32_t row, uint32_t number)
{
    return copy_bytes(build, column_bytes(build, step, row, number)).at;
}

/* A text that does not fit was not written by this program: fails the build. */
static void copy_chars(struct build *build, char *to, size_t size, struct span text)
{
    if (text.size >= size) {
        build->failed = TR_EPROTO;
        return;
    }
    memcpy(to, text.at == NULL ? "" : text.at, text.size);
    to[text.size] = '\0';
}

static void copy_hash(struct build *build, struct span hash, uint8_t to[32], char ret_hex[65])
{
    if (hash.size != 32) {
        build->failed = TR_EPROTO;
        return;
    }
    memcpy(to, hash.at, 32);
    ret_hex[crypto_hex_encode(to, 32, ret_hex)] = '\0';
}

/* ---- finding rows by id --------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b)
{
    int64_t left = ((const struct place *)a)->id, right = ((const struct place *)b)->id;

    return (left > right) - (left < right);
}

/* Returns 0 after failing the build if there is none. */
static uint32_t index_of(
    struct build *build, const struct place *places, uint32_t count, int64_t id)
{
    const struct place wanted = { .id = id }, *place = NULL;

    tr_assert(places != NULL); /* the packs are read first, then the versions */
    if (count > 0)
        place = bsearch(&wanted, places, count, sizeof wanted, compare_places);
    if (place == NULL)
        build->failed = TR_EPROTO;
    return place == NULL ? 0 : place->index;
}

static struct pack *pack_of(struct build *build, int64_t id)
{
    uint32_t index = index_of(build, build->packs, build->view->shown.pack_count, id);

    return build->failed != 0 ? NULL : &build->view->packs[index];
}

static struct pack_version *version_of(struct build *build, int64_t id)
{
    uint32_t index = index_of(build, build->versions, build->view->shown.version_count, id);

    return build->failed != 0 ? NULL : &build->view->versions[index];
}

/* ---- packs ---------------------------------------------------------------------------------- */

static int compare_packs(const void *a, const void *b)
{
    return strcmp(((const struct pack *)a)->name, ((const struct pack *)b)->name);
}

static void read_pack(struct build *build, uint32_t row, struct pack *pack)
{
    pack->id = number_of(build, PACKS, row, 0);
    pack->name = copy_column(build, PACKS, row, 1);
    pack->kind = copy_column(build, PACKS, row, 2);
    pack->language = copy_column(build, PACKS, row, 3);
    pack->title = copy_column(build, PACKS, row, 4);
    pack->description = copy_column(build, PACKS, row, 5);
    pack->state = (enum pack_state)number_of(build, PACKS, row, 6);
    pack->created_ms = number_of(build, PACKS, row, 7);
    pack->changed_ms = number_of(build, PACKS, row, 8);
    if (pack->name == NULL || strlen(pack->name) > PACK_NAME_MAX)
        build->failed = build->failed != 0 ? build->failed : TR_EPROTO;
}

static void read_packs(struct build *build)
{
    uint32_t count = sql_unit_rows(build->unit, PACKS);

    build->packs = base_calloc((count + 1) * sizeof *build->packs);
    build->view->packs = view_alloc(build, (count + 1) * sizeof(struct pack));
    if (build->packs == NULL)
        build->failed = TR_ENOMEM;
    for (uint32_t i = 0; i < count && build->failed == 0; i++)
        read_pack(build, i, &build->view->packs[i]);
    if (build->failed != 0)
        return;
    qsort(build->view->packs, count, sizeof(struct pack), compare_packs);
    build->view->shown.packs = build->view->packs;
    build->view->shown.pack_count = count;
    for (uint32_t i = 0; i < count; i++)
        build->packs[i] = (struct place){ build->view->packs[i].id, i };
    qsort(build->packs, count, sizeof build->packs[0], compare_places);
}

/* ---- versions ------------------------------------------------------------------------------- */

/* A row of pack_versions, to be sorted by pack and version. */
struct sorted {
    uint32_t pack; /* index */
    uint32_t row;
    struct span version;
};

static int compare_sorted(const void *a, const void *b)
{
    const struct sorted *left = a, *right = b;

    if (left->pack != right->pack)
        return left->pack < right->pack ? -1 : 1;
    return pack_version_order(right->version, left->version);
}

static void read_version(
    struct build *build, uint32_t row, struct pack *pack, struct pack_version *version)
{
    version->id = number_of(build, VERSIONS, row, 0);
    version->pack = pack;
    copy_chars(build, version->pack_name, sizeof version->pack_name, span_of(pack->name));
    copy_chars(
        build, version->version, sizeof version->version, column_bytes(build, VERSIONS, row, 2));
    copy_hash(build, column_bytes(build, VERSIONS, row, 3), version->sha256, version->sha256_hex);
    version->size = (uint64_t)number_of(build, VERSIONS, row, 4);
    copy_chars(build, version->type, sizeof version->type, column_bytes(build, VERSIONS, row, 5));
    version->min_app_version = copy_column(build, VERSIONS, row, 6);
    version->is_active = number_of(build, VERSIONS, row, 7) == 1;
    version->is_disabled = number_of(build, VERSIONS, row, 8) == 1;
    version->created_s = number_of(build, VERSIONS, row, 9) / 1000;
    version->published_s = number_of(build, VERSIONS, row, 10) / 1000;
    version->manifest = copy_bytes(build, column_bytes(build, VERSIONS, row, 11));
    version->signature = copy_bytes(build, column_bytes(build, VERSIONS, row, 12));
    version->signing_key = copy_column(build, VERSIONS, row, 13);
    if (pack->version_count++ == 0)
        pack->versions = version;
    if (version->is_active)
        pack->active = version;
}

static void sort_versions(struct build *build, struct sorted *sorted, uint32_t count)
{
    for (uint32_t i = 0; i < count && build->failed == 0; i++) {
        const struct pack *pack = pack_of(build, number_of(build, VERSIONS, i, 1));

        if (pack != NULL)
            sorted[i] = (struct sorted){ (uint32_t)(pack - build->view->packs), i,
                column_bytes(build, VERSIONS, i, 2) };
    }
    if (build->failed == 0)
        qsort(sorted, count, sizeof *sorted, compare_sorted);
}

static void read_versions(struct build *build)
{
    uint32_t count = sql_unit_rows(build->unit, VERSIONS);
    struct sorted *sorted = base_calloc((count + 1) * sizeof *sorted);
    struct view *view = build->view;

    build->versions = base_calloc((count + 1) * sizeof *build->versions);
    view->versions = view_alloc(build, (count + 1) * sizeof *view->versions);
    if (sorted == NULL || build->versions == NULL)
        build->failed = TR_ENOMEM;
    if (build->failed == 0)
        sort_versions(build, sorted, count);
    for (uint32_t i = 0; i < count && build->failed == 0; i++) {
        read_version(build, sorted[i].row, &view->packs[sorted[i].pack], &view->versions[i]);
        build->versions[i] = (struct place){ view->versions[i].id, i };
    }
    if (build->failed == 0)
        qsort(build->versions, count, sizeof build->versions[0], compare_places);
    view->shown.version_count = count;
    base_free(sorted);
}

static void read_variants(struct build *build)
{
    for (uint32_t i = 0; i < sql_unit_rows(build->unit, VARIANTS) && build->failed == 0; i++) {
        struct pack_version *version = version_of(build, number_of(build, VARIANTS, i, 0));
        struct span encoding = column_bytes(build, VARIANTS, i, 1);
        struct pack_variant *variant;

        if (version == NULL)
            return;
        if (!span_is(encoding, "zstd") && !span_is(encoding, "gzip"))
            continue; /* of a newer program: this one cannot serve it */
        variant = &version->variants[span_is(encoding, "zstd") ? 0 : 1];
        variant->there = true;
        variant->size = (uint64_t)number_of(build, VARIANTS, i, 3);
        copy_hash(build, column_bytes(build, VARIANTS, i, 2), variant->sha256, variant->sha256_hex);
    }
}

static void read_history(struct build *build)
{
    for (uint32_t i = 0; i < sql_unit_rows(build->unit, HISTORY) && build->failed == 0; i++) {
        struct pack *pack = pack_of(build, number_of(build, HISTORY, i, 0));

        if (pack == NULL || pack->history_count == PACK_HISTORY_MAX)
            continue;
        if (pack->history_count == 0)
            pack->history_place = number_of(build, HISTORY, i, 2);
        pack->history[pack->history_count++] = number_of(build, HISTORY, i, 1);
    }
}

static void read_keys(struct build *build)
{
    uint32_t count = sql_unit_rows(build->unit, KEYS);
    struct pack_key *keys = view_alloc(build, (count + 1) * sizeof *keys);

    for (uint32_t i = 0; i < count && build->failed == 0; i++) {
        struct pack *pack = pack_of(build, number_of(build, KEYS, i, 0));

        if (pack == NULL)
            return;
        if (pack->key_count++ == 0)
            pack->keys = &keys[i];
        keys[i].key = copy_column(build, KEYS, i, 1);
        keys[i].state = (enum pack_key_state)number_of(build, KEYS, i, 2);
        keys[i].statement = copy_bytes(build, column_bytes(build, KEYS, i, 3));
        keys[i].signature = copy_bytes(build, column_bytes(build, KEYS, i, 4));
        keys[i].created_ms = number_of(build, KEYS, i, 5);
    }
}

/* ---- releases ------------------------------------------------------------------------------- */

static void build_artifact(struct build *build, uint32_t row, struct release_artifact *artifact)
{
    struct span hash = column_bytes(build, ARTIFACTS, row, 6);
    uint8_t bytes[32];

    artifact->pack = pack_of(build, number_of(build, ARTIFACTS, row, 1));
    artifact->role = copy_column(build, ARTIFACTS, row, 2);
    artifact->is_required = number_of(build, ARTIFACTS, row, 3) == 1;
    artifact->wanted = copy_column(build, ARTIFACTS, row, 4);
    artifact->version = copy_column(build, ARTIFACTS, row, 5);
    artifact->size = (uint64_t)number_of(build, ARTIFACTS, row, 7);
    if (hash.at != NULL)
        copy_hash(build, hash, bytes, artifact->sha256_hex);
}

/* The rows are sorted by release id; the releases have another order. */
static void read_artifacts(struct build *build, uint32_t release_count)
{
    uint32_t count = sql_unit_rows(build->unit, ARTIFACTS);
    struct release_artifact *artifacts = view_alloc(build, (count + 1) * sizeof *artifacts);
    struct release *release = NULL;

    for (uint32_t i = 0; i < count && build->failed == 0; i++) {
        struct span id = column_bytes(build, ARTIFACTS, i, 0);

        if (release == NULL || !span_is(id, release->id)) {
            release = NULL;
            for (uint32_t j = 0; j < release_count && release == NULL; j++)
                if (span_is(id, build->view->releases[j].id))
                    release = &build->view->releases[j];
        }
        if (release == NULL) {
            build->failed = TR_EPROTO;
            return;
        }
        build_artifact(build, i, &artifacts[i]);
        if (release->artifact_count++ == 0)
            release->artifacts = &artifacts[i];
    }
}

static void read_releases(struct build *build)
{
    uint32_t count = sql_unit_rows(build->unit, RELEASES);
    struct release *releases = view_alloc(build, (count + 1) * sizeof *releases);

    build->view->releases = releases;
    for (uint32_t i = 0; i < count && build->failed == 0; i++)
        releases[i] = (struct release){
            .id = copy_column(build, RELEASES, i, 0),
            .name = copy_column(build, RELEASES, i, 1),
            .notes = copy_column(build, RELEASES, i, 2),
            .roles = copy_column(build, RELEASES, i, 3),
            .state = (enum release_state)number_of(build, RELEASES, i, 4),
            .place = number_of(build, RELEASES, i, 5),
            .created_ms = number_of(build, RELEASES, i, 6),
            .published_ms = number_of(build, RELEASES, i, 7),
            .deprecated_ms = number_of(build, RELEASES, i, 8),
        };
    if (build->failed == 0)
        read_artifacts(build, count);
    build->view->shown.releases = releases;
    build->view->shown.release_count = count;
}

static void read_last_ids(struct build *build)
{
    struct packs_view *shown = &build->view->shown;

    shown->pack_id_next = number_of(build, LAST_IDS, 0, 0) + 1;
    shown->version_id_next = number_of(build, LAST_IDS, 0, 1) + 1;
    shown->audit_id_next = number_of(build, LAST_IDS, 0, 2) + 1;
    shown->release_place_next = number_of(build, LAST_IDS, 0, 3) + 1;
    shown->stored_bytes = (uint64_t)number_of(build, LAST_IDS, 0, 4);
}

int view_build(const struct sql_unit *unit, uint64_t number, struct packs_view **ret_view)
{
    static void (*const parts[])(struct build * build) = { read_packs, read_versions, read_variants,
        read_history, read_keys, read_releases, read_last_ids };
    struct build build = { .unit = unit, .view = base_calloc(sizeof *build.view) };

    tr_assert(sql_unit_status(unit) == 0);
    if (build.view == NULL)
        return TR_ENOMEM;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && build.failed == 0; i++)
        parts[i](&build);
    base_free(build.packs);
    base_free(build.versions);
    if (build.failed != 0) {
        view_free(build.view);
        return build.failed;
    }
    build.view->shown.read_bytes = unit->results.size;
    build.view->shown.number = number;
    *ret_view = &build.view->shown;
    return 0;
}

void view_free(void *memory)
{
    struct view *view = memory;

    while (view->blocks != NULL) {
        struct view_block *block = view->blocks;

        view->blocks = block->next;
        base_free(block);
    }
    base_free(view);
}
