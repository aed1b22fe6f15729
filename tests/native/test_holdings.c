/* The holdings of a VM's memory: each allocation fails once, notes come and go in any order, and the mark stays. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "profile/holdings.h"

static const void *address_of(uint64_t n) { return (const void *)(uintptr_t)((n + 1) * 4096 * 16); }

static int32_t node_of(vmh_holdings *holdings, int line)
{
    vmh_profile *tree = &holdings->tree;
    int32_t function = vmh_profile_code(tree, 1, 2, 3);
    if (function < 0)
        function = vmh_profile_learn(tree, 1, 2, 3, "t@1/main.py", "run\x1f\n", 1, NULL, 0);
    return function < 0 ? holdings->root : vmh_profile_node_of(tree, holdings->root, function, line);
}

static int64_t sum(const vmh_holdings *holdings)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < holdings->holding_count; i++)
        bytes += holdings->holdings[i].bytes;
    return bytes;
}

static void fill(vmh_holdings *holdings, int count)
{
    vmh_holdings_lock(holdings);
    for (int i = 0; i < count; i++)
        vmh_holdings_add(holdings, address_of((uint64_t)i), 10, node_of(holdings, i % 100));
    vmh_holdings_unlock(holdings);
}

static void failing_allocations(void)
{
    for (long after = 0;; after++) {
        failing_malloc(after);
        vmh_holdings *holdings = vmh_holdings_new("t", "1", 4096);
        char *told = NULL;
        if (holdings != NULL) {
            fill(holdings, 1500);
            vmh_holdings_mark(holdings, node_of(holdings, 5), 77, true);
            told = vmh_holdings_report(holdings);
        }
        bool failed = failing_malloc(-1);
        CHECK(failed || (holdings != NULL && sum(holdings) == 15000 && told != NULL));
        CHECK(told == NULL || strncmp(told, "asked 77", 8) == 0);
        if (holdings != NULL) {
            CHECK(sum(holdings) == (int64_t)holdings->used * 10);
            for (int i = 0; i < 1500; i++)
                vmh_holdings_remove(holdings, address_of((uint64_t)i));
            CHECK(holdings->used == 0 && sum(holdings) == 0);
        }
        free(told);
        vmh_holdings_free(holdings);
        if (!failed)
            break;
    }
}

/* Against a plain array of the live allocations. */
static void in_any_order(void)
{
    enum { BLOCKS = 3000 };
    static int64_t there[BLOCKS];
    vmh_holdings *holdings = vmh_holdings_new("t", "1", 4096);
    uint64_t state = 7;
    int64_t bytes = 0;
    for (int step = 0; step < 200000; step++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        unsigned n = (unsigned)(state >> 40) % BLOCKS;
        if (state >> 63) {
            vmh_holdings_add(holdings, address_of(n), n + 1, node_of(holdings, (int)n % 50));
            bytes += (int64_t)n + 1 - there[n];
            there[n] = (int64_t)n + 1;
        } else {
            vmh_holdings_remove(holdings, address_of(n));
            bytes -= there[n];
            there[n] = 0;
        }
        if (step % 1000 == 0)
            CHECK(sum(holdings) == bytes);
    }
    for (unsigned n = 0; n < BLOCKS; n++) {
        CHECK(there[n] == 0 || vmh_holdings_may_have(holdings, address_of(n)));
        vmh_holdings_remove(holdings, address_of(n));
    }
    CHECK(holdings->used == 0 && sum(holdings) == 0);
    vmh_holdings_free(holdings);
}

static void marks(void)
{
    vmh_holdings *holdings = vmh_holdings_new("t", "1", 4096);
    CHECK(vmh_holdings_report(holdings) == NULL);
    vmh_holdings_add(holdings, address_of(1), 100, node_of(holdings, 1));
    vmh_holdings_mark(holdings, holdings->root, 5, false);
    vmh_holdings_add(holdings, address_of(2), 300, node_of(holdings, 2));
    vmh_holdings_mark(holdings, node_of(holdings, 3), 6, true); /* the limit: more than a refusal */
    vmh_holdings_remove(holdings, address_of(1));
    vmh_holdings_mark(holdings, holdings->root, 7, true); /* too late */
    char *told = vmh_holdings_report(holdings);
    CHECK(strcmp(told, "asked 6\x1ft@1/main.py\x1f"
                       "3\x1frun??\n"
                       "held 300\x1ft@1/main.py\x1f"
                       "2\x1frun??\n"
                       "held 100\x1ft@1/main.py\x1f"
                       "1\x1frun??\n")
          == 0);
    free(told);
    vmh_holdings_unmark(holdings);
    CHECK(vmh_holdings_report(holdings) == NULL);
    for (int i = 0; i < VMH_HOLDINGS_REPORTED + 10; i++)
        vmh_holdings_add(holdings, address_of(10 + (uint64_t)i), 7, node_of(holdings, 10 + i));
    vmh_holdings_mark(holdings, holdings->root, 1, true);
    told = vmh_holdings_report(holdings);
    const char *rest = strstr(told, "other ");
    CHECK(rest != NULL && strcmp(rest, "other 77\n") == 0); /* one of 300 and 74 of 7; 64 are listed */
    free(told);
    vmh_holdings_free(holdings);
}

int main(void)
{
    failing_allocations();
    in_any_order();
    marks();
    printf("test_holdings: passed\n");
    return 0;
}
