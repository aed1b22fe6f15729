/* The trigger engine without Python: each of its allocations fails once, nothing leaks, and many random doings leave it
 * as its own counts say. Two engines run on two threads at once: they share nothing. */
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "check.h"
#include "core/engine.h"

/* ---- an allocator that counts what lives, and fails once */

typedef struct {
    size_t live;
    long countdown; /* -1: never fails */
    bool failed;
} account;

static void *allocate(void *context, void *old, size_t old_size, size_t new_size)
{
    account *mine = context;
    if (new_size > old_size && mine->countdown >= 0 && mine->countdown-- == 0) {
        mine->failed = true;
        return NULL;
    }
    mine->live += new_size - old_size;
    if (new_size == 0) {
        free(old);
        return NULL;
    }
    void *given = realloc(old, new_size);
    CHECK(given != NULL);
    return given;
}

static vmt_engine *engine_new(account *mine, size_t max_matches, size_t max_bytes)
{
    vmt_settings settings = {.max_matches = max_matches,
                             .max_bytes = max_bytes,
                             .max_back_ms = 1000,
                             .seed = 42,
                             .allocate = allocate,
                             .context = mine};
    return vmt_engine_new(&settings);
}

static vmt_text text_of(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *at = text; *at != 0; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
    return (vmt_text){hash, text, strlen(text), 1};
}

static int released;

static void release(void *token)
{
    CHECK(token != NULL);
    released++;
}

/* ---- conditions as texts: "a b" adjacent, "a * b" over any run, "/p" a page's id */

enum { IDS = 32 };

static vmt_sequence sequence_of(const char *written, vmt_id *ids, char *words)
{
    vmt_sequence sequence = {ids, 0};
    bool gap = false;
    strcpy(words, written);
    for (char *left, *word = strtok_r(words, " ", &left); word != NULL; word = strtok_r(NULL, " ", &left)) {
        if (strcmp(word, "*") == 0) {
            gap = true;
            continue;
        }
        bool page = word[0] == '/';
        ids[sequence.count++] = (vmt_id){text_of(word + page), page, gap};
        gap = false;
    }
    return sequence;
}

static vmt_status put(vmt_engine *engine, const char *key, const char *written, vmt_level level, bool change)
{
    static char token;
    vmt_id ids[IDS];
    char words[200];
    vmt_sequence sequence = sequence_of(written, ids, words);
    vmt_condition condition = {text_of(key), &sequence, 1, level, level == VMT_TIME ? 50 : 0, &token};
    void *old = NULL;
    return change ? vmt_change(engine, &condition, &old) : vmt_add(engine, &condition);
}

static size_t feed(vmt_engine *engine, const char *name, const char *page, const char *visit, int64_t position)
{
    const vmt_fired *fired = NULL;
    size_t count = 0;
    vmt_event event = {text_of(name), text_of(page), text_of(visit), position, position};
    CHECK(vmt_feed(engine, &event, &fired, &count) == VMT_OK);
    return count;
}

/* The engine's statistics against its contents. */
static void check_counts(vmt_engine *engine)
{
    uint64_t matches = engine->all.gap_count + engine->all.strict_count, visits = 0;
    for (uint32_t number = engine->oldest; number != 0; number = vmt_visit_at(engine, number)->newer) {
        const vmt_visit *visit = vmt_visit_at(engine, number);
        CHECK(visit->gap_count + visit->strict_count > 0);
        CHECK(visit->gap_count + visit->strict_count <= visit->capacity);
        CHECK(vmt_visit_find(engine, (vmt_fingerprint){visit->first, visit->second}) == number);
        matches += visit->gap_count + visit->strict_count;
        visits++;
    }
    vmt_statistics told = vmt_engine_statistics(engine);
    CHECK(told.matches == matches && told.visits == visits);
    CHECK(told.matches <= engine->settings.max_matches);
    CHECK(told.condition_bytes <= engine->settings.max_bytes / 4 * 3);
    CHECK(told.match_bytes <= engine->settings.max_bytes / 4);
    CHECK(told.bytes == ((account *)engine->settings.context)->live);
}

/* ---- each allocation fails once */

