#include "frozen.h"

#include <stdlib.h>
#include <string.h>

#include "compat.h"

static const char *const names[] = {"encodings", "encodings.aliases", "encodings.utf_8"};
enum { COUNT = sizeof names / sizeof *names };

/* Once filled, never changed: an import on another thread may be reading it. */
static struct _frozen table[COUNT + 1];

static bool fill(vmh_image *system)
{
    size_t size = 0;
    const vmh_module *modules[COUNT];
    for (int i = 0; i < COUNT; i++) {
        modules[i] = vmh_image_find(system, names[i]);
        if (modules[i] == NULL || modules[i]->size > INT_MAX)
            return false;
        size += modules[i]->size;
    }
    unsigned char *at = malloc(size);       /* not from CPython: no VM is to pay for it */
    if (at == NULL)
        return false;
    for (int i = 0; i < COUNT; i++) {
        memcpy(at, modules[i]->code, modules[i]->size);
        table[i] = (struct _frozen){names[i], at, (int)modules[i]->size, modules[i]->is_package};
        at += modules[i]->size;
    }
    return true;
}

void vmh_frozen_show(vmh_image *system)
{
    if (PyImport_FrozenModules == NULL && (table[0].name != NULL || fill(system)))
        PyImport_FrozenModules = table;
}

void vmh_frozen_hide(void)
{
    if (PyImport_FrozenModules == table)
        PyImport_FrozenModules = NULL;
}
