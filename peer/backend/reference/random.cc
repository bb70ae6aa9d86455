// Random ops: the draw of an element is a function of its place in the batch, so that cutting a batch into
// microbatches does not change it.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/rng.h"
#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

// The draws of one op in one step, by place.
class Draws {
 public:
  Draws(const Call& call)
      : step_(static_cast<uint32_t>(call.context.step)),
        key_(static_cast<uint32_t>(call.attributes.get_int(Attr::Key))),
        seed_{static_cast<uint32_t>(call.context.seed), static_cast<uint32_t>(call.context.seed >> 32)} {}

  PhiloxBlock block(uint64_t number) const {
    return philox({static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), step_, key_}, seed_);
  }
  uint32_t at(uint64_t place) const { return block(place / 4)[place % 4]; }

 private:
  uint32_t step_, key_;
  PhiloxKey seed_;
};

uint64_t samples_of(const Call& call) {
  return static_cast<uint64_t>(std::max<int64_t>(1, call.context.microbatch_size));
}

void run_dropout(const Call& call) {
  const double ratio = call.attributes.get_double(Attr::Ratio);
  const auto threshold = static_cast<uint32_t>(ratio * 4294967296.0);  // ratio < 1
  const auto count = static_cast<uint64_t>(call.in(0).count());
  const uint64_t first = static_cast<uint64_t>(call.context.sample_position) * (count / samples_of(call));
  const Draws draws(call);
  for (uint64_t i = 0; i < count; ++i)
    call.out().reals[i] = draws.at(first + i) >= threshold ? call.reals(0)[i] / (1 - ratio) : 0;
}

// The upper 24 bits, which a float holds exactly: in [0, 1).
double fraction(uint32_t draw) { return static_cast<double>(draw >> 8) * 0x1p-24; }

// Elements 2k and 2k + 1 are the two numbers that Box-Muller makes of the draws at 2k and 2k + 1.
double normal(const Draws& draws, uint64_t place) {
  const PhiloxBlock block = draws.block(place / 4);
  const size_t pair = place % 4 / 2 * 2;
  const double radius = std::sqrt(-2 * std::log(fraction(block[pair]) + 0x1p-24));
  const double angle = 2 * std::numbers::pi * fraction(block[pair + 1]);
  return radius * (place % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

void run_draws(const Call& call) {
  RefValue& y = call.out();
  const bool by_sample = !y.spec.shape.empty() && y.spec.shape[0] == static_cast<int64_t>(samples_of(call));
  const auto count = static_cast<uint64_t>(y.count());
  const uint64_t first =
      by_sample ? static_cast<uint64_t>(call.context.sample_position) * (count / samples_of(call)) : 0;
  const Draws draws(call);
  const double a = call.reals(0)[0], b = call.reals(1)[0];
  for (uint64_t i = 0; i < count; ++i)
    y.reals[i] = call.kind == OpKind::RandomUniform ? a + (b - a) * fraction(draws.at(first + i))
                                                    : a + b * normal(draws, first + i);
}

}  // namespace

void run_random(const Call& call) {
  if (call.kind == OpKind::Dropout) return run_dropout(call);
  run_draws(call);
}

}  // namespace weft::peer::reference
