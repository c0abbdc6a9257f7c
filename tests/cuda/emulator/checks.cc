// What g++ calls where its own checks (-fsanitize=...) find a mistake: they report as the emulator's do.

#include "emulator.h"

extern "C" {
// All data begin with the place in the source.
struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
#define GM_CHECK(name, what, ...) \
    void __ubsan_handle_##name(const SourceLocation* at, ##__VA_ARGS__) { gm_emulator::fail(int(at->line), what); }
GM_CHECK(add_overflow, "a signed sum overflows", void*, void*)
GM_CHECK(sub_overflow, "a signed difference overflows", void*, void*)
GM_CHECK(mul_overflow, "a signed product overflows", void*, void*)
GM_CHECK(negate_overflow, "a signed negation overflows", void*)
GM_CHECK(divrem_overflow, "a division by zero, or one that overflows", void*, void*)
GM_CHECK(shift_out_of_bounds, "a shift by as many bits as the type has, or more", void*, void*)
GM_CHECK(out_of_bounds, "an index beyond its array", void*)
GM_CHECK(float_cast_overflow, "a float to integer conversion beyond the integer's range", void*)
GM_CHECK(builtin_unreachable, "a place that can't be reached")
GM_CHECK(missing_return, "a function without a result")
}
