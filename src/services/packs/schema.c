/* SPDX-License-Identifier: Apache-2.0 */
/* schema.c: the tables of packs. The bytes of a version are an object on disk, named by its SHA-256;
 * the rows say which objects exist. A UNIQUE index keeps a pack from having two active versions. */
#include "services/packs/packs.h"

const struct sql_migration packs_migrations[PACKS_MIGRATIONS] = {
    {
        .version = 9,
        .name = "packs: packs, versions, keys, uploads, releases, audit",
        .up = "CREATE TABLE packs (\n"
              "    id BIGINT PRIMARY KEY,\n"
              "    name TEXT NOT NULL UNIQUE,\n"
              "    kind TEXT NOT NULL,\n"
              "    language TEXT NOT NULL,\n"
              "    title TEXT NOT NULL,\n"
              "    description TEXT,\n"
              "    state BIGINT NOT NULL,\n" /* enum pack_state */
              "    created_ms BIGINT NOT NULL,\n"
              "    changed_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE TABLE pack_versions (\n"
              "    id BIGINT PRIMARY KEY,\n" /* never reused */
              "    pack BIGINT NOT NULL REFERENCES packs (id),\n"
              "    version TEXT NOT NULL,\n"
              "    sha256 {blob} NOT NULL,\n"
              "    size BIGINT NOT NULL,\n"
              "    media_type TEXT NOT NULL,\n"
              "    min_app_version TEXT,\n"
              "    is_active BIGINT NOT NULL,\n"
              "    is_disabled BIGINT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    published_ms BIGINT,\n" /* first time; NULL: never */
              "    manifest TEXT,\n"       /* as its publisher signed it */
              "    signature {blob},\n"
              "    signing_key TEXT,\n"
              "    UNIQUE (pack, version)\n"
              ");\n"
              "CREATE UNIQUE INDEX pack_versions_active ON pack_versions (pack)"
              " WHERE is_active = 1;\n"
              "CREATE INDEX pack_versions_sha256 ON pack_versions (sha256);\n"
              "CREATE TABLE pack_variants (\n" /* the same bytes, compressed */
              "    version BIGINT NOT NULL REFERENCES pack_versions (id),\n"
              "    encoding TEXT NOT NULL,\n"
              "    sha256 {blob} NOT NULL,\n"
              "    size BIGINT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (version, encoding)\n"
              ");\n"
              "CREATE TABLE pack_history (\n" /* stack of published versions; the top is active */
              "    pack BIGINT NOT NULL REFERENCES packs (id),\n"
              "    place BIGINT NOT NULL,\n"
              "    version BIGINT NOT NULL REFERENCES pack_versions (id),\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (pack, place)\n"
              ");\n"
              "CREATE TABLE pack_keys (\n"
              "    pack BIGINT NOT NULL REFERENCES packs (id),\n"
              "    place BIGINT NOT NULL,\n" /* order of the statements */
              "    signing_key TEXT NOT NULL,\n"
              "    state BIGINT NOT NULL,\n" /* enum pack_key_state */
              "    statement TEXT,\n"        /* that set the state; NULL: first key */
              "    signature {blob},\n"
              "    created_ms BIGINT NOT NULL,\n"
              "    PRIMARY KEY (pack, place)\n"
              ");\n"
              "CREATE TABLE pack_uploads (\n"
              "    id TEXT PRIMARY KEY,\n" /* also names its file in incoming/ */
              "    pack BIGINT NOT NULL REFERENCES packs (id),\n"
              "    version TEXT NOT NULL,\n"
              "    encoding TEXT,\n" /* NULL: not compressed */
              "    sha256 {blob} NOT NULL,\n"
              "    size BIGINT NOT NULL,\n"
              "    media_type TEXT NOT NULL,\n"
              "    created_by TEXT NOT NULL,\n"
              "    created_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE TABLE pack_releases (\n"
              "    id TEXT PRIMARY KEY,\n"
              "    name TEXT NOT NULL UNIQUE,\n"
              "    notes TEXT,\n"
              "    roles TEXT NOT NULL,\n"   /* required roles, with commas between them */
              "    state BIGINT NOT NULL,\n" /* enum release_state */
              "    place BIGINT UNIQUE,\n"   /* order of publishing; NULL: draft */
              "    created_ms BIGINT NOT NULL,\n"
              "    published_ms BIGINT,\n"
              "    deprecated_ms BIGINT\n"
              ");\n"
              "CREATE TABLE pack_artifacts (\n"
              "    release TEXT NOT NULL REFERENCES pack_releases (id),\n"
              "    pack BIGINT NOT NULL REFERENCES packs (id),\n"
              "    role TEXT NOT NULL,\n"
              "    required BIGINT NOT NULL,\n"
              "    wanted TEXT,\n" /* version of a draft; NULL: the active one */
              /* Publishing the release writes the rest, once. */
              "    version TEXT,\n"
              "    sha256 {blob},\n"
              "    size BIGINT,\n"
              "    PRIMARY KEY (release, pack)\n"
              ");\n"
              "CREATE TABLE pack_audit (\n"
              "    id BIGINT PRIMARY KEY,\n"
              "    actor TEXT NOT NULL,\n"
              "    action TEXT NOT NULL,\n"
              "    pack TEXT,\n"
              "    version TEXT,\n"
              "    release TEXT,\n"
              "    created_ms BIGINT NOT NULL\n"
              ");\n"
              "CREATE INDEX pack_audit_of ON pack_audit (pack, id);\n",
        .down = "DROP TABLE pack_audit;\nDROP TABLE pack_artifacts;\nDROP TABLE pack_releases;\n"
                "DROP TABLE pack_uploads;\nDROP TABLE pack_keys;\nDROP TABLE pack_history;\n"
                "DROP TABLE pack_variants;\nDROP TABLE pack_versions;\nDROP TABLE packs;\n",
    },
};
