// What is asked for of low-rank adapters beside a model's weights (dag/passes/adapt.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::dag {

inline constexpr int64_t kAdapterRankMax = 4096;

struct AdapterTerms {
  // Globs over initializers, and over the names of the nodes that read one.
  std::vector<std::string> targets{};
  int64_t rank = 8;    // 1 to kAdapterRankMax
  double alpha = 8;    // scale * rank
  double dropout = 0;  // of what A reads, in training; a table's indices are not dropped
};

}  // namespace weft::dag
