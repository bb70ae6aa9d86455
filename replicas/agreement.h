// How replicas that made local steps come to the same weights again. Of each parameter, at the end of an
// outer round:
//   1. A replica's difference is what it has now less what was agreed last. With its residue it is written by
//      the codec; what a receiver reads of that counts, and what it does not read is the residue until the
//      next round (error feedback: Seide et al., Interspeech 2014; Karimireddy et al., arXiv 1901.09847).
//   2. The differences as read are averaged, weighted by samples, in the order of replicas.
//   3. The mean goes back by the same codec, with a residue of its own, which is one for the run.
//   4. The outer rule makes the agreed weights of the mean as read.
// Running statistics are averaged, weighted by samples, and nothing else. Everybody who does the same has the
// same bits: each element is computed alone, in the order written here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "compress/codec.h"
#include "replicas/terms.h"

namespace weft::replicas {

// Who speaks of a mean in a Draw, where replicas are told apart by their numbers.
inline constexpr uint16_t kOwner = 0xFFFF;
// Of the encoding of a parameter, or of a part of it, by its number (replicas/parts.h), in the round after
// that step: a part has the draws that it has in the whole. No link's tensor has the same, as edges are
// numbered from below.
compress::Draw draw_of(uint64_t seed, uint64_t steps_before, uint32_t number, uint16_t replica);

// Working memory that is kept from call to call.
struct PassScratch {
  compress::Scratch codec;
  std::vector<std::byte> payload;
};
// `values`: what is to be sent, then what is read of it. `residue`: what is owed, of as many, then what is
// owed now; empty with Dense, which owes nothing. Returns the bytes of the payload; nothing if a value is not
// finite, and then both are unspecified. REQUIRES: a codec that passed check().
std::optional<size_t> pass_through(const compress::Codec& codec, const compress::Draw& draw,
                                   std::span<float> values, std::span<float> residue, PassScratch& scratch);

// The weighted mean of tensors of one shape, added in the order in which they are given.
class Mean {
 public:
  explicit Mean(size_t count) : sums_(count) {}
  // REQUIRES: values.size() is the count, weight > 0.
  void add(std::span<const float> values, uint64_t weight);
  // Then another one may begin. REQUIRES: something was added; out.size() is the count.
  void take(std::span<float> out);

 private:
  std::vector<double> sums_;
  uint64_t weight_ = 0;
};

// Step 4. `mean`: what is added to the weights on average. `momentum`: of as many, zero at the start; empty
// with Average. In float32, with g = -mean:
//   average   weights -= g
//   nesterov  b = momentum * b + g;  weights -= learning_rate * (g + momentum * b)
// as torch.optim.SGD(nesterov=True) does. REQUIRES: equal sizes.
void take_outer_step(const OuterSpec& outer, std::span<const float> mean, std::span<float> momentum,
                     std::span<float> weights);

// What a replica goes on with where a round overlaps the next one, until the mean is there: step 4 as if its
// own difference, as read, were the mean. Step 4 is linear, so the replicas are on average where the mean
// puts them, momentum included; were they to go on without it, the outer rule would act on weights of a round
// ago and swing. (Of others: Eager Updates for Overlapped Communication and Computation in DiLoCo, arXiv
// 2502.12996, mixes a replica's own new difference with the others' last ones.) REQUIRES: equal sizes;
// `momentum` as in take_outer_step.
void look_ahead(const OuterSpec& outer, std::span<const float> difference, std::span<const float> momentum,
                std::span<const float> agreed, std::span<float> start);

// What a replica has of a tensor that it looked ahead of, and has gone on from since, once the mean is there:
// what it has learnt since is the same. REQUIRES: equal sizes.
void move_on(std::span<const float> start, std::span<const float> agreed, std::span<float> weights);

}  // namespace weft::replicas
