/* Four functions of glibc 2.38 that CPython's archive needs, implemented with those of any glibc.  The archive was
 * compiled against a newer glibc than the oldest that an image supports. The new functions differ only in accepting
 * binary numbers ("0b1") with base 0 or 2, which CPython parses itself.
 */
#include <stdarg.h>
#include <stddef.h>

/* By their symbol names: a newer glibc's headers would redirect the plain names back here. */
long elder_strtol(const char *text, char **end, int base) __asm__("strtol");
unsigned long elder_strtoul(const char *text, char **end, int base) __asm__("strtoul");
long elder_wcstol(const wchar_t *text, wchar_t **end, int base) __asm__("wcstol");
int elder_vsscanf(const char *text, const char *format, va_list arguments) __asm__("vsscanf");

long __isoc23_strtol(const char *text, char **end, int base);
unsigned long __isoc23_strtoul(const char *text, char **end, int base);
long __isoc23_wcstol(const wchar_t *text, wchar_t **end, int base);
int __isoc23_sscanf(const char *text, const char *format, ...);

long __isoc23_strtol(const char *text, char **end, int base) { return elder_strtol(text, end, base); }
unsigned long __isoc23_strtoul(const char *text, char **end, int base) { return elder_strtoul(text, end, base); }
long __isoc23_wcstol(const wchar_t *text, wchar_t **end, int base) { return elder_wcstol(text, end, base); }

int __isoc23_sscanf(const char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int count = elder_vsscanf(text, format, arguments);
    va_end(arguments);
    return count;
}
