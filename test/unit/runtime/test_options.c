/* SPDX-License-Identifier: Apache-2.0 */
/* Options of programs that were compiled against another version of the headers. */
#include <string.h>

#include <troupe/troupe.h>

#include "check.h"
#include "runtime/options.h"

/* A later version's options: one field more. */
struct later_options {
    struct tr_system_options known;
    uint64_t added;
};

static int create_with(const struct tr_system_options *options)
{
    struct tr_system *system;
    int rc = tr_system_create(options, &system);

    if (rc == 0)
        tr_system_destroy(&system);
    return rc;
}

TEST(options, size_zero_and_own_size_are_the_same)
{
    CHECK_EQ_INT(create_with(NULL), 0);
    CHECK_EQ_INT(create_with(&(struct tr_system_options){ .driven = true }), 0);
    CHECK_EQ_INT(
        create_with(&(struct tr_system_options){ TR_SIZED(tr_system_options), .driven = true }), 0);
}

TEST(options, unknown_field_is_refused_unless_zero)
{
    struct later_options later = { .known = { .struct_size = sizeof later, .driven = true } };

    CHECK_EQ_INT(create_with(&later.known), 0);
    later.added = 1;
    CHECK_EQ_INT(create_with(&later.known), TR_EUNSUPPORTED);
}

TEST(options, size_below_the_first_version_is_refused)
{
    CHECK_EQ_INT(create_with(&(struct tr_system_options){ .struct_size = 4, .driven = true }),
        TR_EUNSUPPORTED);
}

TEST(options, field_behind_an_older_struct_is_not_read)
{
    struct later_options copy, older = { .known = { .workers = 7 }, .added = 42 };
    const struct later_options *view;

    /* The program's struct ends where `added` begins: 42 is some other memory of it. */
    view = tr__options_view(&older, &copy, sizeof copy, SYSTEM_OPTIONS_FIRST);
    CHECK(view == &copy);
    CHECK_EQ_INT(view->known.workers, 7);
    CHECK_EQ_INT(view->added, 0);
    older.known.struct_size = SYSTEM_OPTIONS_FIRST;
    view = tr__options_view(&older, &copy, sizeof copy, SYSTEM_OPTIONS_FIRST);
    CHECK_EQ_INT(view->added, 0);
    older.known.struct_size = sizeof older;
    view = tr__options_view(&older, &copy, sizeof copy, SYSTEM_OPTIONS_FIRST);
    CHECK(view == &older);
}

TEST(options, every_call_with_options_refuses_an_unknown_field)
{
    struct {
        struct tr_spawn_options known;
        uint64_t added;
    } spawn = { .known = { .struct_size = sizeof spawn }, .added = 1 };
    struct {
        struct tr_send_options known;
        uint64_t added;
    } send = { .known = { .struct_size = sizeof send }, .added = 1 };
    struct {
        struct tr_registry_options known;
        uint64_t added;
    } registry = { .known = { .struct_size = sizeof registry }, .added = 1 };
    struct {
        struct tr_sim_options known;
        uint64_t added;
    } sim = { .known = { .struct_size = sizeof sim }, .added = 1 };
    static const struct tr_type type = { .name = "none" };
    struct tr_system *system;
    struct tr_registry *ret_registry;
    struct tr_sim *ret_sim;
    tr_sender sender = { 0 };

    CHECK_EQ_INT(tr_system_create(&(struct tr_system_options){ .driven = true }, &system), 0);
    CHECK_EQ_INT(tr_spawn(system, &type, NULL, &spawn.known, &sender), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_tell_with(sender, NULL, 0, &send.known), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_registry_create(system, &registry.known, &ret_registry), TR_EUNSUPPORTED);
    CHECK_EQ_INT(tr_sim_create(&sim.known, &ret_sim), TR_EUNSUPPORTED);
    tr_system_destroy(&system);
}
