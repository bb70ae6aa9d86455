// RandomK: one number of each of k stretches of equal length (to one) that the tensor is cut into, the place
// within its stretch drawn from Philox by both ends; positions are not sent.
//
// Wire: the values (values.h). Decoded, a value is multiplied by the length m of its stretch (n / k to one),
// and the rest is zero: the mean is the tensor, and the variance of an element x is (m - 1) x^2, in all about
// (n / k - 1) ||x||^2, as if the k were drawn from all n. The draw is of 32 bits, which favours places by at
// most m / 2^32 of their share.
#include <algorithm>
#include <limits>

#include "compress/values.h"

namespace weft::compress {
namespace {

constexpr size_t kGroup = static_cast<size_t>(kBlock);

// The positions, a group of 128 after the other, and what a value at each is multiplied by.
class Places {
 public:
  Places(size_t count, size_t k, const Draw& draw)
      : stream_(stream_of(draw, Purpose::RandomK)), length_(count / k), extra_(count % k), k_(k) {}

  void next(size_t count) {
    uint32_t words[kGroup];
    loops().draw_words(stream_, block_, words);
    loops().draw_words(stream_, block_ + 16, words + 64);
    block_ += 32;
    for (size_t i = 0; i < count; ++i) {
      // Stretch i is [i n / k, (i + 1) n / k), rounded down.
      owed_ += extra_;
      const size_t length = length_ + (owed_ >= k_ ? 1 : 0);
      owed_ -= owed_ >= k_ ? k_ : 0;
      position[i] = start_ + ((uint64_t{words[i]} * length) >> 32);
      factor[i] = static_cast<float>(length);
      start_ += length;
    }
  }

  size_t position[kGroup];
  float factor[kGroup];

 private:
  Stream stream_;
  size_t length_, extra_, k_, owed_ = 0, start_ = 0;
  uint32_t block_ = 0;
};

size_t random_k_bytes(const Codec& codec, size_t count) {
  return values_bytes(codec.values, kept(codec, count));
}
size_t scratch(const Codec& codec, size_t count) { return Arena::padded<float>(kept(codec, count)); }

std::optional<size_t> encode_random_k(const Codec& codec, std::span<const float> x, const Draw& draw,
                                      std::span<std::byte> out, std::span<std::byte> memory) {
  if (!loops().all_finite(x.data(), static_cast<int64_t>(x.size()))) return std::nullopt;
  if (x.empty()) return 0;
  const size_t k = kept(codec, x.size());
  const auto values = Arena(memory).take<float>(k);
  Places places(x.size(), k, draw);
  for (size_t at = 0; at < k; at += kGroup) {
    const size_t count = std::min(kGroup, k - at);
    places.next(count);
    for (size_t i = 0; i < count; ++i) values[at + i] = x[places.position[i]];
  }
  write_values(codec.values, values, draw, out);
  return values_bytes(codec.values, k);
}

Status decode_random_k(const Codec& codec, const Draw& draw, std::span<const std::byte> payload,
                       std::span<float> out) {
  WEFT_TRY_STATUS(check_length(payload, random_k_bytes(codec, out.size())));
  if (out.empty()) return {};
  constexpr float kLargest = std::numeric_limits<float>::max();
  const size_t k = kept(codec, out.size());
  std::fill(out.begin(), out.end(), 0.0f);
  Places places(out.size(), k, draw);
  float values[kGroup];
  for (size_t at = 0; at < k; at += kGroup) {
    const size_t count = std::min(kGroup, k - at);
    WEFT_TRY_STATUS(read_values(codec.values, payload, at, std::span(values).first(count)));
    places.next(count);
    for (size_t i = 0; i < count; ++i)
      out[places.position[i]] = std::clamp(values[i] * places.factor[i], -kLargest, kLargest);
  }
  return {};
}

}  // namespace

const KindRow kRandomKRow = {random_k_bytes, scratch, encode_random_k, decode_random_k};

}  // namespace weft::compress
