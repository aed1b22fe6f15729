/* Three functions of LibSodium's utils.c, for verifying signatures.  That member of its archive needs random numbers,
 * these need LibSodium's start-up, and that needs everything else: a cipher, BLAKE2b, Argon2 and more, none of which is
 * used here. The data compared and cleared here is public: signatures and their keys.
 */
#include <stddef.h>
#include <string.h>

void sodium_memzero(void *memory, size_t size);
int sodium_memcmp(const void *left, const void *right, size_t size);
int sodium_is_zero(const unsigned char *bytes, size_t size);

void sodium_memzero(void *memory, size_t size) { explicit_bzero(memory, size); }

int sodium_memcmp(const void *left, const void *right, size_t size) { return memcmp(left, right, size) == 0 ? 0 : -1; }

int sodium_is_zero(const unsigned char *bytes, size_t size)
{
    unsigned char seen = 0;
    for (size_t i = 0; i < size; i++)
        seen |= bytes[i];
    return seen == 0;
}
