// Payloads that no encoder wrote: decode returns, and what it accepts is finite. Meant to be run under the
// address and undefined behaviour sanitizers as well: spans are of their exact size on the heap.
#include "tests/compress/cases.h"

namespace weft::compress {
namespace {

// Whether it was accepted.
bool decode_returns(const Codec& codec, const Bytes& payload, size_t count, bool must_fail = false) {
  const Bytes exact(payload);
  std::vector<float> y(count);
  const Status status = decode(codec, {.seed = 1}, exact, y);
  if (!status) {
    EXPECT_EQ(status.error().code, ErrorCode::Corrupted);
    EXPECT_FALSE(status.error().message.empty());
    return false;
  }
  EXPECT_FALSE(must_fail) << name(codec) << " took " << payload.size() << " bytes for " << count;
  if (codec.kind == Kind::Dense) return true;
  for (const float value : y)
    if (!std::isfinite(value)) {
      ADD_FAILURE() << name(codec) << " yields " << value;
      return true;
    }
  return true;
}

constexpr size_t kSmall[] = {0, 1, 2, 3, 8, 9, 63, 64, 65, 130, 300};

TEST(Hostile, EveryTruncationAndEveryExtensionIsRefused) {
  for (const char* text : kNames)
    for (const size_t count : kSmall) {
      const Codec codec = codec_of(text);
      const Bytes whole = encoded(codec, tensor(Data::Relu, count, 3), {.seed = 1});
      for (size_t size = 0; size < whole.size(); ++size)
        decode_returns(codec, Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)), count,
                       /*must_fail=*/true);
      for (const size_t more : {1, 2, 8, 1000}) {
        Bytes longer = whole;
        longer.resize(whole.size() + more);
        decode_returns(codec, longer, count, /*must_fail=*/true);
      }
    }
}

TEST(Hostile, EveryFlippedBitIsTakenOrRefused) {
  for (const LoopTable* table : all_loops())
    for (const char* text : kNames)
      for (const size_t count : kSmall) {
        const ForcedLoops forced(*table);
        const Codec codec = codec_of(text);
        Bytes payload = encoded(codec, tensor(Data::Normal, count, 3), {.seed = 1});
        for (size_t bit = 0; bit < payload.size() * 8; ++bit) {
          const auto flip = static_cast<std::byte>(1u << (bit % 8));
          payload[bit / 8] ^= flip;
          decode_returns(codec, payload, count);
          payload[bit / 8] ^= flip;
        }
      }
}

// Also the codec and the count are not those of the sender.
TEST(Hostile, RandomBytesAreTakenOrRefused) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  Rng rng(seed, 6);
  int taken = 0;
  const auto tables = all_loops();
  for (int time = 0; time < 100'000; ++time) {
    const ForcedLoops forced(*tables[rng.below(tables.size())]);
    const Codec codec = codec_of(kNames[rng.below(std::size(kNames))]);
    const size_t count = rng.below(200);
    Bytes payload(rng.below(8) == 0 ? rng.below(600) : wire_bytes(codec, count));
    const uint64_t style = rng.below(4);
    for (std::byte& b : payload)
      b = style == 0   ? static_cast<std::byte>(rng.below(256))
          : style == 1 ? static_cast<std::byte>(rng.below(256) & rng.below(256) & rng.below(256))
          : style == 2 ? std::byte{0xff}
                       : static_cast<std::byte>(rng.below(2) * 0x7f);
    taken += decode_returns(codec, payload, count);
  }
  EXPECT_GT(taken, 1000);
}

// Several bits of a payload that was right, or bytes moved about in it.
TEST(Hostile, DamagedPayloadsAreTakenOrRefused) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  Rng rng(seed, 7);
  const auto tables = all_loops();
  for (int time = 0; time < 30'000; ++time) {
    const ForcedLoops forced(*tables[rng.below(tables.size())]);
    const Codec codec = codec_of(kNames[rng.below(std::size(kNames))]);
    const size_t count = 1 + rng.below(400);
    const Data data = kData[rng.below(std::size(kData))];
    Bytes payload = encoded(codec, tensor(data, count, static_cast<uint64_t>(time)), {.seed = 1});
    for (uint64_t times = 1 + rng.below(6); times > 0; --times)
      if (rng.below(2) == 0)
        payload[rng.below(payload.size())] ^= static_cast<std::byte>(1u << rng.below(8));
      else
        payload[rng.below(payload.size())] = payload[rng.below(payload.size())];
    decode_returns(codec, payload, count);
  }
}

}  // namespace
}  // namespace weft::compress
