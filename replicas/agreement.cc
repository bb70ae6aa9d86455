#include "replicas/agreement.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "replicas/parts.h"

namespace weft::replicas {

compress::Draw draw_of(uint64_t seed, uint64_t steps_before, uint32_t number, uint16_t replica) {
  return {.seed = seed,
          .step = steps_before,
          .edge = ~place_of(number),
          .replica = replica,
          .first = static_cast<uint32_t>(first_of(number) / compress::kDrawBlock)};
}

std::optional<size_t> pass_through(const compress::Codec& codec, const compress::Draw& draw,
                                   std::span<float> values, std::span<float> residue, PassScratch& scratch) {
  if (codec.kind == compress::Kind::Dense) {
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
      return std::nullopt;
    return values.size_bytes();
  }
  WEFT_CHECK(residue.size() == values.size());
  for (size_t i = 0; i < values.size(); ++i) residue[i] += values[i];
  const size_t most = compress::wire_bytes(codec, values.size());
  if (scratch.payload.size() < most) scratch.payload.resize(most);
  const auto size = compress::encode(codec, residue, draw, scratch.payload, scratch.codec);
  if (!size) return std::nullopt;
  const Status read = compress::decode(codec, draw, std::span(scratch.payload).first(*size), values);
  WEFT_CHECK_MSG(read.has_value(), "what a codec wrote it cannot read");
  for (size_t i = 0; i < values.size(); ++i) residue[i] -= values[i];
  return size;
}

void Mean::add(std::span<const float> values, uint64_t weight) {
  WEFT_CHECK(values.size() == sums_.size() && weight > 0);
  const auto factor = static_cast<double>(weight);
  if (weight_ == 0)
    for (size_t i = 0; i < values.size(); ++i) sums_[i] = factor * values[i];
  else
    for (size_t i = 0; i < values.size(); ++i) sums_[i] += factor * values[i];
  weight_ += weight;
}

void Mean::take(std::span<float> out) {
  WEFT_CHECK(out.size() == sums_.size() && weight_ > 0);
  const auto all = static_cast<double>(weight_);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(sums_[i] / all);
  weight_ = 0;
}

namespace {

// Of one element; returns the weight.
float outer_step(const OuterSpec& outer, float mean, float& momentum, float weight) {
  const auto rate = static_cast<float>(outer.learning_rate);
  const auto kept = static_cast<float>(outer.momentum);
  const float gradient = -mean;
  momentum = kept * momentum + gradient;
  return weight - rate * (gradient + kept * momentum);
}

}  // namespace

void take_outer_step(const OuterSpec& outer, std::span<const float> mean, std::span<float> momentum,
                     std::span<float> weights) {
  WEFT_CHECK(mean.size() == weights.size());
  if (outer.type == OuterType::Average) {
    for (size_t i = 0; i < weights.size(); ++i) weights[i] += mean[i];
    return;
  }
  WEFT_CHECK(momentum.size() == weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = outer_step(outer, mean[i], momentum[i], weights[i]);
}

void look_ahead(const OuterSpec& outer, std::span<const float> difference, std::span<const float> momentum,
                std::span<const float> agreed, std::span<float> start) {
  WEFT_CHECK(difference.size() == agreed.size() && start.size() == agreed.size());
  if (outer.type == OuterType::Average) {
    for (size_t i = 0; i < start.size(); ++i) start[i] = agreed[i] + difference[i];
    return;
  }
  WEFT_CHECK(momentum.size() == agreed.size());
  for (size_t i = 0; i < start.size(); ++i) {
    float passed = momentum[i];
    start[i] = outer_step(outer, difference[i], passed, agreed[i]);
  }
}

void move_on(std::span<const float> start, std::span<const float> agreed, std::span<float> weights) {
  WEFT_CHECK(start.size() == weights.size() && agreed.size() == weights.size());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] += agreed[i] - start[i];
}

}  // namespace weft::replicas
