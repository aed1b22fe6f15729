/* Names of statuses, and the error message of the calling thread's last failure. */
#include "runtime/internal.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[VME_MESSAGE_SIZE];

vme_status vme_fail(vme_status status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    for (char *c = message; *c != '\0';
         c++) /* names from files may contain control characters; a message is one line */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    return status;
}

const char *vme_message(void) { return message; }

const char *vme_status_name(vme_status status)
{
    switch (status) {
    case VME_OK: return "ok";
    case VME_NO_MEMORY: return "no memory";
    case VME_BAD_SHAPE: return "bad shape";
    case VME_BAD_DTYPE: return "bad dtype";
    case VME_BAD_INDEX: return "bad index";
    case VME_BAD_AXIS: return "bad axis";
    case VME_BAD_VALUE: return "bad value";
    case VME_READ_ONLY: return "read-only";
    case VME_STOPPED: return "stopped";
    case VME_UNSUPPORTED: return "unsupported";
    case VME_IO_ERROR: return "I/O error";
    }
    return "unknown status";
}
