/* What the kernels of model.mlir and spec.mlir call. Compiled without debug information, as such objects are. */

#include <stddef.h>

#ifndef TURNS
#define TURNS 32
#endif

static float waved(float value)
{
    for (int turn = 0; turn < TURNS; ++turn)
        value = value * 0.5f + 1.0f;
    return value;
}

/* Called by one kernel, through a stub, for it is visible outside of its object. */
void tm_waves(const float *in, float *out)
{
    for (size_t i = 0; i < 65536; ++i)
        out[i] = waved(in[i]);
}

/* Called by tm_falls alone, directly. */
__attribute__((noinline, visibility("hidden"))) void tm_inner(const float *in, float *out)
{
    for (size_t i = 0; i < 65536; ++i)
        out[i] = waved(in[i]) - 1.0f;
}

/* Called by one kernel, directly; all of its work is done by what it calls, and its last call is a jump. */
__attribute__((visibility("hidden"))) void tm_falls(const float *in, float *out)
{
    tm_inner(in, out);
}

/* Called by two kernels. */
__attribute__((visibility("hidden"))) void tm_shared(const float *in, float *out)
{
    for (size_t i = 0; i < 65536; ++i)
        out[i] = waved(in[i]) * 3.0f;
}

/* Of any size. */
void tm_doubles(const float *in, size_t in_offset, float *out, size_t out_offset, size_t size)
{
    for (size_t i = 0; i < size; ++i)
        out[out_offset + i] = in[in_offset + i] * 2.0f;
}