static bool add(vmt_engine *engine, const char *key, const char *written, vmt_level level, bool change)
{
    vmt_statistics before = vmt_engine_statistics(engine);
    vmt_status status = put(engine, key, written, level, change);
    vmt_statistics after = vmt_engine_statistics(engine);
    if (status == VMT_OK)
        return true;
    CHECK(status == VMT_NO_MEMORY);
    CHECK(before.conditions == after.conditions && before.sequences == after.sequences);
    CHECK(before.nodes == after.nodes && before.symbols == after.symbols);
    return false;
}

/* All of it once; false if an allocation failed and was reported. Failures while events flow count as dropped. */
static bool everything(account *mine)
{
    bool done = false;
    char key[32], written[64], visit[32];
    vmt_engine *engine = engine_new(mine, 100000, 64 << 20);
    if (engine == NULL)
        return false;
    for (int i = 0; i < 300; i++) {
        snprintf(key, sizeof key, "key %d", i);
        snprintf(written, sizeof written, i % 2 ? "/p * e%d e%d" : "e%d * /p%d", i, i / 2);
        if (!add(engine, key, written, i % 3 ? VMT_PAGE : VMT_TIME, false))
            goto done;
    }
    if (!add(engine, "key 7", "a b * c", VMT_TIME, true))
        goto done;
    int64_t position = 0;
    for (int i = 0; i < 300; i++) {
        for (int k = 0; k < 4; k++) {
            snprintf(written, sizeof written, "e%d", (i + k) % 300);
            snprintf(visit, sizeof visit, "visit %d", k == 3 ? i % 5 : i);
            feed(engine, written, "p", visit, ++position);
        }
    }
    check_counts(engine);
    if (mine->failed && vmt_engine_statistics(engine).dropped == 0)
        CHECK(put(engine, "key 8", "a", VMT_PAGE, false) == VMT_KNOWN); /* a table that could not grow: only slower */
    done = !mine->failed;
done:
    check_counts(engine);
    vmt_engine_free(engine, release);
    return done;
}

static void allocations(void)
{
    for (long after = 0;; after++) {
        account mine = {.countdown = after};
        bool done = everything(&mine);
        CHECK(mine.live == 0);
        CHECK(done == !mine.failed);
        if (done) {
            CHECK(after > 50);
            return;
        }
    }
}

/* ---- bounds */

static void bounds(void)
{
    account mine = {.countdown = -1};
    char name[64];
    vmt_engine *engine = engine_new(&mine, 100, 1 << 20);
    CHECK(engine != NULL && put(engine, "key", "a * b", VMT_PAGE, false) == VMT_OK);
    CHECK(put(engine, "key", "a", VMT_PAGE, false) == VMT_KNOWN);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "visit %d", i);
        feed(engine, "a", "", name, i);
    }
    vmt_statistics told = vmt_engine_statistics(engine);
    CHECK(told.matches == 100 && told.dropped == 900);
    CHECK(feed(engine, "b", "", "visit 899", 1000) == 0); /* the visits that were quiet longest are gone */
    CHECK(feed(engine, "b", "", "visit 900", 1001) == 1);
    vmt_status status = VMT_OK;
    for (int i = 0; status == VMT_OK; i++) {
        snprintf(name, sizeof name, "n%d m%d o%d", i, i, i);
        status = put(engine, name, name, VMT_PAGE, false);
    }
    CHECK(status == VMT_FULL);
    check_counts(engine);
    CHECK(feed(engine, "b", "", "visit 901", 1002) == 1); /* conditions take nothing from matches */
    const vmt_fired *fired;
    size_t count;
    vmt_event again = {text_of("b"), text_of(""), text_of("v"), 5, 1002};
    CHECK(vmt_feed(engine, &again, &fired, &count) == VMT_POSITION);
    vmt_engine_free(engine, release);
    CHECK(mine.live == 0);

    /* A small quarter for matches: visits make room for one that grows. */
    engine = engine_new(&mine, 100000, 1 << 18);
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "s%d * end", i);
        CHECK(put(engine, name, name, VMT_PAGE, false) == VMT_OK);
    }
    for (int64_t i = 0; i < 200000; i++) {
        char visit[32];
        snprintf(visit, sizeof visit, "visit %" PRId64, i % 3 ? i / 300 : i % 7);
        snprintf(name, sizeof name, "s%" PRId64, i % 200);
        feed(engine, name, "", visit, i);
    }
    check_counts(engine);
    CHECK(vmt_engine_statistics(engine).dropped > 0);
    vmt_engine_free(engine, release);
    CHECK(mine.live == 0);
}

