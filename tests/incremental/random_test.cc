// Models of random forms: each derives and has the bits of its window, or has a mask that leaks and is
// refused.
#include <gtest/gtest.h>

#include <cstdlib>

#include "peer/backend/cpu/cpu_backend.h"
#include "tests/incremental/compare.h"
#include "tests/incremental/forms.h"

namespace weft::incremental::testing {
namespace {

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// WEFT_FORM_SEED=N: that seed alone. WEFT_FORM_SEEDS=N: so many.
TEST(RandomForms, HaveTheBitsOfTheWindowOrAreRefusedForTheirMask) {
  const auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
  ASSERT_TRUE(backend) << backend.error().message;
  const uint64_t only = number_of("WEFT_FORM_SEED", 0), seeds = number_of("WEFT_FORM_SEEDS", 200);
  int derived = 0;
  for (uint64_t seed = only ? only : 1; seed <= (only ? only : seeds); ++seed) {
    SCOPED_TRACE("WEFT_FORM_SEED=" + std::to_string(seed));
    const Form form = random_form(seed);
    SCOPED_TRACE(to_string(form));
    const Model model = make_model(form);
    if (const auto made = derive(model); !made) {
      EXPECT_EQ(made.error().code, ErrorCode::Unsupported) << made.error().message;
      EXPECT_TRUE(form.leaks) << made.error().message;
      continue;
    }
    EXPECT_FALSE(form.leaks) << "a mask that leaks is taken for a causal one";
    ++derived;
    expect_equal_bits(model, **backend, seed, {.chunks = {1, 7}, .sequences = 3, .passes = 6});
    if (HasFailure() && only == 0) break;
  }
  if (only == 0) {
    EXPECT_GE(derived, static_cast<int>(seeds * 8 / 10));
  }
}

}  // namespace
}  // namespace weft::incremental::testing
