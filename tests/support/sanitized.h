// Whether a sanitizer watches this build. It takes several times the memory, and five to twenty times as
// long: what a test bounds of either is not bounded then.
#pragma once

namespace weft::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace weft::test
