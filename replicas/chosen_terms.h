// What the first plan of a job with local steps chose of what the job leaves open. Every later one keeps it.
// A job that says the same has the same bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/codec.h"

namespace weft::replicas {

inline constexpr uint64_t kEveryMax = uint64_t{1} << 40;  // steps

struct ChosenTerms {
  uint64_t every = 0;  // ReplicaTerms::every; 0: there was no plan yet that said it, nor the codec
  compress::Codec codec{};
  std::vector<uint64_t> shares{};  // by replica; empty: all make as many steps
  bool operator==(const ChosenTerms&) const = default;
};

}  // namespace weft::replicas
