#include "runtime/internal.h"

#include "../kernels/images.h"

const image_kernels images_avx2 = IMAGE_KERNELS;
