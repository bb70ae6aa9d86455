// The cpu backend as tests want it: so many threads, not bound to processors, which other tests use as well.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "peer/backend/cpu/cpu_backend.h"

namespace weft::peer {

inline std::unique_ptr<Backend> cpu(int threads = 2, bool own_convolutions = false) {
  auto backend = make_cpu_backend({.threads = threads, .pin = false, .own_convolutions = own_convolutions});
  EXPECT_TRUE(backend.has_value()) << backend.error().message;
  return std::move(*backend);
}

}  // namespace weft::peer
