#include "runtime/internal.h"

#include "../kernels/images.h"

const image_kernels images_portable = IMAGE_KERNELS;
