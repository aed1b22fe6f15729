#include "lanes/critical.h"

_Thread_local volatile int vmh_critical_depth __attribute__((tls_model("initial-exec")));
