/* SPDX-License-Identifier: Apache-2.0 */
/* import_store.h: the statements of an import. */
#ifndef SERVICES_DELIVERY_IMPORT_IMPORT_STORE_H
#define SERVICES_DELIVERY_IMPORT_IMPORT_STORE_H

#include "sql/sql.h"

extern const struct sql_statement import_find_convo;
extern const struct sql_statement import_put_mark;
extern const struct sql_statement import_put_convo;
extern const struct sql_statement import_set_convo;
/* The source does not say why a member left. It counts as removed: it comes back when it is added.
 */
extern const struct sql_statement import_put_member;
extern const struct sql_statement import_forget_targets;
extern const struct sql_statement import_forget_welcomes;
extern const struct sql_statement import_forget_log;
extern const struct sql_statement import_forget_members;
extern const struct sql_statement import_forget_convo;
extern const struct sql_statement import_forget_mark;
extern const struct sql_statement import_count_log;
extern const struct sql_statement import_put_log;
extern const struct sql_statement import_put_package;
extern const struct sql_statement import_put_device;
extern const struct sql_statement import_put_welcome;
/* Finds the device by the package, where the package is still known. */
extern const struct sql_statement import_put_target;

#endif
