/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h: the parts of a migration. Only the file with a service's migrations includes it. Each
 * COLUMN ends with a comma; the last definition of a table is LAST. The text of a released migration
 * never changes, so these texts never change either. */
#ifndef SERVICES_COMMON_TABLES_H
#define SERVICES_COMMON_TABLES_H

#define TABLE(name, columns) "CREATE TABLE " name " (\n" columns ");\n"
#define COLUMN(name, type) "    " name " " type ",\n"
#define LAST(definition) "    " definition "\n"
#define KEY(columns) LAST("PRIMARY KEY (" columns ")")
#define TEXT(name) COLUMN(name, "TEXT NOT NULL")
#define BIGINT(name) COLUMN(name, "BIGINT NOT NULL")
#define BLOB(name) COLUMN(name, "{blob} NOT NULL")
#define ADD_COLUMN(table, column) "ALTER TABLE " table " ADD COLUMN " column ";\n"
#define DROP_COLUMN(table, column) "ALTER TABLE " table " DROP COLUMN " column ";\n"
#define DROP_TABLE(table) "DROP TABLE " table ";\n"
#define INDEX(name, on) "CREATE INDEX " name " ON " on ";\n"
#define UNIQUE_INDEX(name, on) "CREATE UNIQUE INDEX " name " ON " on ";\n"
#define DROP_INDEX(name) "DROP INDEX " name ";\n"

#endif