/* ---- a visit with very many matches, which has an index */

static void large_visit(void)
{
    enum { CONDITIONS = 3000 };
    account mine = {.countdown = -1};
    char key[64];
    vmt_engine *engine = engine_new(&mine, 100000, 64 << 20);
    for (int level = VMT_PAGE; level <= VMT_TIME; level++)
        for (int i = 0; i < CONDITIONS; i++) {
            snprintf(key, sizeof key, "n%d * m%d * l%d", i, i % 10, level);
            CHECK(put(engine, key, key, level == VMT_TIME ? VMT_TIME : VMT_PAGE, false) == VMT_OK);
        }
    int64_t position = 0;
    for (int i = 0; i < CONDITIONS; i++) {
        snprintf(key, sizeof key, "n%d", i);
        feed(engine, key, "", "visit", ++position);
    }
    vmt_advance(engine, position + 1);
    vmt_statistics told = vmt_engine_statistics(engine);
    CHECK(told.expired == CONDITIONS - 49); /* of the time level: within 50 ms */
    CHECK(told.matches == CONDITIONS + 49);
    feed(engine, "m3", "", "visit", ++position);
    CHECK(feed(engine, "l0", "", "visit", ++position) == CONDITIONS / 10);
    CHECK(feed(engine, "l1", "", "visit", ++position) == 5);
    check_counts(engine);
    vmt_end_visit(engine, text_of("visit"));
    check_counts(engine);
    vmt_engine_free(engine, release);
    CHECK(mine.live == 0);
}

/* ---- random operations */

static int tell(void *context, const vmt_step *step)
{
    CHECK(step->text.size > 0);
    ++*(size_t *)context;
    return 0;
}

static void *churn(void *argument)
{
    account mine = {.countdown = -1};
    uint64_t draw = (uint64_t)(uintptr_t)argument * UINT64_C(0x9E3779B97F4A7C15) + 1;
    char key[32], written[128], visit[32], page[32];
    vmt_engine *engine = engine_new(&mine, 500, 1 << 20);
    CHECK(engine != NULL);
    for (int64_t position = 0; position < 60000; position++) {
        draw = draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        unsigned a = draw >> 33 & 7, b = draw >> 36 & 7, c = draw >> 39 & 7, what = draw >> 42 & 31;
        const char *gap = draw >> 50 & 1 ? "*" : "";
        snprintf(key, sizeof key, "key %u", (unsigned)(draw >> 52 & 63));
        vmt_level level = draw >> 60 & 1 ? VMT_TIME : VMT_PAGE;
        if (what < 3) {
            void *token;
            vmt_remove(engine, text_of(key), &token);
        } else if (what < 8) {
            snprintf(written, sizeof written, "n%u %s /p%u %s n%u", a, gap, b, draw >> 51 & 1 ? "*" : "", c);
            vmt_status status = put(engine, key, written, level, what < 5);
            CHECK(status == VMT_OK || status == VMT_KNOWN || status == VMT_UNKNOWN);
        } else if (what == 8) {
            snprintf(visit, sizeof visit, "visit %u", a);
            vmt_end_visit(engine, text_of(visit));
        } else if (what == 9) {
            vmt_advance(engine, position + 40 * (int64_t)a);
        } else if (what == 10) {
            vmt_about about;
            size_t steps = 0;
            if (vmt_explain(engine, text_of(key), &about, tell, &steps) == VMT_OK)
                CHECK(steps == 3 && about.sequences == 1);
        } else {
            snprintf(written, sizeof written, "n%u", a);
            snprintf(page, sizeof page, "p%u", b);
            snprintf(visit, sizeof visit, "visit %u", (unsigned)(draw >> 44 & 255));
            feed(engine, written, page, c == 0 ? "" : visit, position);
        }
        if (position % 1000 == 0)
            check_counts(engine);
    }
    for (int i = 0; i < 64; i++) {
        void *token;
        snprintf(key, sizeof key, "key %d", i);
        vmt_remove(engine, text_of(key), &token);
    }
    vmt_statistics told = vmt_engine_statistics(engine);
    CHECK(told.conditions == 0 && told.sequences == 0 && told.nodes == 0 && told.symbols == 0);
    vmt_engine_free(engine, release);
    CHECK(mine.live == 0);
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    bounds();
    large_visit();
    allocations();
    for (uintptr_t i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
