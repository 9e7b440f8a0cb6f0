/* SPDX-License-Identifier: Apache-2.0 */
/* Permissions: every cell of authz_table.h, asked of a real server. */
#include "authz_table.h"
/* The table of routes itself, so that one without a row does not compile. It takes the place of the
 * library's, which is the same file. */
#include "services/delivery/api/routes.c" /* NOLINT(bugprone-suspicious-include) */

_Static_assert(AUTHZ_ROWS == sizeof routes / sizeof routes[0],
    "every route has one row in authz_table.h: say there who may call it");

static const char *const column_names[AUTHZ_COLUMNS] = { "anonymous", "stranger", "invited",
    "member", "removed", "moderator", "admin", "other device", "expired", "wrong aud",
    "wrong lxm" };

/* Everything anew: people, their devices, the conversation. */
static void renew(struct cast *cast, const struct authz_row *row)
{
    people_end(cast);
    people_begin(cast);
    convo_begin(cast);
    take_steps(cast, row->given);
}

/* ---- one cell ------------------------------------------------------------------------------- */

/* Finds the owner for a bad token: a caller who may call with a good one. */
static enum authz_who anybody_in(const struct authz_row *row)
{
    return row->cells[ADMIN].status == 200 ? ADA : BOB;
}

static enum authz_who who_is(const struct authz_row *row, enum authz_column column)
{
    static const enum authz_who people[AUTHZ_COLUMNS] = { [STRANGER] = EVE,
        [INVITED] = INV,
        [MEMBER] = BOB,
        [REMOVED] = REM,
        [MODERATOR] = MAX,
        [ADMIN] = ADA,
        [OTHER_DEVICE] = BOB };

    return column == ANONYMOUS || column >= EXPIRED ? anybody_in(row) : people[column];
}

static char *header_for(const struct caller *caller, enum authz_column column, const char *name)
{
    struct token with = { "did:web:localhost", name, 0 };

    if (column == ANONYMOUS)
        return strdup("");
    if (column == EXPIRED)
        with.age_s = 3600;
    if (column == WRONG_AUD)
        with.aud = "did:web:elsewhere.example";
    if (column == WRONG_LXM)
        with.lxm = strcmp(name, "getEpoch") == 0 ? "getConvo" : "getEpoch";
    return header_of(caller, &with);
}

static bool is_as_wanted(
    const struct web_answer *answer, const struct authz_cell *cell, const char *shows)
{
    char label[96];

    if (answer->status != cell->status)
        return false;
    if (cell->label != NULL) {
        (void)snprintf(label, sizeof label, "\"error\":\"%s\"", cell->label);
        return strstr(answer->text, label) != NULL;
    }
    return shows == NULL || (strstr(answer->body, shows) == NULL) == cell->is_blind;
}

/* test/integration/api_description.py compares answers with what is described. */
static void note_answer(const char *name, unsigned status, const char *body)
{
    const char *path = getenv("TROUPE_ANSWERS");
    FILE *file = path == NULL ? NULL : fopen(path, "a");

    if (file == NULL)
        return;
    CHECK(fprintf(file, "%s\t%u\t%s\n", name, status, body) > 0);
    CHECK_EQ_INT(fclose(file), 0);
}

