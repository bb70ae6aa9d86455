#include "dag/made_value.h"

#include "base/rng.h"

namespace weft::dag {
namespace {

// FNV-1a: which stream of draws a name has.
uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

Tensor make_value(const MadeValue& how, const TensorSpec& spec, std::string_view name) {
  Tensor tensor(spec);
  if (how.bound == 0 && how.deviation == 0) return tensor;
  Rng rng(how.seed, stream_of(name));
  for (float& value : tensor.mutable_as<float>())
    value = static_cast<float>(how.deviation != 0 ? how.deviation * rng.normal()
                                                  : how.bound * (2 * rng.uniform() - 1));
  return tensor;
}

}  // namespace weft::dag
