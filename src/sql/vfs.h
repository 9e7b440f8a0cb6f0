/* SPDX-License-Identifier: Apache-2.0 */
/* vfs.h: SQLite's files on the runtime's disk table, so that SQLite itself runs in simulation, with
 * the torn and lost writes of its disk. One thread. */
#ifndef SQL_VFS_H
#define SQL_VFS_H

#include <stdbool.h>

#include <troupe/env.h>

struct sql_vfs;

/* Create a VFS and register it with SQLite under a unique name. */
int sql_vfs_create(const struct tr_env *env, struct sql_vfs **ret_vfs);
/* Unregister and free it. All files must be closed. Sets *vfs to NULL. */
void sql_vfs_destroy(struct sql_vfs **vfs);
const char *sql_vfs_name(const struct sql_vfs *vfs);
/* Simulate the death of the process: from now on every call fails and changes nothing. */
void sql_vfs_die(struct sql_vfs *vfs);

#endif
