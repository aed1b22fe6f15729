/* The pattern matcher without Python: each of its allocations fails once, nothing leaks, snapshots come back as they
 * were, damaged ones are refused, and memory is flat. Two engines run on two threads at once: they share nothing. */
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "check.h"
#include "core/machine.h"

/* ---- an allocator that counts what lives, and fails once */

typedef struct {
    size_t live;
    long countdown; /* -1: never fails */
    bool failed;
    bool forbidden; /* conditions are evaluated */
} account;

static void *allocate(void *context, void *old, size_t old_size, size_t new_size)
{
    account *mine = context;
    CHECK(!mine->forbidden || new_size == 0);
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

static vmp_engine *engine_new(account *mine, size_t max_matches, size_t max_bytes)
{
    vmp_settings settings = {
        .max_matches = max_matches, .max_bytes = max_bytes, .seed = 42, .allocate = allocate, .context = mine};
    return vmp_engine_new(&settings);
}

static vmt_text text_of(const char *text) { return (vmt_text){0, text, strlen(text), 1}; }

static void release(void *token) { CHECK(token != NULL); }

/* ---- rules: names are predicates 0 a, 1 b, 2 c; 3: the sum of v at step 1 is below 6 */

enum { V, FIELDS };
static const vmp_op OPERATIONS[] = {{VMP_GATHER, VMP_SUM, 1, V}, {VMP_CONSTANT, 0, 0, 0}, {VMP_COMPARE, 0, 0, 2}};
static const vmp_value CONSTANTS[] = {{.kind = VMP_DOUBLE, .real = 6}};
static const uint32_t KEEPS[] = {V};
static char token;

static vmp_status add(vmp_engine *engine, const char *key, vmp_rule_description rule)
{
    const vmp_predicate predicates[] = {{.named = true, .name = text_of("a")},
                                        {.named = true, .name = text_of("b")},
                                        {.named = true, .name = text_of("c")},
                                        {.gathers = true, .first = 0, .count = 3}};
    const vmt_text names[] = {text_of("a"), text_of("b"), text_of("c")};
    rule.key = text_of(key);
    rule.token = &token;
    rule.space = 1;
    rule.steps = 3;
    rule.predicates = predicates;
    rule.predicate_count = 4;
    rule.operations = OPERATIONS;
    rule.operation_count = 3;
    rule.constants = CONSTANTS;
    rule.constant_count = 1;
    rule.begins = names;
    rule.begin_count = 1;
    rule.listens = names;
    rule.listen_count = 3;
    rule.keeps = KEEPS;
    rule.keep_count = 1;
    for (size_t i = 0; i < rule.state_count; i++)
        rule.edge_count += rule.states[i].edges;
    for (size_t i = 0; i < rule.edge_count; i++)
        rule.code_count += rule.edges[i].codes;
    return vmp_add(engine, &rule);
}

/* a, b, c in this order with anything between */
static vmp_status add_three(vmp_engine *engine, const char *key, unsigned skip)
{
    static const vmp_state states[] = {
        {VMP_FINAL, 0, 0, 0}, {VMP_NORMAL, 2, 2, 0}, {VMP_NORMAL, 1, 2, 0}, {VMP_NORMAL, 0, 1, 0}};
    static const vmp_edge edges[] = {
        {VMP_TAKE, 0, 1}, {VMP_IGNORE, 1, 2}, {VMP_TAKE, 1, 1}, {VMP_IGNORE, 2, 2}, {VMP_TAKE, 2, 1}};
    static const int16_t codes[] = {2, 2, VMP_NEGATE_IT, 1, 1, VMP_NEGATE_IT, 0};
    return add(engine, key,
               (vmp_rule_description){.fingerprint = skip,
                                      .skip = (uint8_t)skip,
                                      .start = 3,
                                      .within_ms = 20,
                                      .states = states,
                                      .state_count = 4,
                                      .edges = edges,
                                      .codes = codes});
}

/* a, then b once or more while their sum is small, in all combinations */
static vmp_status add_loop(vmp_engine *engine, const char *key)
{
    static const vmp_state states[] = {{VMP_FINAL, 0, 0, 0},
                                       {VMP_NORMAL, 1, 3, 0},
                                       {VMP_NORMAL, 1, 2, 9},
                                       {VMP_NORMAL, 1, 2, 0},
                                       {VMP_NORMAL, 0, 1, 0}};
    static const vmp_edge edges[] = {{VMP_PROCEED, 0, 0}, {VMP_TAKE, 1, 3}, {VMP_IGNORE, 2, 0}, {VMP_TAKE, 1, 3},
                                     {VMP_IGNORE, 2, 0},  {VMP_TAKE, 1, 1}, {VMP_IGNORE, 3, 2}, {VMP_TAKE, 3, 1}};
    static const int16_t codes[] = {1, 3, VMP_BOTH, 1, 3, VMP_BOTH, 1, 1, VMP_NEGATE_IT, 0};
    return add(engine, key,
               (vmp_rule_description){.fingerprint = 77,
                                      .skip = VMP_TO_NEXT,
                                      .start = 4,
                                      .within_ms = 30,
                                      .states = states,
                                      .state_count = 5,
                                      .edges = edges,
                                      .codes = codes});
}

/* a without b behind it */
static vmp_status add_not(vmp_engine *engine, const char *key)
{
    static const vmp_state states[] = {
        {VMP_FINAL, 0, 0, 0}, {VMP_PENDING, 1, 2, 0}, {VMP_STOP, 1, 1, 0}, {VMP_NORMAL, 0, 1, 0}};
    static const vmp_edge edges[] = {{VMP_PROCEED, 2, 1}, {VMP_IGNORE, 1, 2}, {VMP_TAKE, 2, 1}, {VMP_TAKE, 1, 1}};
    static const int16_t codes[] = {1, 1, VMP_NEGATE_IT, 1, 0};
    return add(engine, key,
               (vmp_rule_description){.fingerprint = 78,
                                      .start = 3,
                                      .within_ms = 10,
                                      .states = states,
                                      .state_count = 4,
                                      .edges = edges,
                                      .codes = codes});
}

/* ---- events */

static vmp_value field(void *context, uint32_t number)
{
    CHECK(number == V);
    return (vmp_value){.kind = VMP_INT, .whole = *(const int64_t *)context % 3};
}

typedef struct {
    uint64_t state, digest, matches, timeouts;
} history;

static uint32_t dice(history *all, uint32_t sides)
{
    all->state = all->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(all->state >> 33) % sides;
}

static void note(history *all, const vmp_results *results)
{
    for (size_t i = 0; i < results->count; i++) {
        const vmp_result *result = &results->results[i];
        *(result->timed_out ? &all->timeouts : &all->matches) += 1;
        uint64_t digest = result->timed_out * 31 + (uint64_t)result->at_ms;
        CHECK(result->count > 0);
        for (uint32_t k = 0; k < result->count; k++) {
            const vmp_item *item = &results->items[result->first + k];
            CHECK(k == 0 || item->id > item[-1].id);
            digest = (digest ^ (uint64_t)item->id ^ item->step) * UINT64_C(1099511628211);
        }
        all->digest += digest; /* the order does not count */
    }
}

static vmp_status feed(vmp_engine *engine, history *all, int64_t id, int64_t time_ms)
{
    static const char *const names[] = {"a", "b", "c", "x"}, *const keys[] = {"", "ann", "bob", "eve",
                                                                              "a key of some length"};
    vmp_event event = {
        .name = text_of(names[dice(all, 4)]), .time_ms = time_ms, .id = id, .field = field, .context = &id};
    event.keys[1] = text_of(keys[dice(all, 5)]);
    vmp_results results;
    vmp_status status = vmp_feed(engine, &event, &results);
    note(all, &results);
    return status;
}

static vmp_engine *filled(account *mine, size_t max_matches, size_t max_bytes)
{
    vmp_engine *engine = engine_new(mine, max_matches, max_bytes);
    if (engine == NULL)
        return NULL;
    vmp_status said[] = {add_three(engine, "three", VMP_NO_SKIP), add_three(engine, "past", VMP_PAST_LAST),
                         add_loop(engine, "loop"), add_not(engine, "not")};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        CHECK(said[i] == VMP_OK || (said[i] == VMP_NO_MEMORY && mine->countdown < 0 && mine->failed));
    return engine;
}

static void run(vmp_engine *engine, history *all, int64_t from, int64_t to)
{
    for (int64_t id = from; id < to; id++) {
        vmp_status status = feed(engine, all, id, id * 2);
        CHECK(status == VMP_OK || status == VMP_NO_MEMORY);
        if (id % 7 == 0) {
            vmp_results results;
            vmp_advance(engine, id * 2 - 5, &results);
            note(all, &results);
        }
    }
}

typedef struct {
    char *data;
    size_t size;
} written;

static bool collect(void *context, const void *data, size_t size)
{
    written *to = context;
    char *more = realloc(to->data, to->size + size + 1);
    CHECK(more != NULL);
    to->data = more;
    if (size != 0)
        memcpy(to->data + to->size, data, size);
    to->size += size;
    return true;
}

static void finish(vmp_engine *engine, history *all)
{
    vmp_results results;
    CHECK(vmp_advance(engine, INT64_MAX, &results) == VMP_OK);
    note(all, &results);
    vmp_statistics told = vmp_engine_statistics(engine);
    CHECK(told.keys == 0 && told.matches == 0 && told.waiting == 0 && told.nodes == 0 && told.events == 0);
}

/* ---- tests */

static void one_event_after_the_other(void)
{
    account mine = {.countdown = -1};
    vmp_engine *engine = engine_new(&mine, 1000, 1 << 20);
    CHECK(add_three(engine, "three", VMP_NO_SKIP) == VMP_OK);
    CHECK(add_three(engine, "three", VMP_NO_SKIP) == VMP_KNOWN);
    static const char *const names[] = {"a", "a", "b", "c", "c"};
    size_t found = 0;
    for (int64_t i = 0; i < 5; i++) {
        vmp_event event = {.name = text_of(names[i]), .time_ms = i, .id = i, .field = field, .context = &i};
        event.keys[1] = text_of("k");
        vmp_results results;
        CHECK(vmp_feed(engine, &event, &results) == VMP_OK);
        found += results.count;
        CHECK(results.count == (i == 3 ? 2 : 0));
    }
    CHECK(found == 2 && vmp_next_ms(engine) == INT64_MAX);
    void *given;
    CHECK(vmp_remove(engine, text_of("three"), &given) == VMP_OK && given == &token);
    CHECK(vmp_remove(engine, text_of("three"), &given) == VMP_UNKNOWN);
    vmp_engine_free(engine, release);
    CHECK(mine.live == 0);
}

static void memory_is_flat(void)
{
    account mine = {.countdown = -1};
    vmp_engine *engine = filled(&mine, 1000, 1 << 20);
    history all = {.state = 7};
    run(engine, &all, 1, 3000);
    size_t after = mine.live;
    run(engine, &all, 3000, 30000);
    CHECK(mine.live <= after + after / 2);
    CHECK(all.matches > 1000 && all.timeouts > 1000);
    CHECK(vmp_engine_statistics(engine).dropped == 0);
    finish(engine, &all);
    vmp_engine_free(engine, release);
    CHECK(mine.live == 0);
}

static void bounds_hold(void)
{
    account mine = {.countdown = -1};
    vmp_engine *engine = filled(&mine, 3, 1 << 20);
    history all = {.state = 8};
    run(engine, &all, 1, 5000);
    vmp_statistics told = vmp_engine_statistics(engine);
    CHECK(told.dropped > 0 && told.matches <= 3 * told.keys * 4);
    finish(engine, &all);
    vmp_engine_free(engine, release);
    /* a rule of one key that holds on to all, and others that give up theirs for it */
    engine = filled(&mine, 100000, 600000);
    run(engine, &all, 1, 20000);
    CHECK(vmp_engine_statistics(engine).match_bytes <= 150000);
    finish(engine, &all);
    vmp_engine_free(engine, release);
    CHECK(mine.live == 0);
}

static void each_allocation_fails_once(void)
{
    long failed = 0;
    for (long n = 0;; n++) {
        account mine = {.countdown = n};
        history all = {.state = 9};
        vmp_engine *engine = filled(&mine, 1000, 1 << 20);
        if (engine != NULL) {
            run(engine, &all, 1, 260);
            written snapshot = {0};
            vmp_status status = vmp_save(engine, collect, &snapshot);
            CHECK(status == VMP_OK || mine.failed);
            vmp_engine *other = filled(&mine, 1000, 1 << 20);
            if (other != NULL && status == VMP_OK) {
                status = vmp_load(other, snapshot.data, snapshot.size);
                CHECK(status == VMP_OK || (status == VMP_NO_MEMORY && mine.failed));
            }
            free(snapshot.data);
            if (other != NULL)
                vmp_engine_free(other, release);
            mine.countdown = -1;
            run(engine, &all, 260, 400);
            finish(engine, &all);
            vmp_engine_free(engine, release);
        }
        CHECK(mine.live == 0);
        if (!mine.failed)
            break;
        failed++;
    }
    CHECK(failed > 100);
    printf("%ld allocations failed, each once\n", failed);
}

static void snapshots_come_back(void)
{
    account mine = {.countdown = -1};
    for (int64_t cut = 50; cut < 600; cut += 61) {
        vmp_engine *engine = filled(&mine, 1000, 1 << 20), *other = filled(&mine, 1000, 1 << 20);
        history all = {.state = (uint64_t)cut};
        run(engine, &all, 1, cut);
        written snapshot = {0}, again = {0};
        CHECK(vmp_save(engine, collect, &snapshot) == VMP_OK);
        CHECK(vmp_load(other, snapshot.data, snapshot.size) == VMP_OK);
        CHECK(vmp_engine_statistics(other).matches == vmp_engine_statistics(engine).matches);
        CHECK(vmp_load(other, snapshot.data, snapshot.size) == VMP_BAD || vmp_engine_statistics(other).keys == 0);
        CHECK(vmp_save(other, collect, &again) == VMP_OK);
        history same = all;
        run(engine, &all, cut, cut + 300);
        run(other, &same, cut, cut + 300);
        finish(engine, &all);
        finish(other, &same);
        CHECK(memcmp(&all, &same, sizeof all) == 0);
        vmp_engine_free(engine, release);
        vmp_engine_free(other, release);
        free(snapshot.data);
        free(again.data);
    }
    CHECK(mine.live == 0);
}

static void damaged_snapshots_are_refused_or_harmless(void)
{
    account mine = {.countdown = -1};
    vmp_engine *engine = filled(&mine, 1000, 1 << 20);
    history all = {.state = 11};
    run(engine, &all, 1, 120);
    written snapshot = {0};
    CHECK(vmp_save(engine, collect, &snapshot) == VMP_OK);
    vmp_engine_free(engine, release);
    char *copy = malloc(snapshot.size);
    CHECK(copy != NULL);
    int refused = 0;
    for (int i = 0; i < 4000; i++) {
        memcpy(copy, snapshot.data, snapshot.size);
        size_t size = i % 4 == 0 ? dice(&all, (uint32_t)snapshot.size) : snapshot.size;
        for (uint32_t k = dice(&all, 3) + 1; i % 4 != 0 && k > 0; k--)
            copy[dice(&all, (uint32_t)snapshot.size)] ^= (char)(1u << dice(&all, 8));
        engine = filled(&mine, 1000, 1 << 20);
        vmp_status status = vmp_load(engine, copy, size);
        CHECK(status == VMP_OK || status == VMP_BAD || status == VMP_NO_MEMORY);
        refused += status != VMP_OK;
        CHECK(status == VMP_OK || vmp_engine_statistics(engine).nodes == 0);
        history other = {.state = 12};
        for (int64_t id = 1000; id < 1040; id++)
            vmp_advance(engine, id * 2, &(vmp_results){0});
        vmp_engine_free(engine, release);
        CHECK(other.state == 12);
    }
    CHECK(refused > 1000);
    free(copy);
    free(snapshot.data);
    CHECK(mine.live == 0);
}

static void bad_descriptions_are_refused(void)
{
    account mine = {.countdown = -1};
    vmp_engine *engine = engine_new(&mine, 10, 1 << 20);
    static const vmp_state circle[] = {{VMP_NORMAL, 0, 1, 0}, {VMP_NORMAL, 0, 1, 0}}, step[] = {{VMP_NORMAL, 3, 0, 0}};
    static const vmp_edge round[] = {{VMP_PROCEED, 1, 0}, {VMP_PROCEED, 0, 0}},
                          out[] = {{VMP_TAKE, 9, 0}, {VMP_TAKE, 0, 0}}, coded[] = {{VMP_TAKE, 1, 1}, {VMP_TAKE, 0, 0}};
    static const int16_t strange[] = {9}, lacking[] = {VMP_BOTH};
    CHECK(add(engine, "circle", (vmp_rule_description){.states = circle, .state_count = 2, .edges = round}) == VMP_BAD);
    CHECK(add(engine, "target", (vmp_rule_description){.states = circle, .state_count = 2, .edges = out}) == VMP_BAD);
    CHECK(add(engine, "step", (vmp_rule_description){.states = step, .state_count = 1}) == VMP_BAD);
    CHECK(add(engine, "code",
              (vmp_rule_description){.states = circle, .state_count = 2, .edges = coded, .codes = strange})
          == VMP_BAD);
    CHECK(add(engine, "depth",
              (vmp_rule_description){.states = circle, .state_count = 2, .edges = coded, .codes = lacking})
          == VMP_BAD);
    CHECK(add(engine, "start", (vmp_rule_description){.states = circle, .state_count = 1, .edges = round, .start = 1})
          == VMP_BAD);
    vmp_engine_free(engine, release);
    CHECK(mine.live == 0);
}

static void *on_a_thread(void *unused)
{
    account mine = {.countdown = -1};
    vmp_engine *engine = filled(&mine, 1000, 1 << 20);
    history all = {.state = 21};
    run(engine, &all, 1, 4000);
    finish(engine, &all);
    vmp_engine_free(engine, release);
    return unused;
}

int main(void)
{
    one_event_after_the_other();
    memory_is_flat();
    bounds_hold();
    snapshots_come_back();
    damaged_snapshots_are_refused_or_harmless();
    bad_descriptions_are_refused();
    each_allocation_fails_once();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, on_a_thread, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    puts("patterns: good");
    return 0;
}
