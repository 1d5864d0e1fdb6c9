// The attention variants for scalar and device code. Compiles under g++ and NVRTC.
#pragma once

#include "variant/params.h"
#include "variant/scalar_math.h"

#define FOVEA_VARIANT_NAMESPACE fovea::variant
#include "variant/variants_inl.h"
#undef FOVEA_VARIANT_NAMESPACE