/* True if it was as the table says. *ret_changed: the answer may have changed something. */
static bool try_cell(
    struct cast *cast, const struct authz_row *row, enum authz_column column, bool *ret_changed)
{
    const struct authz_cell *cell = &row->cells[column];
    const struct speaker speaker = { cast, &cast->callers[who_is(row, column)],
        column == OTHER_DEVICE ? "tablet" : "phone" };
    char *shows = row->shows == NULL ? NULL : fill_in(&speaker, row->shows);
    char *call = fill_in(&speaker, row->call), name[64], *header;
    char *body = row->body == NULL ? NULL : fill_in(&speaker, row->body);
    struct web_answer answer;
    bool is_good;

    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "?"), call);
    header = header_for(speaker.me, column, name);
    answer = ask_with(cast, header, call, body);
    /* The begin of a stream is no JSON. */
    note_answer(name, answer.status,
        strstr(name, "ConvoEvents") != NULL && answer.status == 200 ? "" : answer.body);
    is_good = is_as_wanted(&answer, cell, shows);
    if (!is_good)
        printf("%s by %s: wanted %u %s%s%s\n  asked %s %s\n  got %.600s\n", name,
            column_names[column], cell->status, cell->label == NULL ? "" : cell->label,
            shows == NULL || cell->label != NULL ? ""
            : cell->is_blind                     ? "without "
                                                 : "with ",
            shows == NULL || cell->label != NULL ? "" : shows, call, body == NULL ? "" : body,
            answer.text);
    *ret_changed = answer.status == 200 && (body != NULL || strcmp(name, "getKeyPackages") == 0 ||
                                               strcmp(name, "getWelcome") == 0);
    web_answer_free(&answer);
    free(header);
    free(shows);
    free(call);
    free(body);
    return is_good;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static const struct authz_row *row_of(const struct http_route *route)
{
    const struct authz_row *found = NULL;

    for (size_t i = 0; i < AUTHZ_ROWS; i++)
        if (strlen(route->label) == strcspn(authz_rows[i].call, "?") &&
            strncmp(authz_rows[i].call, route->label, strlen(route->label)) == 0) {
            CHECK_MSG(found == NULL, "%s has two rows", route->label);
            found = &authz_rows[i];
        }
    return found;
}

TEST(authz, names_every_route_once_and_every_cell)
{
    for (size_t i = 0; i < delivery_service.route_count; i++) {
        const struct http_route *route = &delivery_service.routes[i];
        const struct authz_row *row = row_of(route);
        const struct auth_demand *demand = route->demand;

        CHECK_MSG(row != NULL, "%s has no row", route->label);
        CHECK_MSG((row->body == NULL) == (route->method == HTTP_GET), "%s", route->label);
        for (int column = 0; column < AUTHZ_COLUMNS; column++)
            CHECK_MSG(row->cells[column].status != 0, "%s: %s is empty", route->label,
                column_names[column]);
        /* Every route has the gate, and its token is for this call alone. */
        CHECK(route->gate == auth_gate && demand != NULL && demand->lxm != NULL);
        CHECK_MSG(
            strcmp(demand->lxm + sizeof XRPC_PREFIX - 1, route->label) == 0, "%s", route->label);
    }
}

/* A part of the rows: a case has a time limit. */
static void walk(size_t part, size_t parts)
{
    size_t cells = 0, wrong = 0;
    bool is_fresh = false;
    struct cast cast = { .id = "none" };

    authz_site_begin(&cast.site);
    people_begin(&cast);
    for (size_t i = part; i < AUTHZ_ROWS; i += parts) {
        const struct authz_row *row = &authz_rows[i];

        is_fresh = is_fresh && row->given == NULL;
        for (int column = 0; column < AUTHZ_COLUMNS; column++) {
            bool is_changed;

            if (!is_fresh)
                renew(&cast, row);
            cells++;
            wrong += !try_cell(&cast, row, (enum authz_column)column, &is_changed);
            is_fresh = !is_changed;
        }
        is_fresh = is_fresh && row->given == NULL;
    }
    people_end(&cast);
    site_end(&cast.site);
    printf("%zu cells, %zu of them wrong\n", cells, wrong);
    CHECK_EQ_INT(wrong, 0);
}

TEST_LONG(authz, is_as_the_table_says_1, 120)
{
    walk(0, 4);
}

TEST_LONG(authz, is_as_the_table_says_2, 120)
{
    walk(1, 4);
}

TEST_LONG(authz, is_as_the_table_says_3, 120)
{
    walk(2, 4);
}

TEST_LONG(authz, is_as_the_table_says_4, 120)
{
    walk(3, 4);
}
